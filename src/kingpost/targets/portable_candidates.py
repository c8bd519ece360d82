"""What every device with lanes has for nothing: the portable kernels, written once and lowered by its target."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from kingpost.formats import BF16, F32, FLOAT8, Format
from kingpost.program import Launch, Target
from kingpost.registry import AnyProblem, Operands, Problem

PRODUCTS = {"mm", "tile_product"}  # one kernel: it takes any sizes, tile by tile


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
        if isinstance(self.problem, Problem):
            file, options = "tile_product", {}
        else:
            file, options = self.problem.op, dict(self.problem.options)
        kernel = importlib.import_module(f"kingpost.portable.{file}")
        launch: Launch = kernel.launch(self.target, *operands.views.values(), **options)
        return launch


def candidates(problem: AnyProblem, target: Target) -> list[PortableCandidate]:
    """The portable kernel for a problem; none if there is none, or the target's e4m3 is not the one asked for."""
    if isinstance(problem, Problem):
        offered = target.tile_product is not None and problem.op in PRODUCTS and problem.order == "ascending"
        offered &= (problem.a_scaling, problem.b_scaling) == ("1x128", "128x128")
        offered &= (problem.a_major, problem.b_major) == ("k", "k") and problem.out_format in (BF16, F32)
        offered &= not (problem.c or problem.alpha or problem.bias)
    else:
        offered = True
    offered &= all(format is target.float8 for format in _formats(problem) if format in FLOAT8)
    return [PortableCandidate(problem, target)] if offered else []


def _formats(problem: AnyProblem) -> list[Format]:
    if isinstance(problem, Problem):
        return [problem.a_format, problem.b_format]
    return [format for _, format in problem.formats]
