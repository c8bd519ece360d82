"""Hopper's arithmetic, and what equal results are."""

from __future__ import annotations

from typing import Any

from kingpost.registry import emulator
from kingpost.targets.samples import difference

MODEL: Any = emulator("sm_90a")


def same_bits(x: Any, y: Any) -> bool:
    """Equal to the bit, any NaN equal to any other."""
    return x.shape == y.shape and difference(x, y) is None
