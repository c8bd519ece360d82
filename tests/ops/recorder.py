"""A device that computes nothing and remembers what it was asked: the problems and operands that an op makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kingpost.registry import AnyProblem, HostMemory, Operands, Problem


@dataclass(frozen=True)
class Recorded:
    problem: AnyProblem
    name: str = "recorded"

    def microseconds(self, m: int) -> float:
        return 1.0

    def bind(self, operands: Operands) -> tuple[AnyProblem, Operands]:
        return self.problem, operands


@dataclass(eq=False)
class Recorder(HostMemory):
    orders: tuple[str, ...] = ("ascending",)
    name: str = "recorder"
    description: str = ""
    keeps_calls: bool = False
    prepared: int = 0
    asked: list[tuple[AnyProblem, Operands]] = field(default_factory=list)

    def candidates(self, problem: AnyProblem) -> Sequence[Recorded]:
        return [] if isinstance(problem, Problem) and problem.order not in self.orders else [Recorded(problem)]

    def prepare(self, launch: tuple[AnyProblem, Operands]) -> Callable[[int], None]:
        self.prepared += 1
        return lambda stream: self.asked.append(launch)

    @property
    def products(self) -> list[tuple[Problem, Operands]]:
        return [(problem, operands) for problem, operands in self.asked if isinstance(problem, Problem)]

    @property
    def last(self) -> tuple[Problem, Operands]:
        return self.products[-1]
