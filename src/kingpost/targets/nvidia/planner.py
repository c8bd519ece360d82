"""Ways to solve a product on sm_90a."""

from __future__ import annotations

from collections.abc import Sequence

from kingpost.registry import AnyProblem, Candidate, Problem
from kingpost.targets.nvidia import bf16_candidates, fp8_candidates
from kingpost.targets.nvidia.chip import Chip

TARGET = "sm_90a"


def candidates(problem: AnyProblem, chip: Chip) -> Sequence[Candidate]:
    """Every configuration of a kernel made for the chip; none if no such kernel computes the problem."""
    if not isinstance(problem, Problem):
        return []
    return [*fp8_candidates.candidates(problem, chip), *bf16_candidates.candidates(problem, chip)]
