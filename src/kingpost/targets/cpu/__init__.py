"""The products on numpy, exact within every 128-block of K."""

from kingpost.targets.cpu.products import product

__all__ = ["product"]
