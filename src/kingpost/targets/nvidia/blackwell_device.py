"""Blackwell on the emulator."""

from __future__ import annotations

import numpy as np

from kingpost.program import Program
from kingpost.targets.emulated_chip import EmulatedChip
from kingpost.targets.nvidia.blackwell_arithmetic import block_product
from kingpost.targets.nvidia.ptx import ptx
from kingpost.targets.nvidia.targets import SM_100A


class EmulatedBlackwell(EmulatedChip):
    """sm_100a on the emulator: portable programs, with the bits of its tensor cores, on any CPU."""

    def text(self, program: Program) -> str:
        return ptx(program)

    def block_product(self, a_codes: np.ndarray, b_codes: np.ndarray) -> np.ndarray:
        return block_product(a_codes, b_codes)


EMULATED_BLACKWELL = EmulatedBlackwell(SM_100A, "Blackwell")
