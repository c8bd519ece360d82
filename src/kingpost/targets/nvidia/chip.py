"""What the models of kernels know of a chip."""

from __future__ import annotations

from dataclasses import dataclass

BARRIER_BYTES = 512  # of shared memory, set aside for barriers and alignment
LAUNCH_MICROSECONDS = 2.0


@dataclass(frozen=True)
class Chip:
    """Sizes, and a rate measured on an H200."""

    multiprocessors: int = 132
    shared_bytes: int = 232448  # that a block may use
    memory_bytes: float = 4.3e6  # a microsecond, read and written by a product


H200 = Chip()
