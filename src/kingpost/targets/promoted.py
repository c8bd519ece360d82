"""The block-scaled product as any chip computes it, given the chip's own product of one block of K."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kingpost import formats
from kingpost.scaling import BLOCK


def promoted(
    block_product: Callable[[np.ndarray, np.ndarray], np.ndarray],
    a_codes: np.ndarray,
    a_scales: np.ndarray,
    b_codes: np.ndarray,
    b_scales: np.ndarray,
) -> np.ndarray:
    """For each 128-block of K, ascending, total = fma(block_product, rn32(a_scale * b_scale), total).

    block_product: of a's and b's codes in one block, from zero, float32 [M, N]. a_codes: uint8 [M, K], a_scales:
    float32 [M, ceil(K/128)]; b_codes: uint8 [N, K], b_scales: float32 [N, ceil(K/128)] (a "128x128" scaling expanded
    along N). Returns float32 [M, N]; NaN is 0x7fffffff.
    """
    rows, depth = a_codes.shape
    columns, blocks = b_codes.shape[0], -(-depth // BLOCK)
    for name, scales, length in (("a_scales", a_scales, rows), ("b_scales", b_scales, columns)):
        if scales.shape != (length, blocks) or scales.dtype != np.float32:
            raise ValueError(f"{name} is {scales.dtype} {scales.shape}; wanted float32 {(length, blocks)}")
    total = np.zeros((rows, columns), np.float32)
    for block in range(blocks):
        k = slice(block * BLOCK, (block + 1) * BLOCK)
        partial = block_product(a_codes[:, k], b_codes[:, k])
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scale = a_scales[:, block, None] * b_scales[None, :, block]
        total = formats.fma32(partial, scale, total)
    return formats.canonical_nan(total)
