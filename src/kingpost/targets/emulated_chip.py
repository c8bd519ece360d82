"""A chip with lanes on the emulator: what every maker's emulated devices have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kingpost import emulate, formats
from kingpost.arrays import view
from kingpost.program import Launch, Target
from kingpost.registry import AnyProblem, Candidate, Case, HostMemory, Operands, Problem, product_operands
from kingpost.scaling import ScaledTensor
from kingpost.targets import family, portable_candidates, portable_checks


class EmulatedChip(HostMemory):
    """A target with the portable kernels. A maker adds `text`, `block`, and the chip's own candidates and cases."""

    def __init__(self, target: Target, chip: str) -> None:
        self.target = target
        self.name = f"emulated:{target.name}"
        self.description = f"{chip}, its instructions emulated on this machine's CPU"

    def candidates(self, problem: AnyProblem) -> Sequence[Candidate]:
        return portable_candidates.candidates(problem, self.target)

    def prepare(self, launch: Launch) -> Callable[[int], None]:
        def call(stream: int) -> None:
            emulate.run(launch, "early")

        return call

    def cases(self) -> Sequence[Case]:
        """The portable kernels on this target."""
        return portable_checks.cases(self.target, self)

    # What the chip's matrix unit gives: `kingpost.targets.family.Arithmetic`

    def block(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a @ b.T from zero, for float8 [M, k] and [N, k], k <= 128: float32 [M, N]."""
        raise NotImplementedError(f"{self.name} states no arithmetic of its own")

    def chain(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a @ b.T for bfloat16 [M, K] and [N, K]: float32 [M, N]."""
        raise NotImplementedError(f"{self.name} states no arithmetic of bfloat16 products")

    def solve(self, problem: Problem, operands: Operands) -> None:
        """Write the result of a product as the chip's arithmetic gives it, without any program."""
        family.solve(problem, operands, self)

    def model(self, a: ScaledTensor, b: ScaledTensor, out_dtype: Any) -> np.ndarray:
        """The product of two scaled tensors, a [M, K] and b [K, N], as the chip's arithmetic gives it."""
        out, weight = formats.named(out_dtype), b.T
        d = np.empty((a.shape[0], weight.shape[0]), out.dtype)
        scalings = str(a.scaling), str(weight.scaling)
        n, k = weight.shape
        problem = Problem("mm", n, k, a.format, weight.format, *scalings, out)
        self.solve(problem, product_operands(*map(view, (a.data, a.scales, weight.data, weight.scales, d))))
        return d
