"""Caught mutants run for real: `python bench/mutants.py RESULT.json [--count 80] [--seed 0] [--seconds 300]`.

A seeded sample of the mutants of Hopper's products: those that the emulator catches are launched on a GPU, with larger
operands for the same program and many times, each in a process of its own. Reported: which hang, which the builder,
the assembler or the driver refuses, which give other bits than the program itself, and which show nothing.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(ROOT / "bench")]

from kingpost import registry  # noqa: E402
from kingpost.checker.mutation import Mutant, mutants  # noqa: E402
from kingpost.checker.verdict import verdict  # noqa: E402
from kingpost.program import Launch, TensorMap  # noqa: E402
from kingpost.registry import Case  # noqa: E402
from kingpost.targets.nvidia.checks import weakened  # noqa: E402
from kingpost.targets.nvidia.chip import H200  # noqa: E402

TIMES = 6  # larger each way than in the emulator
LAUNCHES = 50
PATIENCE = 40.0  # seconds for a process
TOGETHER = 6


@cache
def cases() -> list[Case]:
    return weakened(registry.emulator("sm_90a"))


@cache
def made(place: int) -> list[Mutant]:
    return mutants(cases()[place].make().launch)


def drawn(count: int, seed: int) -> list[tuple[int, int]]:
    """Places of cases and of their mutants: as many of every class of mutants, from any case."""
    chance, classes = random.Random(seed), dict[str, list[tuple[int, int]]]()
    for place in range(len(cases())):
        for index, mutant in enumerate(made(place)):
            classes.setdefault(mutant.what, []).append((place, index))
    for members in classes.values():
        chance.shuffle(members)
    turns = [(turn, chance.random(), each) for members in classes.values() for turn, each in enumerate(members)]
    return [each for _, _, each in sorted(turns)[:count]]


def emulated(each: tuple[int, int]) -> dict[str, Any]:
    place, index = each
    case, mutant = cases()[place], made(place)[index]
    found = verdict(case, mutant)
    return {"place": place, "index": index, "case": case.name, "mutant": str(mutant), "caught": found.caught,
            "how": found.how}  # fmt: skip


def contents(launch: Launch) -> list[np.ndarray]:
    """The bytes of all arrays of a launch."""
    views = [each.view for each in launch.arguments.values() if isinstance(each, TensorMap)]
    return [np.ascontiguousarray(view.numpy()).view(np.uint8).copy() for view in [*views, *launch.views]]


def show(place: int, index: int) -> str:
    """What is seen of a mutant on the GPU, in this process."""
    from on_gpu import run

    case = weakened(registry.emulator("sm_90a"), TIMES, H200)[place]
    right = case.make().launch
    run(right)
    wanted = contents(right)
    for count in range(LAUNCHES):
        launch = made(place)[index].apply(case.make().launch)
        try:
            run(launch)
        except Exception as error:
            return f"refused: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
        wrong = sum(int((got != want).sum()) for got, want in zip(contents(launch), wanted, strict=True))
        if wrong:
            return f"wrong: {wrong} bytes, in launch {count + 1}"
    return "nothing"


def seen(record: dict[str, Any]) -> dict[str, Any]:
    if not record["caught"] or record["how"].startswith("refused"):
        return record
    command = [sys.executable, __file__, "--show", str(record["place"]), str(record["index"])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        lines = [line for line in done.stdout.splitlines() if line.startswith("seen ")]
        found = lines[-1].removeprefix("seen ") if lines else f"died: {done.stderr[-160:]}"
    except subprocess.TimeoutExpired:
        found = "hang"
    print(f"{record['mutant']}: {found}", flush=True)
    return {**record, "seen": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--show", nargs=2, type=int)
    given = parser.parse_args()
    if given.show:
        print("seen", show(*given.show), flush=True)
        return
    import multiprocessing

    from harness import record as recorded

    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool() as pool:
        records = pool.map(emulated, drawn(given.count, given.seed), chunksize=1)
    print(f"emulated after {time.monotonic() - began:.0f} s", flush=True)

    def unless_late(record: dict[str, Any]) -> dict[str, Any]:
        return seen(record) if time.monotonic() - began < given.seconds else record

    with ThreadPoolExecutor(TOGETHER) as pool:
        records = list(pool.map(unless_late, records))
    classes = Counter(record["seen"].partition(":")[0] for record in records if "seen" in record)
    recorded(given.result, records, times=TIMES, launches=LAUNCHES, seen=dict(classes))
    print(dict(classes), flush=True)


if __name__ == "__main__":
    main()
