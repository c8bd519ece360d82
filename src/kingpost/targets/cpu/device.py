"""The CPU as a device: products on numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kingpost.formats import E4M3, E4M3FNUZ
from kingpost.registry import AnyProblem, Candidate, Device, Elementwise, HostMemory, Operands, Problem
from kingpost.targets.cpu import elementwise
from kingpost.targets.cpu.products import product

OPS = {"mm", "tile_product"}
FORMATS = {E4M3, E4M3FNUZ}
SCALINGS = {"1x128", "128x128", "row", "tensor"}


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
        a, scale_a, b, scale_b, d = (view.numpy() for view in self.operands.views.values())
        problem = self.problem
        d[...] = product(a, scale_a, problem.a_scaling, b, scale_b, problem.b_scaling, problem.out_format)


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
        known = {problem.a_format, problem.b_format} <= FORMATS and {problem.a_scaling, problem.b_scaling} <= SCALINGS
        return [NumpyProduct(problem)] if known and problem.op in OPS and problem.order == "ascending" else []

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
