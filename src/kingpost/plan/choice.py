"""Choosing among a device's candidates: for every number of rows, the one whose model says the least time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

from kingpost.formats import BF16, F16, F32, FLOAT8, Format
from kingpost.registry import AnyProblem, Candidate, Device, Problem
from kingpost.scaling import SCALINGS

MOST_ROWS = 16384  # told apart
OUT_FORMATS = (BF16, F16, F32)
PLAIN: dict[str, dict[str, Any]] = {  # what may be done to a total, and the fields of a problem that does not
    "c": {"c": False, "in_place": False},
    "bias": {"bias": None},
    "alpha": {"alpha": False},
}


class Unsupported(ValueError):
    """The device has no kernel for the problem."""


class Plan:
    """A device's candidates for a problem, and the one chosen for each number of rows that was asked for.

    Of a problem in another order of sums the ascending one serves where the device has none.
    """

    def __init__(self, problem: AnyProblem, device: Device) -> None:
        self.candidates: Sequence[Candidate] = device.candidates(problem)
        if not self.candidates and isinstance(problem, Problem) and problem.order != "ascending":
            problem = replace(problem, order="ascending")
            self.candidates = device.candidates(problem)
        if not self.candidates:
            raise Unsupported(f"{device.name} has no kernel for {problem}{_wanted(problem, device)}")
        self.chosen: dict[int, Candidate] = {}

    def candidate(self, rows: int) -> Candidate:
        rows = _considered(rows)
        found = self.chosen.get(rows)
        if found is None:
            found = self.chosen[rows] = min(self.candidates, key=lambda candidate: candidate.microseconds(rows))
        return found


def _considered(rows: int) -> int:
    """The next power of two up to 32, else the next multiple of 64: numbers of rows that share a choice."""
    if rows <= 32:
        return 1 << max(rows - 1, 0).bit_length()
    return min(-(-rows // 64) * 64, MOST_ROWS)


def _wanted(problem: AnyProblem, device: Device) -> str:
    """What the device offers that is the fewest changes away: the end of an error."""
    if not isinstance(problem, Problem):
        return ""
    for others in (_plainer(problem), _of_other_factors(problem)):
        nearest: dict[str, None] = {}
        fewest = None
        for changes, words, other in others:
            if nearest and changes != fewest:
                break
            if device.candidates(other):
                nearest[words], fewest = None, changes
        if nearest:
            more = f" or one of {len(nearest) - 4} more" if len(nearest) > 4 else ""
            return f"; wanted {' or '.join([*nearest][:4])}{more}"
    return f"; it offers no {problem.op}"


_Other = tuple[int, str, Problem]  # how many changes away, these in words, and the problem


def _plainer(problem: Problem) -> Iterator[_Other]:
    """The same factors with less done to them, fewest changes first."""
    changes = [(f"no {name}", fields) for name, fields in PLAIN.items() if getattr(problem, name)]
    changes += [(f"a result in {out}", {"out_format": out}) for out in OUT_FORMATS if out is not problem.out_format]
    changes += [(f"{x} with K contiguous", {f"{x}_major": "k"}) for x in "ab" if getattr(problem, f"{x}_major") != "k"]
    for count in range(1, len(changes) + 1):
        for some in combinations(changes, count):
            fields = {name: value for _, change in some for name, value in change.items()}
            yield count, " and ".join(words for words, _ in some), replace(problem, **fields)


def _of_other_factors(problem: Problem) -> Iterator[_Other]:
    """Other formats and scalings, with nothing done to the total, fewest changes first."""
    factors: list[tuple[Format, Format, str | None, str | None]] = [(BF16, BF16, None, None)]
    factors += product(FLOAT8, FLOAT8, SCALINGS, SCALINGS)
    given = (problem.a_format, problem.b_format, problem.a_scaling, problem.b_scaling)
    by_changes = sorted((sum(x != y for x, y in zip(factor, given)), i) for i, factor in enumerate(factors))
    plain = replace(problem, a_major="k", b_major="k", c=False, in_place=False, bias=None, alpha=False)
    for (changes, i), out in product(by_changes, (problem.out_format, BF16, F32)):
        a, b, a_scaling, b_scaling = factors[i]
        other = replace(plain, a_format=a, b_format=b, a_scaling=a_scaling, b_scaling=b_scaling, out_format=out)
        yield changes, "bfloat16" if a is BF16 else f"{a} {a_scaling!r} by {b} {b_scaling!r}", other
