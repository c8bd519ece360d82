"""AMD devices: CDNA3 and CDNA4 on the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost import formats
from kingpost.program import Program
from kingpost.scaling import BLOCK, ScaledTensor
from kingpost.targets.amd.amdgcn import amdgcn
from kingpost.targets.amd.arithmetic import matrix_product
from kingpost.targets.amd.targets import GFX942, GFX950
from kingpost.targets.emulated_chip import EmulatedChip

STEP = 64  # of K, that gfx950's matrix instruction takes at once; gfx942's takes 16, of which this is a multiple


class EmulatedAmd(EmulatedChip):
    """A CDNA chip on the emulator: portable kernels, the bits of its matrix cores as far as they are known."""

    def text(self, program: Program) -> str:
        return amdgcn(program)

    def model(self, a: ScaledTensor, b: ScaledTensor, out_dtype: Any) -> np.ndarray:
        """Blocks of 128 of K, ascending, each from zero: total = fma(block, rn32(scale_a * scale_b), total)."""
        weight = b.T
        a_codes, b_codes = (_whole_blocks(np.asarray(t.data).view(self.target.float8.dtype)) for t in (a, weight))
        a_scales = np.asarray(a.scales)
        b_scales = np.repeat(np.asarray(weight.scales), BLOCK, axis=0)[: len(b_codes)]
        total = np.zeros((len(a_codes), len(b_codes)), np.float32)
        for block in range(a_codes.shape[1] // BLOCK):
            part = np.zeros_like(total)
            for start in range(block * BLOCK, (block + 1) * BLOCK, STEP):
                k = slice(start, start + STEP)
                part = matrix_product(self.target.name, a_codes[:, k], b_codes[:, k], part)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                scale = a_scales[:, block, None] * b_scales[None, :, block]
            total = formats.fma32(part, scale, total)
        return _converted(total, formats.named(out_dtype))


def _whole_blocks(codes: np.ndarray) -> np.ndarray:
    """Zeros up to a whole number of blocks of K, as kernels read them."""
    return np.pad(codes, ((0, 0), (0, -codes.shape[1] % BLOCK)))


def _converted(x: np.ndarray, format: formats.Format) -> np.ndarray:
    """As the portable kernels store it: NaN is 0x7fffffff, and 0x7fff in bfloat16."""
    nan, result = np.isnan(x), formats.cast(x, format, saturate=False)
    if format is formats.BF16:
        result.view(np.uint16)[nan] = 0x7FFF
    elif format is formats.F32:
        result.view(np.uint32)[nan] = 0x7FFFFFFF
    return result


EMULATED_GFX942 = EmulatedAmd(GFX942, "CDNA3 (MI300)")
EMULATED_GFX950 = EmulatedAmd(GFX950, "CDNA4 (MI350)")
EMULATED_AMD = {device.target.name: device for device in (EMULATED_GFX942, EMULATED_GFX950)}
