"""Blackwell on the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost import formats
from kingpost.program import Program
from kingpost.scaling import ScaledTensor
from kingpost.targets.emulated_chip import EmulatedChip
from kingpost.targets.nvidia.arithmetic import converted
from kingpost.targets.nvidia.blackwell_arithmetic import promoted_product
from kingpost.targets.nvidia.ptx import ptx
from kingpost.targets.nvidia.targets import SM_100A


class EmulatedBlackwell(EmulatedChip):
    """sm_100a on the emulator: portable programs, with the bits of its tensor cores, on any CPU."""

    def text(self, program: Program) -> str:
        return ptx(program)

    def model(self, a: ScaledTensor, b: ScaledTensor, out_dtype: Any) -> np.ndarray:
        weight = b.T
        a_codes, b_codes = (np.asarray(t.data).view(np.uint8) for t in (a, weight))
        repeated = np.repeat(np.asarray(weight.scales), 128, axis=0)
        product = promoted_product(a_codes, np.asarray(a.scales), b_codes, repeated[: len(b_codes)])
        return converted(product, formats.named(out_dtype))


EMULATED_BLACKWELL = EmulatedBlackwell(SM_100A, "Blackwell")
