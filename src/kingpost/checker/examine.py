"""Many cases checked, on all cores: what `kingpost check` does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from typing import Any

from kingpost.checker.cases import Case, find
from kingpost.checker.check import SCHEDULES, Report, check
from kingpost.checker.extras import Extra, Wish, examined
from kingpost.program import Program


@dataclass(frozen=True)
class Question:
    """What is asked about each of the cases that `what`, `target` and `seed` name (see `cases.find`).

    extras: names of `extras.EXTRAS`. sample: how many mutants of each case; None for all.
    """

    what: str
    target: str | None = None
    schedules: tuple[str, ...] = SCHEDULES
    seed: int = 0
    extras: tuple[str, ...] = ()
    sample: int | None = None

    def cases(self) -> list[Case]:
        return _found(self.what, self.target, self.seed)


@dataclass(frozen=True)
class Answer:
    """About one case. extras: only of a case that is clean."""

    report: Report
    extras: tuple[Extra, ...] = ()

    @property
    def clean(self) -> bool:
        return self.report.clean and all(extra.good for extra in self.extras)

    def as_dict(self) -> dict[str, Any]:
        """The report's, and the extras by their names."""
        extras = {extra.name: {"good": extra.good, **extra.data} for extra in self.extras}
        return {**self.report.as_dict(), "clean": self.clean, **extras}


def examine(question: Question) -> Iterator[Answer]:
    """An answer for each case, in order, as they come; on as many processes as there are cores."""
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


def _examined(question: Question, name: str) -> Answer:
    """By the name of the case, since no case goes from process to process."""
    (case,) = (each for each in question.cases() if each.name == name)
    report = check(case, schedules=question.schedules, seed=question.seed)
    if not question.extras or not report.clean:
        return Answer(report)
    wish = Wish(question.extras, question.schedules, question.sample, question.seed)
    same = [each for each in question.cases() if _program(each) is _program(case)]
    return Answer(report, tuple(examined(case, same, wish)))


@cache
def _program(case: Case) -> Program:
    return case.make().launch.program


def _cores() -> int:
    """Those that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
