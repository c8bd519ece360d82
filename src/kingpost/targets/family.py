"""Every product of the family on numpy, given a chip's arithmetic: what the CPU computes, and emulated chips must give.

What is the same on all devices stands here: the order of sums, promotion, groups, and what becomes of a total.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from kingpost import formats, scaling
from kingpost.formats import F32
from kingpost.registry import Operands, Problem
from kingpost.scaling import BLOCK
from kingpost.targets.promoted import promoted

SLICES = 32  # of the sum over planes


class Arithmetic(Protocol):
    """How a device's matrix unit adds products."""

    def block(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a @ b.T from zero, for float8 [M, k] and [N, k], k <= 128: float32 [M, N]."""

    def chain(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a @ b.T for bfloat16 [M, K] and [N, K]: float32 [M, N]."""


def solve(problem: Problem, operands: Operands, arithmetic: Arithmetic) -> None:
    """Write the result of a product, as `kingpost.registry.Problem` describes it, from and to arrays of the host.

    Rows of no group are left as they are. Of "summed_mm" the result is its slices, float32 [slices, M, N].
    """
    arrays = {name: view.numpy() for name, view in operands.views.items()}
    _SOLVERS[problem.op](_Solver(problem, arrays, dict(operands.numbers), arithmetic))


def slices(planes: int) -> int:
    """How many slices a sum over that many planes has: each of as many planes as the first, the last of fewer."""
    return -(-planes // -(-planes // SLICES))


class _Solver:
    """One problem with its arrays."""

    def __init__(
        self, problem: Problem, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float], arithmetic: Arithmetic
    ) -> None:
        self.problem, self.arrays, self.numbers, self.arithmetic = problem, arrays, numbers, arithmetic
        self.d = arrays["d"]

    def mm(self) -> None:
        self._finish(..., ..., self._total(self._part("a"), self._part("b")))

    def batched_mm(self) -> None:
        for plane in range(len(self.d)):
            self._finish(plane, plane, self._total(self._part("a", plane), self._part("b", plane)))

    def summed_mm(self) -> None:
        a, b = self.arrays["a"], self.arrays["b"]
        each = -(-len(a) // SLICES)
        for i in range(len(self.d)):
            chained = (np.concatenate([_whole_steps(p) for p in x[i * each : (i + 1) * each]], axis=1) for x in (a, b))
            self.d[i] = self.arithmetic.chain(*chained)

    def grouped_mm(self) -> None:
        for group, rows in self._groups():
            if self.problem.by == "counts":
                place: Any = (group, rows)
            else:
                place = rows
            self._finish(place, group, self._total(self._part("a", place), self._part("b", group)))

    def grouped_mm_k(self) -> None:
        begin = blocks = 0
        for group, end in enumerate(self.arrays["ends"].tolist()):
            size = -(-(end - begin) // BLOCK)
            part = np.s_[:, begin:end], np.s_[:, blocks : blocks + size]
            self._finish(group, group, self._total(*(self._columns(name, *part) for name in "ab")))
            begin, blocks = end, blocks + size

    def _groups(self) -> list[tuple[int, Any]]:
        """Each group and its rows."""
        groups, index = len(self.arrays["b"]), self.arrays[self.problem.by or ""]
        if self.problem.by == "counts":
            return [(group, slice(0, count)) for group, count in enumerate(index.tolist())]
        if self.problem.by == "rows":
            return [(group, np.flatnonzero(index == group)) for group in range(groups)]
        ends = [0, *index.tolist()]
        return [(group, slice(ends[group], ends[group + 1])) for group in range(groups)]

    def _part(self, name: str, place: Any = ...) -> tuple[np.ndarray, np.ndarray | None]:
        """An operand [rows, K] at a place of its array, and its scales by row and block, float32 [rows, blocks]."""
        data, scales = self.arrays[name], self.arrays.get(f"scale_{name}")
        if scales is None:
            return data[place], None
        kind = scaling.named(getattr(self.problem, f"{name}_scaling") or "")
        if isinstance(place, (np.ndarray, slice)) and kind.block[0] is None:
            place_of_scales: Any = ...  # one for all rows
        else:
            place_of_scales = place
        part = data[place]
        return part, kind.by_block(scales[place_of_scales], part.shape)

    def _columns(self, name: str, columns: Any, blocks: Any) -> tuple[np.ndarray, np.ndarray | None]:
        scales = self.arrays.get(f"scale_{name}")
        return self.arrays[name][columns], None if scales is None else scales[blocks]

    def _total(self, a: tuple[np.ndarray, np.ndarray | None], b: tuple[np.ndarray, np.ndarray | None]) -> np.ndarray:
        """The float32 total [M, N] of two operands with their scales."""
        (left, left_scales), (right, right_scales) = a, b
        if left_scales is None or right_scales is None:
            return self.arithmetic.chain(left, right)
        span = scaling.named(self.problem.a_scaling or "").columns
        return promoted(self.arithmetic.block, left, left_scales, right, right_scales, span)

    def _finish(self, place: Any, plane: Any, total: np.ndarray) -> None:
        """d = round(alpha * total + c + bias) at a place of d."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.problem.alpha:
                total = total * np.float32(self.numbers["alpha"])
            if self.problem.c:
                total = total + _float32(self.arrays["c"][place])
            if self.problem.bias is not None:
                bias = self.arrays["bias"]
                total = total + _float32(bias if bias.ndim == 1 else bias[plane])
        self.d[place] = formats.converted(total, self.problem.out_format)


_SOLVERS = {
    "mm": _Solver.mm,
    "tile_product": _Solver.mm,
    "batched_mm": _Solver.batched_mm,
    "summed_mm": _Solver.summed_mm,
    "grouped_mm": _Solver.grouped_mm,
    "grouped_mm_k": _Solver.grouped_mm_k,
}


def _whole_steps(x: np.ndarray) -> np.ndarray:
    """x [rows, K] with zeros up to a multiple of 16 columns, a step of any tensor core."""
    return np.pad(x, ((0, 0), (0, -x.shape[1] % 16)))


def _float32(x: np.ndarray) -> np.ndarray:
    return x if x.dtype == F32.dtype else formats.decode(x)
