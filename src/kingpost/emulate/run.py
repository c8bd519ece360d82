"""Emulate a launch, one cluster of blocks (or one block) after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from kingpost.emulate.block import Block, run_together
from kingpost.emulate.memory import GlobalMemory
from kingpost.emulate.order import Order
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
        for first in _first_blocks(launch, blocks):
            cluster = _cluster(launch, first, memory, chosen, report)
            for block in cluster:
                observe(block)
            run_together(cluster)
            report.blocks += len(cluster)
    report.seconds = time.perf_counter() - began
    return report


def _first_blocks(launch: Launch, blocks: Iterable[int] | None) -> Iterable[int]:
    """The first block of each cluster that has one of `blocks`."""
    size = launch.program.cluster
    return range(0, launch.grid, size) if blocks is None else dict.fromkeys(index // size * size for index in blocks)


def _cluster(launch: Launch, first: int, memory: GlobalMemory, schedule: Schedule, report: Report) -> list[Block]:
    program, size = launch.program, launch.program.cluster
    order = Order(memory.ledger, first // size)
    blocks = [
        Block(program, first + rank, launch.grid, launch.arguments, memory, schedule, report, order)
        for rank in range(size)
    ]
    for block in blocks:
        block.peers = blocks
    return blocks
