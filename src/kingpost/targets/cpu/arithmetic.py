"""The CPU's arithmetic: every block of float8 products exact, rounded once to float32; bfloat16 by float64 sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kingpost import formats
from kingpost.formats import E5M2, sum_to_odd

SPLIT = 0.25  # e5m2 from here on, and below
ROWS = 64  # of a bfloat16 product computed at once


@dataclass(frozen=True)
class _Operand:
    """float8 values, float64 [rows, K], as one or two parts that add up to them; whether all are finite."""

    parts: tuple[np.ndarray, ...]
    finite: bool


class Exact:
    """Sums that do not depend on the order in which BLAS adds."""

    def operand(self, codes: np.ndarray) -> _Operand:
        values = formats.decode(codes, dtype=np.float64)
        if formats.of(codes.dtype) is not E5M2:
            return _Operand((values,), True)  # NaN comes out as it should by itself
        large = np.abs(values) >= SPLIT
        return _Operand((np.where(large, values, 0), np.where(large, 0, values)), bool(np.isfinite(values).all()))

    def cut(self, operand: _Operand, rows: slice, columns: slice) -> _Operand:
        return _Operand(tuple(part[rows, columns] for part in operand.parts), operand.finite)

    def block(self, a: _Operand, b: _Operand) -> np.ndarray:
        """Products of e4m3 are multiples of 2^-18 (FNUZ: 2^-20) below 2^18, so that 128 of them sum to less than 2^25,
        and float64 holds such a multiple in at most 45 of its 53 bits.

        e5m2 spans too much for one sum. Its numbers from 1/4 on are multiples of 2^-4 below 2^16, those below of 2^-16.
        So 128 products of large by large are multiples of 2^-8 below 2^39, of large by small of 2^-20 below 2^22 (both
        ways together), of small by small of 2^-32 below 2^3; with e4m3, of 2^-13 below 2^32 and of 2^-25 below 2^14.
        """
        if not (a.finite and b.finite):
            return self._special(a, b)
        if len(a.parts) == len(b.parts) == 1:
            return (a.parts[0] @ b.parts[0].T).astype(np.float32)
        sums = [0.0, 0.0, 0.0]  # by the number of small parts
        for i, left in enumerate(a.parts):
            for j, right in enumerate(b.parts):
                sums[i + j] = sums[i + j] + left @ right.T
        total, lost = _two_sum(sums[0], sums[1])
        total, more = _two_sum(total, sums[2])
        return sum_to_odd(total, lost + more).astype(np.float32)  # lost + more is exact

    def _special(self, a: _Operand, b: _Operand) -> np.ndarray:
        """Where NaN or infinity takes part, sums follow IEEE 754; the others are as ever."""
        left, right = sum(a.parts), sum(b.parts)
        assert isinstance(left, np.ndarray) and isinstance(right, np.ndarray)
        with np.errstate(invalid="ignore"):
            ieee = left @ right.T
        kept = [_Operand(tuple(np.where(np.isfinite(p), p, 0) for p in x.parts), True) for x in (a, b)]
        return np.where(np.isfinite(ieee), self.block(*kept), ieee.astype(np.float32))

    def chain(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """float64 sums, rounded once, of so many rows at a time, zeros among them if need be: BLAS adds in an order
        that depends on the sizes, and these do not depend on M."""
        weight = formats.decode(b, dtype=np.float64).T
        total = np.empty((len(a), len(b)), np.float32)
        rows = np.zeros((ROWS, a.shape[1]))
        for first in range(0, len(a), ROWS):
            height = min(ROWS, len(a) - first)
            rows[:height] = formats.decode(a[first : first + height], dtype=np.float64)
            rows[height:] = 0
            with np.errstate(over="ignore", invalid="ignore"):
                total[first : first + height] = (rows @ weight)[:height]
        return total


def _two_sum(x: np.ndarray | float, y: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """x + y rounded, and what was lost (Knuth)."""
    total = np.asarray(x + y)
    back = total - x
    return total, (x - (total - back)) + (y - back)
