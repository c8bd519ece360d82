"""Whether the emulator notices a mutant."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kingpost import emulate
from kingpost.assemble import AssemblyError
from kingpost.checker import equivalence
from kingpost.checker.cases import Case
from kingpost.checker.mutation import Mutant, Refused
from kingpost.emulate import EmulationError, Finding, Schedule

SCHEDULES = ("late", "early", "random")
PATIENCE = 20  # a mutant may take so many times the steps of the program it was made from


@dataclass(frozen=True)
class Verdict:
    """caught: whether it was noticed. how: by which finding, "wrong result", "deadlock", "hang", or who refused it.
    equivalent: of one that was not, why it does the same as the program it was made from; None for a miss."""

    caught: bool
    how: str
    equivalent: str | None = None


def verdict(case: Case, mutant: Mutant, schedules: Sequence[str] = SCHEDULES, seed: int = 0) -> Verdict:
    """Run a mutant of a case's launch under one schedule after another, until it is noticed.

    A run is stopped at `PATIENCE` times the steps of the clean one, and called a hang. seed: of "random".
    Raises ValueError for a case that is wrong by itself, EmulationError for one with a finding.
    """
    for order in schedules:
        trial = case.make()
        try:
            weakened = mutant.apply(trial.launch)
        except Refused as error:
            return Verdict(True, f"refused by the builder: {error}")
        limited = _Limited(emulate.schedule(order, seed), PATIENCE * _steps(case, order, seed))
        try:
            emulate.run(weakened, limited)
        except EmulationError as error:
            kind = error.finding.kind
            return Verdict(True, kind if kind in ("deadlock", "hang") else str(error.finding))
        if trial.wrong() is not None:
            return Verdict(True, "wrong result")
    try:
        return Verdict(False, "", equivalence.reason(case.make().launch, mutant))
    except AssemblyError as error:
        return Verdict(True, f"refused by the assembler: {error}")


@functools.lru_cache(maxsize=64)
def _steps(case: Case, order: str, seed: int) -> int:
    """The steps that a case's own launch takes. Raises ValueError if it is not clean: its mutants tell nothing."""
    trial, counted = case.make(), _Limited(emulate.schedule(order, seed), None)
    emulate.run(trial.launch, counted)
    if wrong := trial.wrong():
        raise ValueError(f"case {case.name} is wrong before anything is weakened: {wrong}")
    return counted.steps


class _Limited(Schedule):
    """A schedule that stops after so many steps: instructions executed and choices made."""

    def __init__(self, schedule: Schedule, most: int | None) -> None:
        self.schedule, self.most, self.steps = schedule, most, 0
        self.name, self.immediate = schedule.name, schedule.immediate

    def pick(self, warps: Any, actions: Any) -> Any:
        self._step()
        return self.schedule.pick(warps, actions)

    def preempts(self) -> bool:
        self._step()
        return self.schedule.preempts()

    def _step(self) -> None:
        self.steps += 1
        if self.most is not None and self.steps > self.most:
            raise EmulationError(Finding("hang", f"no end after {self.most} steps", "the launch", None))
