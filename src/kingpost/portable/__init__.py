"""Kernels written once for every target with lanes: each file has `launch(target, ...views) -> Launch`."""
