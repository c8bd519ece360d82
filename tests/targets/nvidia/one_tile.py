"""Launches of the one-tile products of Blackwell on random operands, and what the arithmetic model gives for them."""

from __future__ import annotations

import numpy as np

from kingpost.program import Launch
from kingpost.targets.nvidia.blackwell_checks import ONE_TILE as CASES
from kingpost.targets.nvidia.blackwell_checks import OneTile as Case
from kingpost.targets.nvidia.blackwell_checks import codes
from kingpost.targets.nvidia.kernels.sm100_one_tile import sm100_f8

__all__ = ["CASES", "Case", "codes", "launch", "sm100_f8"]


def launch(case: Case, seed: int = 0) -> tuple[Launch, np.ndarray, np.ndarray]:
    """The launch, the array that it writes, and what must be there."""
    return case.launch(seed)
