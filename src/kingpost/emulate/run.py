"""Emulate a launch, block after block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from kingpost.emulate.block import Block
from kingpost.emulate.memory import GlobalMemory
from kingpost.emulate.report import Report
from kingpost.emulate.schedule import Schedule, schedule
from kingpost.program import Launch, TensorMap


def run(
    launch: Launch,
    order: str | Schedule = "late",
    seed: int = 0,
    blocks: Iterable[int] | None = None,
    observe: Callable[[Block], None] = lambda block: None,
) -> Report:
    """Run a launch on host memory and report what was executed; raises `EmulationError` at the first finding.

    order: "late", "early" or "random" (drawn from `seed`). blocks: which blocks to run (default: all, in order).
    observe: is given each block before it runs.
    """
    chosen = schedule(order, seed) if isinstance(order, str) else order
    report = Report(chosen.name)
    views = [argument.view for argument in launch.arguments.values() if isinstance(argument, TensorMap)]
    memory = GlobalMemory([*views, *launch.views])
    began = time.perf_counter()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for index in range(launch.grid) if blocks is None else blocks:
            block = Block(launch.program, index, launch.grid, launch.arguments, memory, chosen, report)
            observe(block)
            block.run()
            report.blocks += 1
    report.seconds = time.perf_counter() - began
    return report
