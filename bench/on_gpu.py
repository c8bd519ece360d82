"""The checker's cases on a GPU, once each: `python bench/on_gpu.py [HOW A CASE BEGINS ...]`.

For compute-sanitizer, which watches a process: `compute-sanitizer --tool racecheck python bench/on_gpu.py "sm90_fp8"`.
"control" runs three small programs instead that hand a word from warp to warp: by the block's barrier, by an mbarrier,
and by nothing; what a tool says of them tells what it knows of mbarriers. Exit status 1 if a result is wrong.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "gpu")]

import numpy as np  # noqa: E402
from on_gpu import run  # noqa: E402

from kingpost.arrays import view  # noqa: E402
from kingpost.checker.cases import find  # noqa: E402
from kingpost.formats import U32  # noqa: E402
from kingpost.program import Builder, Launch, u32, u64  # noqa: E402
from kingpost.targets.nvidia.isa.common import mbarrier_arrive, mbarrier_init, mbarrier_wait  # noqa: E402


def control(how: str) -> Launch:
    """Warp 0 writes 32 words, warp 1 reads them, `how` one after the other."""
    k = Builder(f"handed_on_by_{how}", "sm_90a")
    k.warps(2)
    result, words, full = k.parameter("result", u64), k.shared("words", (32,), U32), k.shared_barriers("full", 1)
    with k.when(k.warp == 0), k.mask(k.lane == 0):
        mbarrier_init(k, full.at(0), count=32)
    k.barrier()
    with k.when(k.warp == 0):
        k.store(words.at(0) + k.lane * 4, k.lane)
        if how == "mbarrier":
            mbarrier_arrive(k, full.at(0))
    if how == "barrier":
        k.barrier()
    with k.when(k.warp == 1):
        if how == "mbarrier":
            mbarrier_wait(k, full.at(0), 0)
        k.store(k.address(result, k.lane, 4), k.load(u32, words.at(0) + k.lane * 4))
    return Launch.of(k.finish({}), 1, result=view(np.zeros(32, np.uint32)))


def main(beginnings: list[str]) -> int:
    if beginnings == ["control"]:
        for how in ("barrier", "mbarrier", "nothing"):
            run(control(how))
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
