"""The bits of wgmma on a GPU against the arithmetic model: `python bench/bits.py RESULT.json [--seconds 240]`.

Every kind of product (formats, accumulators, A in shared memory or in registers) meets every family of operands on at
least TILES tiles, most of n = 8; every other n that the kernels use gets a batch of each. The model runs in a pool of
processes, the GPU in this one. `--assemble` fills the cache of binaries and stops; `--emulate` has the emulator stand
in for the GPU, on one small batch of each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "targets" / "nvidia"), str(ROOT / "tests" / "gpu")]

from wgmma_bits import COLUMNS, FAMILIES, KINDS, RESULTS, ROWS, Batch, Kind, Tally, batch, sizes, wgmma_bits  # noqa: E402

from kingpost.program import Launch  # noqa: E402

TILES = 100_000  # of a kind and a family
BATCH_ROWS = 2048
OTHER_ROWS = 1024  # in batches of other n
Job = tuple[Kind, str, int, int, int]  # what `batch` takes


def jobs() -> list[Job]:
    """One batch of each kind, family and n first, then batches of n = 8 until there are TILES."""
    classes = [(kind, family) for family in FAMILIES for kind in KINDS]
    first = [(kind, family, n, 0, OTHER_ROWS) for kind, family in classes for n in sizes(kind)]
    numbers = range(1, 1 + -(-TILES // (BATCH_ROWS // ROWS * (COLUMNS // 8) * RESULTS)))
    return first + [(kind, family, 8, number, BATCH_ROWS) for number in numbers for kind, family in classes]


def small_jobs() -> list[Job]:
    return [(kind, family, sizes(kind)[1], 0, ROWS) for kind in KINDS for family in FAMILIES]


def made(job: Job) -> Batch:
    return batch(*job)


def assembled(kind_and_n: tuple[Kind, int]) -> str | None:
    """Put a kernel's binary into the cache; why it was refused."""
    from kingpost.assemble import AssemblyError, build
    from kingpost.targets.nvidia.ptx import ptx

    kind, n = kind_and_n
    try:
        build(ptx(wgmma_bits(n=n, kind=kind)), "sm_90a")
    except AssemblyError as error:  # which no pool hands on
        return f"{kind}, n = {n}: {error}"
    return None


def compare(
    wanted: list[Job], run: Callable[[Launch], None], seconds: float, processes: int
) -> dict[tuple[Kind, str], Tally]:
    """What was compared in so many seconds; processes make batches, in no order, while this one runs them."""
    tallies: dict[tuple[Kind, str], Tally] = {}
    end = time.monotonic() + seconds
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        batches = pool.imap_unordered(made, wanted)
        for done in range(len(wanted)):
            left = end - time.monotonic()
            try:
                each = batches.next(left)  # a batch that is there comes however little is left
            except multiprocessing.TimeoutError:
                left = 0.0
            if left <= 0.0:
                print(f"out of time after {done} of {len(wanted)} batches", flush=True)
                break
            tallies.setdefault((each.kind, each.family), Tally()).add(each, run)
            if done % 50 == 0:
                print(f"{done} of {len(wanted)} batches, {left:.0f} s left", flush=True)
    return tallies


def gpu() -> tuple[str, Callable[[Launch], None]]:
    from on_gpu import run

    from kingpost import registry

    return registry.find("cuda:0").description, run


def stand_in() -> tuple[str, Callable[[Launch], None]]:
    from kingpost import emulate

    return "emulated", lambda launch: (emulate.run(launch), None)[1]


def record(path: Path, device: str, tallies: dict[tuple[Kind, str], Tally], seconds: float) -> None:
    classes = [
        {
            "kind": str(kind),
            "operands": family,
            "tiles": sum(tally.tiles.values()),
            "tiles_by_n": {str(n): tiles for n, tiles in sorted(tally.tiles.items())},
            "outputs": tally.outputs,
            "differing": tally.differing,
            "examples": tally.examples,
        }
        for (kind, family), tally in tallies.items()
    ]
    total = {name: sum(each[name] for each in classes) for name in ("tiles", "outputs", "differing")}
    whole = {"device": device, "seconds": round(seconds, 1), **total, "classes": classes}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n")
    for name, each in [*((f"{each['kind']}, {each['operands']}", each) for each in classes), (device, whole)]:
        print(f"{name}: {each['tiles']} tiles, {each['differing']} of {each['outputs']} outputs differ")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("result", type=Path, nargs="?", default=Path("bits.json"))
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--processes", type=int, default=min(15, os.cpu_count() or 2))
    parser.add_argument("--assemble", action="store_true")
    parser.add_argument("--emulate", action="store_true")
    given = parser.parse_args()
    if given.assemble:
        kernels = [(kind, n) for kind in KINDS for n in sizes(kind)]
        with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
            refusals = [each for each in pool.imap(assembled, kernels) if each]
        print(*refusals, f"{len(kernels) - len(refusals)} of {len(kernels)} kernels are in the cache", sep="\n")
        return
    began = time.monotonic()
    device, run = stand_in() if given.emulate else gpu()
    tallies = compare(small_jobs() if given.emulate else jobs(), run, given.seconds, given.processes)
    record(given.result, device, tallies, time.monotonic() - began)


if __name__ == "__main__":
    main()
