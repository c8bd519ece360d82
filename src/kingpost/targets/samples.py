"""Operands of any product of the family as a problem has them: on the host, seeded, results full of NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kingpost import formats, scaling
from kingpost.arrays import view
from kingpost.formats import F32, Format
from kingpost.registry import Operands, Problem
from kingpost.targets import family


@dataclass(frozen=True)
class Sample:
    """A problem, its arrays by the names of its operands, and its numbers."""

    problem: Problem
    arrays: dict[str, np.ndarray]
    numbers: tuple[tuple[str, float], ...]

    def operands(self, d: np.ndarray) -> Operands:
        """The operands of a launch that writes `d`; c is d's own memory if the problem says so."""
        arrays = self.arrays | ({"c": d} if self.problem.in_place else {})
        views = {name: view(array) for name, array in {**arrays, "d": d}.items()}
        return Operands(views, ("d",), self.arrays["a"].shape[-2], self.numbers)

    def result(self) -> np.ndarray:
        """An array to write: NaN, or what c holds."""
        problem, a = self.problem, self.arrays["a"]
        lead: tuple[int, ...] = a.shape[:-1]
        if problem.op == "summed_mm":
            lead = family.slices(len(a)), a.shape[1]
        if problem.op == "grouped_mm_k":
            lead = len(self.arrays["ends"]), a.shape[0]
        out = F32 if problem.op == "summed_mm" else problem.out_format
        if problem.in_place:
            return self.arrays["c"].copy()
        return np.full((*lead, problem.n), np.nan, out.dtype)

    def expected(self, arithmetic: family.Arithmetic) -> np.ndarray:
        """What a chip of that arithmetic gives; what is not written keeps what it held."""
        d = self.result()
        without = replace(self, problem=replace(self.problem, in_place=False))
        family.solve(without.problem, without.operands(d), arithmetic)
        return d


def sample(problem: Problem, m: int, index: Sequence[int] | None = None, seed: int = 0) -> Sample:
    """Operands of `m` rows (in each plane or group of "counts"). index: rows, ends or counts."""
    random = np.random.default_rng(seed)
    planes_a = problem.op in ("batched_mm", "summed_mm") or problem.by == "counts"
    planes_b = problem.op in ("batched_mm", "summed_mm", "grouped_mm")
    arrays: dict[str, np.ndarray] = {}
    for name, rows, planes in (("a", m, planes_a), ("b", problem.n, planes_b)):
        shape = (*([problem.groups] if planes else []), rows, problem.k)
        format: Format = getattr(problem, f"{name}_format")
        major, kind = getattr(problem, f"{name}_major"), getattr(problem, f"{name}_scaling")
        numbers = formats.cast(random.standard_normal(shape), format)
        arrays[name] = numbers if major == "k" else np.ascontiguousarray(numbers.swapaxes(-1, -2)).swapaxes(-1, -2)
        if kind is not None:
            how = scaling.named(kind)
            size = how.scales_shape(shape)
            if problem.op == "grouped_mm_k":
                size = rows, problem.k // 128 + problem.groups
            scales = random.uniform(0.5, 2, size).astype(np.float32)
            arrays[f"scale_{name}"] = formats.cast(scales, how.format)
    names: list[str] = [name for name in ("a", "scale_a", "b", "scale_b") if name in arrays]
    ordered = {name: arrays[name] for name in names}
    if index is not None:
        ordered[problem.by or "ends"] = np.array(index, np.int32)
    found = Sample(problem, ordered, (("alpha", 0.75),) if problem.alpha else ())
    if problem.c:
        c = replace(found, problem=replace(problem, in_place=False)).result()
        ordered["c"] = random.standard_normal(c.shape).astype(c.dtype)
    if problem.bias is not None:
        shape = (problem.groups, problem.n) if planes_b else (problem.n,)
        ordered["bias"] = random.standard_normal(shape).astype(problem.bias.dtype)
    return found


def difference(got: np.ndarray, want: np.ndarray) -> str | None:
    """Where the bits of a result are not those wanted, any NaN equal to any other; None if nowhere."""
    bits = f"u{want.itemsize}"
    differ = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(want).view(bits)
    values = [each if each.dtype.kind in "iu" else formats.decode(each, dtype=np.float64) for each in (got, want)]
    differ &= ~(np.isnan(values[0]) & np.isnan(values[1]))
    if not differ.any():
        return None
    place = tuple(int(i) for i in np.argwhere(differ)[0])
    return (
        f"{np.count_nonzero(differ)} of {differ.size} values differ from the arithmetic model's, "
        f"first {list(place)}: {values[0][place]:.9g} instead of {values[1][place]:.9g}"
    )
