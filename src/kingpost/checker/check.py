"""One kernel checked: run under several schedules, and what was found."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kingpost import emulate
from kingpost.arrays import View, view
from kingpost.emulate import EmulationError, Finding
from kingpost.program import Launch, Program, TensorMap
from kingpost.registry import Case, Trial

SCHEDULES = ("late", "early", "random")
VERSION = 1  # of `Report.as_dict`
COUNTERS = ("blocks", "instructions", "bank_conflicts")  # of the emulator's report


@dataclass(frozen=True)
class Run:
    """A kernel under one schedule. counters: of a run that came to its end, what it executed, by name."""

    schedule: str
    findings: tuple[Finding, ...]
    counters: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class Report:
    """What came of checking a kernel."""

    name: str
    kernel: str
    target: str
    runs: tuple[Run, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def findings(self) -> list[Finding]:
        """Of all schedules."""
        return [finding for run in self.runs for finding in run.findings]

    @property
    def seconds(self) -> float:
        """Of emulation, all runs."""
        return sum(run.seconds for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. The keys stay from release to release; where one changes, "version" does."""
        runs = [
            {
                "schedule": run.schedule,
                "findings": [_finding(finding) for finding in run.findings],
                "counters": dict(run.counters),
                "seconds": run.seconds,
            }
            for run in self.runs
        ]
        head = {"version": VERSION, "name": self.name, "kernel": self.kernel, "target": self.target}
        return {**head, "clean": self.clean, "runs": runs}

    def __str__(self) -> str:
        verdict = "clean" if self.clean else "not clean"
        schedules = ", ".join(run.schedule for run in self.runs)
        lines = [f"{verdict}: {self.name} for {self.target}, under {schedules}"]
        lines += [f"  {run.schedule}: {finding}" for run in self.runs for finding in run.findings]
        return "\n".join(lines)


def check(what: Any, *, schedules: Sequence[str] = SCHEDULES, seed: int = 0, **more: Any) -> Report:
    """Run a kernel on the emulator under each of the schedules, "late", "early" and "random", and report what is wrong.

    what: a Launch, a Case or a Trial; or a Program, then `grid` is how many blocks are launched (default 1), and the
    other arguments are the program's by the names of its parameters: numbers, and arrays of the host for addresses and
    tensor maps. wrong: for a Launch or a Program, a function that looks at the results after a run and returns what is
    wrong with them, or None; without it, results must be the same under every schedule. seed: of "random".

    Every schedule finds the arrays as they were; they are left as the last one left them.
    """
    if not schedules:
        raise ValueError(f"schedules is {schedules!r}; at least one of {', '.join(SCHEDULES)} is wanted")
    case = cased(what, **more)
    runs = [_run(case.make(), schedule, seed) for schedule in schedules]
    return Report(case.name, case.kernel, case.target, tuple(runs))


def assert_clean(what: Any, **options: Any) -> None:
    """`check`, as one line of a test: raises AssertionError with the report if anything is found."""
    __tracebackhide__ = True
    report = check(what, **options)
    assert report.clean, str(report)


def cased(
    what: Any,
    name: str | None = None,
    wrong: Callable[[], str | None] | None = None,
    grid: int = 1,
    **arguments: Any,
) -> Case:
    """What `check` takes, as a Case; a Case as it is."""
    if isinstance(what, Program):
        views = {key: _argument(key, value) for key, value in arguments.items()}
        what, arguments = Launch.of(what, grid, **views), {}
    if arguments:
        raise TypeError(f"{', '.join(arguments)} given with {type(what).__name__}; that is wanted with a Program alone")
    if isinstance(what, Case):
        return what
    if isinstance(what, Trial):
        what, wrong = what.launch, what.wrong
    if not isinstance(what, Launch):
        raise TypeError(f"{type(what).__name__} cannot be checked; a Launch, a Program, a Trial or a Case is wanted")
    program = what.program
    return Case(name or program.name, program.name, program.target, _Again(what, wrong).trial)


def _argument(name: str, value: Any) -> View | int | float:
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, (View, int, float)) else view(value, name)


def _run(trial: Trial, schedule: str, seed: int) -> Run:
    try:
        report = emulate.run(trial.launch, schedule, seed)
    except EmulationError as error:
        return Run(schedule, (error.finding,), {}, 0.0)
    wrong = trial.wrong()
    findings = (Finding("wrong result", wrong, "the launch", None),) if wrong else ()
    counters = {name: getattr(report, name) for name in COUNTERS if hasattr(report, name)}
    return Run(schedule, findings, counters, report.seconds)


def _finding(finding: Finding) -> dict[str, Any]:
    source = finding.source
    return {
        "kind": finding.kind,
        "message": finding.message,
        "agent": finding.agent,
        "file": source.file if source else None,
        "line": source.line if source else None,
    }


class _Again:
    """A launch to be run more than once: each time from the memory that it found at first."""

    def __init__(self, launch: Launch, wrong: Callable[[], str | None] | None) -> None:
        self.launch, self.wrong = launch, wrong
        mapped = [each.view for each in launch.arguments.values() if isinstance(each, TensorMap)]
        extents = {each.extent() for each in (*mapped, *launch.views)}
        self.memory = [np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(at)) for at, size in extents if size]
        self.before = [each.copy() for each in self.memory]
        self.after: list[np.ndarray] | None = None

    def trial(self) -> Trial:
        for memory, before in zip(self.memory, self.before):
            if not np.array_equal(memory, before):  # what is read-only is left alone
                memory[...] = before
        return Trial(self.launch, self.wrong or self._different)

    def _different(self) -> str | None:
        """Whether the memory is another than after the first run."""
        if self.after is None:
            self.after = [each.copy() for each in self.memory]
            return None
        differing = sum(np.count_nonzero(now != then) for now, then in zip(self.memory, self.after))
        return f"{differing} bytes of the arrays are others than under the first schedule" if differing else None
