"""AMD's kernels with small operands: the product by one wave, to the bits of the arithmetic model."""

from __future__ import annotations

from functools import partial

import numpy as np

from kingpost.arrays import view
from kingpost.formats import E4M3FNUZ
from kingpost.program import Launch
from kingpost.registry import Case, Trial
from kingpost.targets.amd.arithmetic import matrix_product
from kingpost.targets.amd.kernels.cdna3_fp8_one_wave import SIDE, cdna3_fp8_one_wave
from kingpost.targets.samples import difference

DEPTHS = (16, 32, 48, 176)  # one step, an even and an odd number of them, and many


def cases(target: str) -> list[Case]:
    """The kernels made for a target."""
    if target != "gfx942":
        return []
    name = "cdna3_fp8_one_wave"
    return [Case(f"{name}: K of {depth}", name, target, partial(_one_wave, depth)) for depth in DEPTHS]


def _one_wave(depth: int) -> Trial:
    a, b = (_codes(depth, seed) for seed in (1, 2))
    c, zeros = np.full((SIDE, SIDE), np.nan, np.float32), np.zeros((SIDE, SIDE), np.float32)
    wanted = matrix_product("gfx942", a, b, zeros)
    launch = Launch.of(cdna3_fp8_one_wave(), 1, a=view(a), b=view(b), c=view(c), k=depth)
    return Trial(launch, lambda: difference(c, wanted))


def _codes(depth: int, seed: int) -> np.ndarray:
    """Any finite codes, subnormals and the extremes among them."""
    codes = np.random.default_rng(seed).integers(0, 256, (SIDE, depth)).astype(np.uint8)
    values = codes.view(E4M3FNUZ.dtype)
    values[~np.isfinite(values.astype(np.float32))] = 0
    return values
