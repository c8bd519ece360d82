"""An imaginary accelerator: two copy queues feed one matrix unit. It has no lanes, no warps and no threads.

It is what `docs/devices.md` walks through: `isa` (its instructions), `arithmetic` (what its matrix unit computes),
`kernels` (programs for it), `executor` (what runs them) and `device` (what kingpost is given).
"""
