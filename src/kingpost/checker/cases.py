"""What the checker runs: kernels with operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kingpost.program import Launch


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel with operands. make: fresh operands each time, small."""

    name: str  # unique, e.g. "sm90_fp8: rows, 128x128"
    kernel: str  # the program's name
    target: str  # "sm_90a"
    make: Callable[[], Trial]


@dataclass(frozen=True, eq=False)
class Trial:
    """A launch; after a run, `wrong` says what is wrong with the results, or None."""

    launch: Launch
    wrong: Callable[[], str | None]
