"""The product of two scaled matrices on numpy: the default on any machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost import formats, scaling
from kingpost.formats import BF16, E4M3, E4M3FNUZ, F32
from kingpost.scaling import BLOCK, Scaling

_OUTPUTS = 1 << 15  # outputs promoted at once, so that the temporaries stay in cache


def product(
    a: np.ndarray,
    a_scales: np.ndarray,
    a_scaling: str | Scaling,
    b: np.ndarray,
    b_scales: np.ndarray,
    b_scaling: str | Scaling,
    out_format: Any = BF16,
) -> np.ndarray:
    """a @ b.T with scales, each output the same bits whatever else is computed with it.

    a: e4m3 or e4m3fnuz [M, K], b: the same [N, K] (K-major, as weights are stored), any strides; scales: float32, of
    the shape that each scaling wants; scalings: "1x128", "128x128", "row" or "tensor", one for each operand.
    out_format: bfloat16 or float32. Returns a new [M, N] of that format. M, N or K may be 0.

    Every 128-block of K is summed exactly and rounded once to float32. If either operand has a scale per block, then
    in ascending K total = fma32(partial, rn32(a_scale * b_scale), total). Else total = rn32(total + partial) in
    ascending K, and rn32(total * rn32(a_scale * b_scale)) at the end.
    """
    a_scaling, b_scaling = scaling.named(a_scaling), scaling.named(b_scaling)
    target = formats.named(out_format)
    _check(a, a_scales, a_scaling, "a")
    _check(b, b_scales, b_scaling, "b")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"a is {a.shape} and b {b.shape}; wanted [M, K] and [N, K] with one K")
    if target not in (BF16, F32):
        raise ValueError(f"out_format is {target}; wanted bfloat16 or float32")
    promoted = BLOCK in (a_scaling.block[1], b_scaling.block[1])
    a_scales = a_scaling.by_block(a_scales, a.shape)
    b_scales = b_scaling.by_block(b_scales, b.shape)
    weight = formats.decode(b, dtype=np.float64).T
    out = np.empty((a.shape[0], b.shape[0]), target.dtype)
    height = max(1, _OUTPUTS // max(1, b.shape[0]))
    for row in range(0, a.shape[0], height):
        rows = slice(row, row + height)
        total = _rows(formats.decode(a[rows], dtype=np.float64), a_scales[rows], weight, b_scales, promoted)
        out[rows] = formats.cast(total, target)
    return out


def _rows(a: np.ndarray, a_scales: np.ndarray, b: np.ndarray, b_scales: np.ndarray, promoted: bool) -> np.ndarray:
    """Some rows of the product, float32 [m, N]: a [m, K] and b [K, N] in float64, scales [m, blocks], [N, blocks]."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for block in range(a_scales.shape[1]):
            k = slice(block * BLOCK, (block + 1) * BLOCK)
            # Exact, in whatever order BLAS adds: products are multiples of 2^-18 (FNUZ: 2^-20) below 2^18, so 128 of
            # them sum to less than 2^25, and float64 holds such a multiple in at most 45 of its 53 bits.
            partial = (a[:, k] @ b[k]).astype(np.float32)
            scale = a_scales[:, block, None] * b_scales[None, :, block]
            total = formats.fma32(partial, scale, total) if promoted else total + partial
        if not promoted and a_scales.shape[1]:
            total *= scale
    return total


def _check(x: np.ndarray, scales: np.ndarray, scaling: Scaling, name: str) -> None:
    format = formats.of(x.dtype)
    if format not in (E4M3, E4M3FNUZ):
        raise TypeError(f"{name} is {format}; wanted e4m3 or e4m3fnuz, whose blocks of {BLOCK} are exact in float64")
    if x.ndim != 2:
        raise ValueError(f"{name} has shape {x.shape}; wanted two dimensions")
    if scaling.block[1] not in (BLOCK, None):
        raise ValueError(f"{name} is scaled {scaling}; wanted 1x128, 128x128, row or tensor")
    if scales.dtype != np.float32 or scales.shape != scaling.scales_shape(x.shape):
        raise ValueError(
            f"{name}_scales are {scales.dtype} {scales.shape}; wanted float32 {scaling.scales_shape(x.shape)}"
        )
