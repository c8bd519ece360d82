"""The checker's cases on a GPU, once each: `python bench/on_gpu.py [HOW A CASE BEGINS ...]`.

For compute-sanitizer, which watches a process: `compute-sanitizer --tool racecheck python bench/on_gpu.py "sm90_fp8"`.
Exit status 1 if a result is wrong.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "gpu")]

from on_gpu import run  # noqa: E402

from kingpost.checker.cases import find  # noqa: E402


def main(beginnings: list[str]) -> int:
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
