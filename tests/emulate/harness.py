"""Small programs, emulated: a body and its arrays to a finished block, or to what the emulator found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kingpost.arrays import view
from kingpost.emulate import Block, EmulationError, Report, Schedule, schedule
from kingpost.emulate.memory import GlobalMemory
from kingpost.program import Builder, Launch, Target, TensorMap, u64


def build(
    body: Callable[..., None],
    grid: int = 1,
    maps: dict[str, tuple] | None = None,
    target: Target | str = "sm_90a",
    **arrays: np.ndarray,
) -> Launch:
    """The launch of `body(k, ...)`, which gets the address of each array, and of each map, (array, box, swizzle)."""
    k = Builder(body.__name__, target)
    given: dict[str, Any] = {name: k.parameter(name, u64) for name in arrays}
    views = {name: view(array) for name, array in arrays.items()}
    arguments: dict[str, Any] = {name: each.pointer for name, each in views.items()}
    for name, (array, box, swizzle) in (maps or {}).items():
        given[name] = k.tensor_map(name, view(array).format, box, swizzle)
        arguments[name] = TensorMap(given[name].type, view(array))
    body(k, **given)
    return Launch(k.finish({}), grid, arguments, tuple(views.values()))


def run(
    body: Callable[..., None], order: str | Schedule = "late", seed: int = 0, index: int = 0, **given: Any
) -> Block:
    """One block of `body`, run to its end, with everything it leaves."""
    launch = build(body, **given)
    mapped = [argument.view for argument in launch.arguments.values() if isinstance(argument, TensorMap)]
    memory = GlobalMemory([*mapped, *launch.views])
    chosen = schedule(order, seed) if isinstance(order, str) else order
    block = Block(launch.program, index, launch.grid, launch.arguments, memory, chosen, Report(chosen.name))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        block.run()
    return block


@contextmanager
def found(kind: str, *words: str) -> Iterator[pytest.ExceptionInfo[EmulationError]]:
    """The block stops at a finding of this kind that says these words and names a line of the test."""
    with pytest.raises(EmulationError) as info:
        yield info
    finding = info.value.finding
    assert finding.kind == kind, str(finding)
    assert [word for word in words if word not in str(finding)] == [], str(finding)
    assert ".py:" in str(finding) and "kingpost/emulate" not in str(finding), str(finding)
