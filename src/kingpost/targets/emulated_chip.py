"""A chip with lanes on the emulator: what every maker's emulated devices have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kingpost import emulate, formats
from kingpost.program import Launch, Target
from kingpost.registry import AnyProblem, Candidate, HostMemory
from kingpost.scaling import ScaledTensor
from kingpost.targets import portable_candidates
from kingpost.targets.promoted import promoted


class EmulatedChip(HostMemory):
    """A target with the portable kernels. A maker adds `text`, `block_product`, and candidates of the chip's own."""

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

    def block_product(self, a_codes: np.ndarray, b_codes: np.ndarray) -> np.ndarray:
        """What the chip's matrix unit gives from zero for codes uint8 [M, k] and [N, k], k <= 128: float32 [M, N]."""
        raise NotImplementedError(f"{self.name} states no arithmetic of its own")

    def model(self, a: ScaledTensor, b: ScaledTensor, out_dtype: Any) -> np.ndarray:
        """The product as the chip's arithmetic gives it, without any program: a scaled "1x128", b.T "128x128"."""
        weight = b.T
        a_codes, b_codes = (np.asarray(t.data).view(np.uint8) for t in (a, weight))
        b_scales = weight.scaling.by_block(np.asarray(weight.scales), weight.shape)
        total = promoted(self.block_product, a_codes, np.asarray(a.scales), b_codes, b_scales)
        return formats.converted(total, formats.named(out_dtype))
