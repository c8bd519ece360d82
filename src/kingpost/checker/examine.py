"""Many cases checked, on all cores: what `kingpost check` does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context

from kingpost.checker.cases import Case, find
from kingpost.checker.check import SCHEDULES, Report, check


@dataclass(frozen=True)
class Question:
    """What is asked about each of the cases that `what`, `target` and `seed` name (see `cases.find`)."""

    what: str
    target: str | None = None
    schedules: tuple[str, ...] = SCHEDULES
    seed: int = 0

    def cases(self) -> list[Case]:
        return _found(self.what, self.target, self.seed)


def examine(question: Question) -> Iterator[Report]:
    """A report of each case, in order, as they come. The first is there only after the question is known to be good."""
    names = [case.name for case in question.cases()]
    workers = min(len(names), _cores())
    if workers < 2:
        yield from (_examined(question, name) for name in names)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from pool.map(_examined, [question] * len(names), names)


@cache
def _found(what: str, target: str | None, seed: int) -> list[Case]:
    return find(what, target, seed)


def _examined(question: Question, name: str) -> Report:
    """By the name of the case, since no case goes from process to process."""
    (case,) = (each for each in question.cases() if each.name == name)
    return check(case, schedules=question.schedules, seed=question.seed)


def _cores() -> int:
    """Those that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def clean(reports: Sequence[Report]) -> bool:
    """The verdict."""
    return all(report.clean for report in reports)
