"""The rebinding trap: `x = x + 1` inside a run-time loop makes a new register that the next turn would not see."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from kingpost.program.instruction import Source
from kingpost.program.registers import Registers, Storage


class RebindingError(RuntimeError):
    """A name that held registers before a run-time loop holds others after its body."""


def user_frame() -> FrameType:
    """The innermost frame outside the virtual machine."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("kingpost.program.", "contextlib", "functools")
    ):
        frame = frame.f_back
    return frame


def bindings(frame: FrameType) -> dict[str, Registers]:
    """What a frame's names hold in registers: directly, in lists, tuples and dicts, and in objects' attributes."""
    found: dict[str, Registers] = {}
    for name, value in frame.f_locals.items():
        _collect(name, value, found, deeper=True)
    return found


def _collect(name: str, value: Any, found: dict[str, Registers], deeper: bool) -> None:
    if isinstance(value, Registers):
        found[name] = value
    elif deeper:
        if isinstance(value, (list, tuple)):
            items = [(f"{name}[{i}]", item) for i, item in enumerate(value)]
        elif isinstance(value, dict):
            items = [(f"{name}[{key!r}]", item) for key, item in value.items()]
        elif type(value).__module__.startswith("kingpost.program."):
            return  # the builder's own state
        else:
            items = [(f"{name}.{key}", item) for key, item in getattr(value, "__dict__", {}).items()]
        for label, item in items:
            _collect(label, item, found, deeper=False)


def refuse_rebinding(
    before: dict[str, Registers], after: dict[str, Registers], read: set[Storage], source: Source
) -> None:
    """Raise if a name was rebound between two looks while the loop's body reads (`read`) what it held before."""
    for name, old in before.items():
        new = after.get(name)
        if new is not None and not new.same(old) and old.storage in read:
            raise RebindingError(
                f"{name} held {old!r} before the loop at {source} and holds {new!r} after its body: the next turn "
                f"would still read {old!r}. Write the register in place ({name} += ..., k.set({name}, ...)) to carry "
                "it, or give the new value another name."
            )
