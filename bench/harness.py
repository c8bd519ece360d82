"""Timing on a GPU: CUDA graphs of many calls over rotating buffers, implementations interleaved, medians.

The method: every implementation of a shape gets the same operands, in enough copies that together they are several
times the L2 cache; a graph of many calls walks over the copies; graphs are replayed in turn, round after round, and
timed with CUDA events. A large product is warmed up before each measurement, so that it is seen as a sustained load
sees it: held by power.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROTATED_BYTES = 320e6
LARGE_FLOP = 1.2e11
Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: the median over rounds, and the rounds."""

    median: float
    rounds: tuple[float, ...]


def copies(bytes_a_set: float) -> int:
    """How many sets of operands make up the rotation."""
    return max(2, min(64, int(-(-ROTATED_BYTES // bytes_a_set))))


def graph(calls: Sequence[Call], repeat: int) -> torch.cuda.CUDAGraph:
    """A graph of `repeat` turns over the calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        for _ in range(repeat):
            for call in calls:
                call()
    return captured


def _replay(captured: torch.cuda.CUDAGraph, times: int) -> float:
    """Microseconds for `times` replays."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        captured.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def measure(
    implementations: dict[str, Sequence[Call]],
    sustained: bool,
    rounds: int | None = None,
    milliseconds: float | None = None,
) -> dict[str, Timing]:
    """Time every implementation, each given as one call for every set of operands.

    sustained: 30 ms of warm-up and 60 ms measured a round, 3 rounds; else 4 ms measured a round, 7 rounds.
    """
    warm_up = 30e3 if sustained else 1e3
    span = 1e3 * (milliseconds if milliseconds is not None else 60 if sustained else 4)
    graphs, sizes, replays = {}, {}, {}
    for name, calls in implementations.items():
        once = graph(calls, 1)
        _replay(once, 2)
        turn = _replay(once, 2) / 2
        repeat = max(1, int(min(span, 4e3) // turn))
        graphs[name] = graph(calls, repeat)
        sizes[name] = repeat * len(calls)
        replays[name] = turn * repeat
    seen: dict[str, list[float]] = {name: [] for name in implementations}
    order = list(implementations)
    for turn in range(rounds or (3 if sustained else 7)):
        for name in order if turn % 2 == 0 else reversed(order):
            _replay(graphs[name], max(1, round(warm_up / replays[name])))
            times = max(1, round(span / replays[name]))
            seen[name].append(_replay(graphs[name], times) / times / sizes[name])
    return {name: Timing(statistics.median(values), tuple(values)) for name, values in seen.items()}


def machine() -> dict[str, Any]:
    """What a recorded result says of where it was measured."""
    from kingpost.targets.nvidia import driver

    properties = driver.properties(torch.cuda.current_device())
    return {
        "device": properties.name,
        "multiprocessors": properties.multiprocessors,
        "driver": _driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def _driver_version() -> str:
    """As the kernel module states it, "580.159.04"."""
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
    return found[0] if found else "unknown"


def record(path: Path, results: Any, where: dict[str, Any] | None = None, **more: Any) -> None:
    """Write results with the machine they were measured on: `where`, or this one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": where or machine(), **more, "results": results}, indent=1) + "\n")
