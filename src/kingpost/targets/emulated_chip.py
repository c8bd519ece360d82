"""A chip with lanes on the emulator: what every maker's emulated devices have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kingpost import emulate
from kingpost.program import Launch, Target
from kingpost.registry import AnyProblem, Candidate, HostMemory
from kingpost.targets import portable_candidates


class EmulatedChip(HostMemory):
    """A target with the portable kernels. A maker adds `text` and `model`, and candidates of the chip's own."""

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
