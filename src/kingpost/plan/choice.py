"""Choosing among a device's candidates: for every number of rows, the one whose model says the least time."""

from __future__ import annotations

from bisect import bisect_left

from kingpost.registry import AnyProblem, Candidate, Device

ROWS_CONSIDERED = [2**i for i in range(6)] + list(range(64, 16384 + 1, 64))


class Unsupported(ValueError):
    """The device has no kernel for the problem."""


class Plan:
    """Thresholds of M for one problem on one device: candidate i serves up to `limits[i]` rows, the last any more."""

    def __init__(self, problem: AnyProblem, device: Device) -> None:
        candidates = device.candidates(problem)
        if not candidates:
            raise Unsupported(f"{device.name} has no kernel for {problem}")
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
