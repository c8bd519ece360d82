"""The checker's cases on a GPU, once each: `python bench/on_gpu.py [HOW A CASE BEGINS ...]`.

For compute-sanitizer, which watches a process: `compute-sanitizer --tool racecheck python bench/on_gpu.py "sm90_fp8"`.
"control NAME" runs a small program instead that hands a word from warp to warp and back, in the way of that name:
what a tool says of it tells what the tool knows. Exit status 1 if a result is wrong.
"""

from __future__ import annotations

import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "gpu")]

import numpy as np  # noqa: E402
from on_gpu import run  # noqa: E402

from kingpost.arrays import view  # noqa: E402
from kingpost.checker.cases import find  # noqa: E402
from kingpost.formats import U32  # noqa: E402
from kingpost.program import Builder, Launch, u32, u64  # noqa: E402
from kingpost.targets.nvidia.isa.common import (  # noqa: E402
    elect,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    warp_barrier,
)

CONTROLS = ("barrier", "mbarrier", "one lane", "one lane, warp barrier", "elected lane", "nothing")


def control(how: str) -> Launch:
    """Warp 0 writes 32 words, warp 1 reads them, warp 0 writes them again: `how` one after the other.

    By the block's barrier, by mbarriers at which every lane arrives, or one lane for the warp: lane 0, lane 0 behind a
    bar.warp.sync, or the one that elect.sync names; or by nothing.
    """
    k = Builder("handed_on_by_" + re.sub(r"\W+", "_", how), "sm_90a")
    k.warps(2)
    result, words, full = k.parameter("result", u64), k.shared("words", (32,), U32), k.shared_barriers("full", 2)
    with k.when(k.warp == 0), k.mask(k.lane == 0):
        for each in (0, 1):
            mbarrier_init(k, full.at(each), count=32 if how == "mbarrier" else 1)
    k.barrier()

    def hand_on(each: int, giver: int) -> None:
        if how == "barrier":
            k.barrier()
        elif how != "nothing":
            with k.when(k.warp == giver):
                if how == "one lane, warp barrier":
                    warp_barrier(k)
                one = nullcontext() if how == "mbarrier" else k.mask(elect(k) if "elect" in how else k.lane == 0)
                with one:
                    mbarrier_arrive(k, full.at(each))
            with k.when(k.warp != giver):
                mbarrier_wait(k, full.at(each), 0)

    with k.when(k.warp == 0):
        k.store(words.at(0) + k.lane * 4, k.lane)
    hand_on(0, giver=0)
    with k.when(k.warp == 1):
        k.store(k.address(result, k.lane, 4), k.load(u32, words.at(0) + k.lane * 4))
    hand_on(1, giver=1)
    with k.when(k.warp == 0):
        k.store(words.at(0) + k.lane * 4, k.lane + 1)
    return Launch.of(k.finish({}), 1, result=view(np.zeros(32, np.uint32)))


def main(beginnings: list[str]) -> int:
    if beginnings[:1] == ["control"]:
        run(control(beginnings[1]))
        return 0
    cases = [case for case in find("all", "sm_90a", 0) if not beginnings or case.name.startswith(tuple(beginnings))]
    wrong = 0
    began = time.monotonic()
    for case in cases:
        trial = case.make()
        run(trial.launch)
        if found := trial.wrong():
            wrong += 1
            print(f"WRONG {case.name}: {found}", flush=True)
    print(f"{len(cases)} cases, {wrong} wrong, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
