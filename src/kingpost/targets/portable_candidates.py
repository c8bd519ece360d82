"""What every device with lanes has for nothing: the portable kernels, written once and lowered by its target."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from kingpost.formats import FLOAT8, Format
from kingpost.program import Launch, Target
from kingpost.registry import AnyProblem, Elementwise, Operands, Problem


@dataclass(frozen=True)
class PortableCandidate:
    """The portable kernel for a problem, on a target."""

    problem: AnyProblem
    target: Target

    @property
    def name(self) -> str:
        return f"portable {self.problem.op}"

    def microseconds(self, m: int) -> float:
        return float("inf")  # any kernel made for the chip is preferred

    def bind(self, operands: Operands) -> Launch:
        kernel = importlib.import_module(f"kingpost.portable.{self.problem.op}")
        options = dict(self.problem.options) if isinstance(self.problem, Elementwise) else {}
        launch: Launch = kernel.launch(self.target, *operands.views.values(), **options)
        return launch


def candidates(problem: AnyProblem, target: Target) -> list[PortableCandidate]:
    """The portable kernel for a problem; none if there is none, or the target's e4m3 is not the one asked for."""
    if isinstance(problem, Problem):
        offered = target.tile_product is not None and (problem.op, problem.a_scaling, problem.b_scaling) == (
            "tile_product", "1x128", "128x128")  # fmt: skip
    else:
        offered = True
    offered &= all(format is target.float8 for format in _formats(problem) if format in FLOAT8)
    return [PortableCandidate(problem, target)] if offered else []


def _formats(problem: AnyProblem) -> list[Format]:
    if isinstance(problem, Problem):
        return [problem.a_format, problem.b_format]
    return [format for _, format in problem.formats]
