"""What kingpost is given: a device, its candidates for a problem, and the family that the entry point names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kingpost.formats import E4M3
from kingpost.registry import AnyProblem, Device, Elementwise, HostMemory, Operands, Problem
from millrace import kernels
from millrace.executor import Executor
from millrace.isa import Program


@dataclass(frozen=True)
class Product:
    """The one way to multiply."""

    problem: Problem
    name: str = "64 x 64, one block ahead"

    def microseconds(self, m: int) -> float:
        return 1e-6 * m * self.problem.n * self.problem.k

    def bind(self, operands: Operands) -> Program:
        (m, k), n = operands["a"].shape, operands["b"].shape[0]
        return Program(list(kernels.product(m, n, k)), operands.views)


@dataclass(frozen=True)
class Cast:
    """The one way to quantise."""

    problem: Elementwise
    name: str = "drain quantised"

    def microseconds(self, m: int) -> float:
        return 1e-3 * m

    def bind(self, operands: Operands) -> Program:
        options = dict(self.problem.options)
        m, k = operands["x"].shape
        instructions = kernels.cast(m, k, options["eps"], bool(options["power_of_two"]))
        return Program(list(instructions), operands.views)


class Millrace(HostMemory):
    """The accelerator, imagined on this machine's CPU."""

    name = "millrace"
    description = "an imaginary accelerator: two copy queues and a matrix unit"

    def candidates(self, problem: AnyProblem) -> Sequence[Product | Cast]:
        match problem:
            case Problem(op="mm" | "tile_product", n=n, k=k):
                plain = Problem(problem.op, n, k, E4M3, E4M3, "1x128", "128x128", problem.out_format)
                return [Product(problem)] if problem == plain else []  # nothing added, no other order, no groups
            case Elementwise(op="cast") if dict(problem.formats)["data"] is E4M3 and _known(dict(problem.options)):
                return [Cast(problem)]
        return []  # kingpost then says that this device has no kernel for it

    def prepare(self, launch: Program) -> Callable[[int], None]:
        return lambda stream: Executor(launch).run()


def _known(options: dict[str, Any]) -> bool:
    """Whether a cast is one that the drain does: scaled by row and divided, not multiplied by reciprocals."""
    return options["scaling"] == "1x128" and not any(options.get(f"reciprocal_{of}") for of in ("maximum", "scale"))


class Family:
    """One device, called by the family's name alone."""

    def present(self) -> Sequence[Device]:
        return [DEVICE]

    def find(self, which: str) -> Device:
        if which:
            raise ValueError(f"device is 'millrace:{which}'; 'millrace' is wanted")
        return DEVICE


DEVICE = Millrace()
FAMILY = Family()
