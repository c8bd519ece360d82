"""Blackwell on the emulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kingpost import formats
from kingpost.program import Program
from kingpost.registry import Case
from kingpost.targets.emulated_chip import EmulatedChip
from kingpost.targets.nvidia import blackwell_checks
from kingpost.targets.nvidia.blackwell_arithmetic import block_product
from kingpost.targets.nvidia.ptx import ptx
from kingpost.targets.nvidia.targets import SM_100A


class EmulatedBlackwell(EmulatedChip):
    """sm_100a on the emulator: portable programs, with the bits of its tensor cores, on any CPU."""

    def cases(self) -> Sequence[Case]:
        return [*blackwell_checks.cases(), *super().cases()]

    def text(self, program: Program) -> str:
        return ptx(program)

    def block(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return block_product(a.view(np.uint8), b.view(np.uint8), formats.of(a.dtype), formats.of(b.dtype))


EMULATED_BLACKWELL = EmulatedBlackwell(SM_100A, "Blackwell")
