"""Bugs that other projects have reported, as small programs of our own: each broken, and repaired by what it lacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kingpost.arrays import view
from kingpost.checker import Trial, assert_clean, check
from kingpost.emulate.search import Exhausted, search_launch
from kingpost.program import Builder, Launch, SharedArray, Target
from kingpost.targets.nvidia.isa.common import elect, fence_mbarrier_init, mbarrier_init

UNORDERED = "nothing orders the two"
SCHEDULES = ("late", "early", "random")
Body = Callable[[Builder, bool], None]  # writes the program; whether repaired


@dataclass(frozen=True)
class Found:
    """A finding of this kind, which says these words."""

    kind: str
    words: tuple[str, ...]


def found(kind: str, *words: str) -> Found:
    return Found(kind, words)


@dataclass(frozen=True, eq=False)
class Bug:
    """report: the project, and the number of the report. broken: what stops the broken program, one of these under each
    schedule. wanted: what the repaired one leaves in the parameter `d`. given: the other arguments."""

    report: str
    body: Body
    broken: tuple[Found, ...]
    wanted: np.ndarray
    target: Target | str
    grid: int
    given: dict[str, np.ndarray]

    def __str__(self) -> str:
        return f"{self.report} {self.body.__name__}"

    def trial(self, repaired: bool) -> Trial:
        k = Builder(self.body.__name__, self.target)
        self.body(k, repaired)
        d = np.full_like(self.wanted, 77)
        arguments = {name: view(array) for name, array in {"d": d, **self.given}.items()}

        def wrong() -> str | None:
            return None if (d == self.wanted).all() else f"{(d != self.wanted).sum()} values are wrong"

        return Trial(Launch.of(k.finish({}), self.grid, **arguments), wrong)

    def assert_found(self, schedule: str) -> None:
        """The broken program is stopped for the right reason, and told a line of its own."""
        report = check(self.trial(repaired=False), schedules=[schedule])
        (finding,) = report.findings
        said = str(finding)
        assert any(finding.kind == each.kind and all(word in said for word in each.words) for each in self.broken), said
        assert f"{Path(self.body.__code__.co_filename).name}:" in said, said

    def assert_repaired(self, schedule: str) -> None:
        assert_clean(self.trial(repaired=True), schedules=[schedule])

    def assert_searched(self) -> None:
        """No order of the repaired program goes wrong."""
        (searched,) = search_launch(self.trial(repaired=True).launch)
        assert isinstance(searched.outcome, Exhausted) and searched.settled, str(searched)


class KnownBugs:
    """A decorator of bodies, and the bugs that it has made of them."""

    def __init__(self, target: Target | str) -> None:
        self.target, self.bugs = target, list[Bug]()

    def __call__(
        self,
        report: str,
        *broken: Found,
        wanted: np.ndarray,
        grid: int = 1,
        **given: np.ndarray,
    ) -> Callable[[Body], Body]:
        def add(body: Body) -> Body:
            self.bugs.append(Bug(report, body, broken, wanted, self.target, grid, given))
            return body

        return add


# For programs with mbarriers


def barriers(k: Builder, number: int, **counts: int) -> list[SharedArray]:
    """So many mbarriers of each name, by their counts; initialised by one thread before all go on."""
    made = [k.shared_barriers(name, number) for name in counts]
    with k.when(k.warp == 0), k.mask(elect(k)):
        for array, count in zip(made, counts.values()):
            for i in range(number):
                mbarrier_init(k, array.at(i), count=count)
        fence_mbarrier_init(k)
    k.barrier()
    return made
