"""The CPU's arithmetic: every block of float8 products exact, rounded once to float32; bfloat16 by float64 sums."""

from __future__ import annotations

import numpy as np

from kingpost import formats
from kingpost.formats import E4M3, E4M3FNUZ, E5M2, two_sum

ROWS = 64  # of a bfloat16 product computed at once

# Where e5m2's numbers are cut by magnitude when they meet another format. A part from 2^i to 2^j holds multiples of
# 2^(i-2) below 2^j, the first one multiples of 2^-16: at most 14 bits with two cuts, 28 with one. All of e5m2 takes 32
# bits, from 2^-16 to 2^16, and e4m3 18, from 2^-9 (FNUZ: 2^-10) to 2^9 (2^8). So a sum of 128 products of a part and a
# whole takes at most 14 + 32 + 7 or 28 + 18 + 7 bits, of e4m3 alone 18 + 18 + 7; and float64 holds 53, in whatever
# order BLAS adds.
_CUTS = {E5M2: (2.0**-2, 2.0**10), E4M3: (2.0**12,), E4M3FNUZ: (2.0**12,)}


class Exact:
    """Sums that do not depend on the order in which BLAS adds: `kingpost.targets.family.Arithmetic`."""

    def block(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a @ b.T for float8 [M, k] and [N, k], k <= 128, exact and rounded once: float32 [M, N]."""
        a_format, b_format = formats.of(a.dtype), formats.of(b.dtype)
        left, right = (formats.decode(x, dtype=np.float64) for x in (a, b))
        if E5M2 not in (a_format, b_format):
            return (left @ right.T).astype(np.float32)
        if not (np.isfinite(left).all() and np.isfinite(right).all()):
            return _special(left, right, self.block(*(np.where(np.isfinite(x), x, 0) for x in (a, b))))
        if a_format is E5M2:
            return _rounded([part @ right.T for part in _parts(left, _CUTS[b_format])])
        return _rounded([left @ part.T for part in _parts(right, _CUTS[a_format])])

    def chain(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a @ b.T for bfloat16 [M, K] and [N, K], float64 sums rounded once: float32 [M, N]."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float64_product(a, b).astype(np.float32)


def float64_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b.T in float64 for bfloat16 [M, K] and [N, K]: a row's bits do not depend on the other rows.

    BLAS adds in an order that depends on the sizes. So it always multiplies the same number of rows, in memory of their
    own, zeros among them if need be.
    """
    weight = formats.decode(b, dtype=np.float64).T
    total = np.empty((len(a), len(b)))
    rows = np.zeros((ROWS, a.shape[1]))
    for first in range(0, len(a), ROWS):
        height = min(ROWS, len(a) - first)
        rows[:height] = formats.decode(a[first : first + height], dtype=np.float64)
        rows[height:] = 0
        total[first : first + height] = (rows @ weight)[:height]
    return total


def _parts(x: np.ndarray, cuts: tuple[float, ...]) -> list[np.ndarray]:
    """Arrays that add up to x, each with its numbers from one cut to the next, smallest first."""
    size = np.abs(x)
    return [np.where((low <= size) & (size < high), x, 0) for low, high in zip((0.0, *cuts), (*cuts, np.inf))]


def _rounded(sums: list[np.ndarray]) -> np.ndarray:
    """The sum of two sums of parts, or three, rounded once to float32."""
    rest, *others, total = sums
    for other in others:
        # three are of e5m2 alone: the first sum lies below 2^20.7, the others together below 2^40, where float64 loses
        # less than 2^-13. All are multiples of 2^-32, so that float64 holds what is added to `rest`
        total, lost = two_sum(total, other)
        rest = rest + lost
    return formats.sum32(total, rest)


def _special(a: np.ndarray, b: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """a @ b.T where NaN or infinity takes part, as IEEE 754 has it; else as in `finite`."""
    with np.errstate(invalid="ignore"):
        total = (a @ b.T).astype(np.float32)
    return np.where(np.isfinite(total), finite, total)
