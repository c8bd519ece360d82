"""What every device with lanes has for nothing: the portable kernels, written once and lowered by its target."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType

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
        kernel = _kernel(self.problem.op)
        options = {} if isinstance(self.problem, Problem) else dict(self.problem.options)
        assert kernel is not None
        launch: Launch = kernel.launch(self.target, *operands.views.values(), **options)
        return launch


@functools.cache
def _kernel(op: str) -> ModuleType | None:
    """The file of the kernel for an op; None if there is none."""
    name = f"kingpost.portable.{'tile_product' if op in PRODUCTS else op}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def candidates(problem: AnyProblem, target: Target) -> list[PortableCandidate]:
    """The portable kernel for a problem; none if there is none, or the target's e4m3 is not the one asked for."""
    if isinstance(problem, Problem):
        offered = target.tile_product is not None and problem.op in PRODUCTS and problem.order == "ascending"
        offered &= (problem.a_scaling, problem.b_scaling) == ("1x128", "128x128")
        offered &= (problem.a_major, problem.b_major) == ("k", "k") and problem.out_format in (BF16, F32)
        offered &= not (problem.c or problem.alpha or problem.bias)
    else:
        offered = _kernel(problem.op) is not None
    offered &= all(format is target.float8 for format in _formats(problem) if format in FLOAT8)
    return [PortableCandidate(problem, target)] if offered else []


def _formats(problem: AnyProblem) -> list[Format]:
    if isinstance(problem, Problem):
        return [problem.a_format, problem.b_format]
    return [format for _, format in problem.formats]
