"""The product of scaled operands as any device computes it, given the device's own product of one block of K."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kingpost import formats
from kingpost.scaling import BLOCK

_OUTPUTS = 1 << 19  # multiplied at once: enough rows that preparing b for each of them does not weigh
_PROMOTED = 1 << 16  # outputs promoted at once, so that the temporaries stay in cache


def promoted(
    block_product: Callable[[np.ndarray, np.ndarray], np.ndarray],
    a_codes: np.ndarray,
    a_scales: np.ndarray,
    b_codes: np.ndarray,
    b_scales: np.ndarray,
    block: int = BLOCK,
) -> np.ndarray:
    """For each block of K, ascending, total = fma(block_product, rn32(a_scale * b_scale), total).

    block_product: of a's and b's codes in one block, from zero, float32 [M, N]; a row's bits must not depend on the
    other rows. a_codes: [M, K], a_scales: float32 [M, ceil(K / block)]; b_codes: [N, K], b_scales: float32
    [N, ceil(K / block)] (a "128x128" scaling expanded along N); codes of any type that block_product takes, any
    strides. Returns float32 [M, N]; NaN is 0x7fffffff.
    """
    rows, depth = a_codes.shape
    columns, blocks = b_codes.shape[0], -(-depth // block)
    for name, scales, length in (("a_scales", a_scales, rows), ("b_scales", b_scales, columns)):
        if scales.shape != (length, blocks) or scales.dtype != np.float32:
            raise ValueError(f"{name} is {scales.dtype} {scales.shape}; wanted float32 {(length, blocks)}")
    total = np.zeros((rows, columns), np.float32)
    for some in _slices(rows, columns, _OUTPUTS):
        for i in range(blocks):
            k = slice(i * block, (i + 1) * block)
            partial = block_product(a_codes[some, k], b_codes[:, k])
            _promote(total[some], partial, a_scales[some, i, None], b_scales[:, i])
    return formats.canonical_nan(total)


def _promote(total: np.ndarray, partial: np.ndarray, a_scales: np.ndarray, b_scales: np.ndarray) -> None:
    rows, columns = total.shape
    for some in _slices(rows, columns, _PROMOTED):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scale = a_scales[some] * b_scales
        total[some] = formats.fma32(partial[some], scale, total[some])


def _slices(rows: int, columns: int, outputs: int) -> list[slice]:
    """The rows, so many at once that they hold about that many outputs."""
    height = max(1, outputs // max(1, columns))
    return [slice(row, row + height) for row in range(0, rows, height)]
