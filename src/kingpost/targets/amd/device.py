"""AMD devices: CDNA3 and CDNA4 on the emulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kingpost.program import Program
from kingpost.registry import Case
from kingpost.targets.amd import checks
from kingpost.targets.amd.amdgcn import amdgcn
from kingpost.targets.amd.arithmetic import matrix_product
from kingpost.targets.amd.targets import GFX942, GFX950
from kingpost.targets.emulated_chip import EmulatedChip

STEP = 64  # of K, that gfx950's matrix instruction takes at once; gfx942's takes 16, of which this is a multiple


class EmulatedAmd(EmulatedChip):
    """A CDNA chip on the emulator: portable kernels, the bits of its matrix cores as far as they are known."""

    def cases(self) -> Sequence[Case]:
        return [*checks.cases(self.target.name), *super().cases()]

    def text(self, program: Program) -> str:
        return amdgcn(program)

    def block(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = (np.pad(codes, ((0, 0), (0, -codes.shape[1] % STEP))) for codes in (a, b))
        total = np.zeros((len(a), len(b)), np.float32)
        for k in range(0, a.shape[1], STEP):
            total = matrix_product(self.target.name, a[:, k : k + STEP], b[:, k : k + STEP], total)
        return total


EMULATED_GFX942 = EmulatedAmd(GFX942, "CDNA3 (MI300)")
EMULATED_GFX950 = EmulatedAmd(GFX950, "CDNA4 (MI350)")
EMULATED_AMD = {device.target.name: device for device in (EMULATED_GFX942, EMULATED_GFX950)}
