"""Every configuration that the planner can pick, emulated: the bits of the chip's arithmetic under every schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from kingpost import emulate
from kingpost.formats import BF16, E4M3, E5M2, F16, F32
from kingpost.registry import Problem
from kingpost.targets.nvidia.chip import H200
from kingpost.targets.nvidia.planner import candidates

from .family_cases import Case, case, same_bits

CHIP = replace(H200, multiprocessors=1)  # so that a block has several tiles
OF_THREE = replace(H200, multiprocessors=3)  # so that blocks have their own, and some one more
SCHEDULES = ("late", "early", "random")
N, K = 8, 144  # n is set by the tile


def fp8(op: str = "mm", a: str = "1x128", b: str = "128x128", out: Any = BF16, **more: Any) -> Problem:
    formats = more.pop("formats", (E4M3, E4M3))
    return Problem(op, N, K, *formats, a, b, out, **more)


def bf16(op: str = "mm", out: Any = BF16, majors: str = "kk", **more: Any) -> Problem:
    a, b = ("mn" if major == "m" else "k" for major in majors)
    return Problem(op, N, 80, BF16, BF16, None, None, out, a_major=a, b_major=b, **more)


# Under all three schedules, in every configuration
MAIN = {
    "block scales": fp8(),
    "over K, in place": fp8("grouped_mm_k", b="1x128", out=F32, groups=3, c=True, in_place=True),
    "ue8m0": fp8(a="1x32:ue8m0", b="1x32:ue8m0", out=F16),
    "bfloat16": bf16(),
}
# A sixth of the configurations each, one schedule
MORE = {
    "float32, c": fp8(out=F32, c=True),
    "float32, in place, alpha": fp8(out=F32, c=True, in_place=True, alpha=True),
    "c in place, bfloat16": fp8(c=True, in_place=True),
    "bias, float16": fp8(out=F16, bias=F32),
    "all at once": fp8(c=True, bias=BF16, alpha=True, b="tensor", a="tensor"),
    "e5m2 by e4m3": fp8(formats=(E5M2, E4M3)),
    "e4m3 by e5m2": fp8(formats=(E4M3, E5M2), out=F32),
    "scales by column": fp8(b="1x128", bias=F16),
    "rows by rows": fp8(a="row", b="row"),
    "batched": fp8("batched_mm", groups=3),
    "rows": fp8("grouped_mm", by="rows", groups=3, bias=F32),
    "ends": fp8("grouped_mm", by="ends", groups=4, c=True, in_place=True),
    "counts": fp8("grouped_mm", by="counts", groups=3, out=F32),
    "ends, scales by column": fp8("grouped_mm", by="ends", groups=4, b="1x128"),
    "rows, ue8m0": fp8("grouped_mm", by="rows", groups=3, a="1x32:ue8m0", b="1x32:ue8m0"),
    "over K, bfloat16 out": fp8("grouped_mm_k", b="1x128", groups=3),
    "bfloat16, M- and N-major, float32, in place": bf16(out=F32, majors="mm", c=True, in_place=True),
    "bfloat16, N-major": bf16(majors="km", bias=BF16, alpha=True),
    "bfloat16, M-major": bf16(majors="mk", out=F16, c=True),
    "bfloat16, batched": bf16("batched_mm", groups=3),
    "bfloat16, summed": bf16("summed_mm", out=F32, groups=3),
    "bfloat16, rows": bf16("grouped_mm", by="rows", groups=3),
    "bfloat16, ends": bf16("grouped_mm", by="ends", groups=4, majors="km"),
    "bfloat16, counts": bf16("grouped_mm", by="counts", groups=3, bias=F32),
    "bfloat16, over K": bf16("grouped_mm_k", out=F32, groups=3, majors="mm"),
    "bfloat16, over K, in place": bf16("grouped_mm_k", out=F32, groups=3, c=True, in_place=True),
    "float32, c, bias, alpha": fp8(out=F32, c=True, bias=F32, alpha=True),
    "rows, float32, c, bias, alpha": fp8("grouped_mm", by="rows", groups=3, out=F32, c=True, bias=F32, alpha=True),
    "bfloat16, float32, c, bias, alpha": bf16(out=F32, c=True, bias=F32, alpha=True),
}


@dataclass(frozen=True)
class Run:
    """A problem by a configuration (the place among its candidates) under a schedule."""

    name: str
    problem: Problem
    candidate: int
    schedule: str

    def __str__(self) -> str:
        return f"{self.name}-{candidates(self.problem, CHIP)[self.candidate].name}-{self.schedule}".replace(" ", "_")


def runs() -> list[Run]:
    found = []
    for name, problem in MAIN.items():
        for i in range(len(candidates(problem, CHIP))):
            found += [Run(name, problem, i, schedule) for schedule in SCHEDULES]
    for number, (name, problem) in enumerate(MORE.items()):
        for i in range(number % 6 % len(candidates(problem, CHIP)), len(candidates(problem, CHIP)), 6):
            found.append(Run(name, problem, i, SCHEDULES[(number + i // 6) % 3]))
    return found


def made(run: Run) -> tuple[Any, Case]:
    """The candidate, and a case of a little more than one tile of rows, and less or more than one of columns."""
    tile = candidates(run.problem, CHIP)[run.candidate].tile
    n = tile.columns - 8 if run.candidate % 2 else tile.columns + 8
    chip = CHIP if run.name in MAIN else OF_THREE
    candidate = candidates(replace(run.problem, n=n), chip)[run.candidate]
    problem = candidate.problem
    few = not tile.whole
    m = tile.loaded_rows - 3 if few else tile.rows + 5
    if problem.a_major == "mn":
        m = tile.rows + 8
    index: list[int] | None = None
    if problem.op == "grouped_mm_k":
        index = [16, 16, problem.k - 16]
    elif problem.by == "rows":
        index = [0] * (m // 2) + [2] * (m - m // 2 - 2) + [-1, 7]
    elif problem.by == "ends":
        index = [3, 3, m - 2, m - 2]
    elif problem.by == "counts":
        index = [m, 0, 5]
    return candidate, case(problem, m, index, seed=run.candidate)


@pytest.mark.parametrize("run", runs(), ids=str)
def test_the_chips_bits(run: Run) -> None:
    candidate, given = made(run)
    d = given.result()
    emulate.run(candidate.bind(given.operands(d)), run.schedule, seed=run.candidate)
    assert same_bits(d, given.expected())
    assert not np.isnan(d.astype(np.float32)).all()
