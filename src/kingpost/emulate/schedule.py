"""Who goes next: three schedules, so that a missing wait or an early release shows in at least one of them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kingpost.emulate.block import Action
    from kingpost.emulate.warp import Warp


class Schedule(ABC):
    """Picks among the warps that can run and the asynchronous actions that may happen."""

    name: str
    immediate = False  # actions happen as soon as they are submitted

    @abstractmethod
    def pick(self, warps: Sequence[Warp], actions: Sequence[Action]) -> Warp | Action: ...

    def preempts(self) -> bool:
        """Whether the running warp is interrupted after the current instruction."""
        return False


class Late(Schedule):
    """Asynchronous work happens as late as allowed: only when every warp waits, and the newest first."""

    name = "late"

    def pick(self, warps: Sequence[Warp], actions: Sequence[Action]) -> Warp | Action:
        return warps[0] if warps else actions[-1]


class Early(Schedule):
    """Asynchronous work happens at once, when it is issued."""

    name, immediate = "early", True

    def pick(self, warps: Sequence[Warp], actions: Sequence[Action]) -> Warp | Action:
        return actions[0] if actions else warps[-1]


class Random(Schedule):
    """Any order that is allowed, drawn from a seed; warps are interrupted too."""

    def __init__(self, seed: int = 0) -> None:
        self.name = f"random (seed {seed})"
        self.random = random.Random(seed)

    def pick(self, warps: Sequence[Warp], actions: Sequence[Action]) -> Warp | Action:
        choices: list[Warp | Action] = [*warps, *actions]
        return self.random.choice(choices)

    def preempts(self) -> bool:
        return self.random.random() < 0.05


def schedule(name: str, seed: int = 0) -> Schedule:
    """The schedule called "late", "early" or "random"."""
    match name:
        case "late":
            return Late()
        case "early":
            return Early()
        case "random":
            return Random(seed)
    raise ValueError(f"schedule is {name!r}; 'late', 'early' or 'random' is wanted")
