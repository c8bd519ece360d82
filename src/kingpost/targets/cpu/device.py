"""The CPU as a device: products on numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kingpost.formats import BF16, E4M3, E4M3FNUZ, E5M2, F16, F32
from kingpost.registry import AnyProblem, Candidate, Device, Elementwise, HostMemory, Operands, Problem
from kingpost.targets import family
from kingpost.targets.cpu import elementwise
from kingpost.targets.cpu.arithmetic import Exact

OPS = {"mm", "tile_product", "batched_mm", "summed_mm", "grouped_mm", "grouped_mm_k"}
FLOAT8 = {E4M3, E4M3FNUZ, E5M2}
OUT_FORMATS = {BF16, F16, F32}
A_SCALINGS, B_SCALINGS = {"1x128", "row", "tensor"}, {"1x128", "128x128", "row", "tensor"}
STEPPED = "1x32:ue8m0"


def computes(problem: Problem) -> bool:
    """Whether the family has the product on numpy."""
    if problem.op not in OPS or problem.out_format not in OUT_FORMATS or problem.order != "ascending":
        return False
    formats, scalings = {problem.a_format, problem.b_format}, (problem.a_scaling, problem.b_scaling)
    if scalings == (None, None):
        return formats == {BF16}
    if problem.op == "grouped_mm_k" and scalings != ("1x128", "1x128"):
        return False
    paired = problem.a_scaling in A_SCALINGS and problem.b_scaling in B_SCALINGS
    return problem.op != "summed_mm" and formats <= FLOAT8 and (paired or scalings == (STEPPED, STEPPED))


@dataclass(frozen=True)
class NumpyProduct:
    """The one candidate, and its launch once bound."""

    problem: Problem
    operands: Operands | None = None
    name: str = "numpy"

    def microseconds(self, m: int) -> float:
        return 2e-4 * m * self.problem.n * self.problem.k  # some 10 GFLOP/s; nothing else competes

    def bind(self, operands: Operands) -> NumpyProduct:
        return NumpyProduct(self.problem, operands)

    def __call__(self, stream: int) -> None:
        assert self.operands is not None
        family.solve(self.problem, self.operands, Exact())


@dataclass(frozen=True)
class NumpyPass:
    """What is not a product: the candidate, and its launch once bound."""

    problem: Elementwise
    operands: Operands | None = None
    name: str = "numpy"

    def microseconds(self, m: int) -> float:
        return 1.0  # nothing else competes

    def bind(self, operands: Operands) -> NumpyPass:
        return NumpyPass(self.problem, operands)

    def __call__(self, stream: int) -> None:
        assert self.operands is not None
        arrays = [view.numpy() for view in self.operands.views.values()]
        getattr(elementwise, self.problem.op)(*arrays, **dict(self.problem.options))


class Cpu(HostMemory):
    """numpy on this machine."""

    name, description = "cpu", "numpy, every 128-block of K exact"

    def candidates(self, problem: AnyProblem) -> Sequence[Candidate]:
        if isinstance(problem, Elementwise):
            return [NumpyPass(problem)]
        return [NumpyProduct(problem)] if computes(problem) else []

    def prepare(self, launch: Callable[[int], None]) -> Callable[[int], None]:
        return launch


class _Family:
    def present(self) -> Sequence[Device]:
        return [_CPU]

    def find(self, which: str) -> Device:
        if which:
            raise ValueError(f"device is 'cpu:{which}'; 'cpu' is wanted")
        return _CPU


_CPU = Cpu()
FAMILY = _Family()
