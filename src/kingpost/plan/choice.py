"""Choosing among a device's candidates: for every number of rows, the one whose model says the least time."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import product

from kingpost.formats import FLOAT8
from kingpost.registry import AnyProblem, Candidate, Device, Problem
from kingpost.scaling import SCALINGS

ROWS_CONSIDERED = [2**i for i in range(6)] + list(range(64, 16384 + 1, 64))


class Unsupported(ValueError):
    """The device has no kernel for the problem."""


class Plan:
    """Thresholds of M for one problem on one device: candidate i serves up to `limits[i]` rows, the last any more."""

    def __init__(self, problem: AnyProblem, device: Device) -> None:
        candidates = device.candidates(problem)
        if not candidates:
            raise Unsupported(f"{device.name} has no kernel for {problem}{_wanted(problem, device)}")
        self.limits: list[int] = []
        self.chosen: list[Candidate] = []
        for m in ROWS_CONSIDERED if len(candidates) > 1 else ROWS_CONSIDERED[-1:]:
            best = min(candidates, key=lambda candidate: candidate.microseconds(m))
            if self.chosen and self.chosen[-1] is best:
                self.limits[-1] = m
            else:
                self.chosen.append(best)
                self.limits.append(m)

    def candidate(self, m: int) -> Candidate:
        return self.chosen[min(bisect_left(self.limits, m), len(self.chosen) - 1)]


def _wanted(problem: AnyProblem, device: Device) -> str:
    """The formats and scalings that the device multiplies which are the fewest changes away: the end of an error."""
    if not isinstance(problem, Problem):
        return ""
    offered: dict[int, list[str]] = {}
    for formats, scalings in product(product(FLOAT8, repeat=2), product(SCALINGS, repeat=2)):
        (a, b), (a_scaling, b_scaling) = formats, scalings
        other = replace(problem, a_format=a, b_format=b, a_scaling=a_scaling, b_scaling=b_scaling)
        if device.candidates(other):
            changes = [x != y for x, y in zip(vars(other).values(), vars(problem).values())]
            offered.setdefault(sum(changes), []).append(f"{a} {a_scaling!r} by {b} {b_scaling!r}")
    if not offered:
        return f"; it offers no {problem.op}"
    nearest = offered[min(offered)]
    return f"; wanted {' or '.join(nearest[:4])}" + (f" or one of {len(nearest) - 4} more" if nearest[4:] else "")
