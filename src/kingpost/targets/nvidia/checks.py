"""Hopper's kernels with small operands: every walk, scaling, finish, store and tile, to the bits of its arithmetic.

`PROBLEMS` names what differs between products of the family. The first few come in every configuration that the planner
can pick, the others in one of them each. Mutants are tried on programs of their own, of `WEAKENED`: small, and with two
stages, so that every slot of every ring is used several times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from kingpost.formats import BF16, E4M3, E5M2, F16, F32
from kingpost.registry import Case, Problem, Trial
from kingpost.targets.family import Arithmetic
from kingpost.targets.nvidia.chip import H200, Chip
from kingpost.targets.nvidia.planner import candidates
from kingpost.targets.samples import difference, sample

ALONE = replace(H200, multiprocessors=1)  # so that a block has several tiles
OF_THREE = replace(H200, multiprocessors=3)  # so that blocks have their own, and some one more
WARP = 32  # groups whose sizes are summed together
N, K, K_BF16 = 8, 144, 80  # n is set by the tile


def fp8(op: str = "mm", a: str = "1x128", b: str = "128x128", out: Any = BF16, **more: Any) -> Problem:
    a_format, b_format = more.pop("formats", (E4M3, E4M3))
    return Problem(op, N, K, a_format, b_format, a, b, out, **more)


def bf16(op: str = "mm", out: Any = BF16, majors: str = "kk", **more: Any) -> Problem:
    a, b = ("mn" if major == "m" else "k" for major in majors)
    return Problem(op, N, K_BF16, BF16, BF16, None, None, out, a_major=a, b_major=b, **more)


IN_EVERY_CONFIGURATION = {
    "block scales": fp8(),
    "over K, in place": fp8("grouped_mm_k", b="1x128", out=F32, groups=3, c=True, in_place=True),
    "ue8m0": fp8(a="1x32:ue8m0", b="1x32:ue8m0", out=F16),
    "bfloat16": bf16(),
}
IN_ONE = {
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
PROBLEMS = IN_EVERY_CONFIGURATION | IN_ONE
WEAKENED = {  # and of how many math warpgroups the program is; 0: of one that loads less than its rows
    "block scales": (0, 1, 2),
    "float32, in place, alpha": (2,),
    "scales by column": (1,),
    "ue8m0": (1,),
    "rows": (1, 2),
    "ends": (1,),
    "counts": (1,),
    "over K, in place": (1,),
    "bfloat16": (1, 2),
    "bfloat16, M- and N-major, float32, in place": (2,),
    "bfloat16, rows": (1,),
    "bfloat16, ends": (1,),
    "bfloat16, counts": (2,),
    "bfloat16, over K": (1,),
}

OWN_OR_ORDERED = (
    "each warp reads what it has laid out itself, or the ring orders the items: all must have left a slot before the "
    "next item is laid out"
)
MESSAGES_ORDER = "a later group's sum is read when math warps have taken messages of those before"
HARMLESS = {  # mutants, where a program has few rows, groups or steps
    "delete bar.sync, epilogue.py": OWN_OR_ORDERED,
    "delete barrier, groups.py": "of 32 groups or fewer the same warp fills the table and sums it",
    "delete barrier, sm90_fp8.py": MESSAGES_ORDER,
    "delete barrier, sm90_bf16.py": MESSAGES_ORDER,
    "rows -1 in a tensor map, epilogue.py": "a box of 63 rows is cut off at the same row",
    "delete fence.mbarrier_init.release.cluster, sm90_fp8.py": "the proxy fence behind the cleared rows covers it",
    "delete wgmma.fence.sync.aligned, products.py": "nothing touches a register behind the fence before it",
}


def cases(arithmetic: Arithmetic) -> list[Case]:
    """The family of products on sm_90a."""
    found = [
        _case(name, problem, choice, ALONE, arithmetic)
        for name, problem in IN_EVERY_CONFIGURATION.items()
        for choice in range(len(candidates(problem, ALONE)))
    ]
    for number, (name, problem) in enumerate(IN_ONE.items()):
        choice = 5 * number % len(candidates(problem, OF_THREE))
        found.append(_case(name, problem, choice, OF_THREE, arithmetic))
    for name in ("block scales", "bfloat16"):
        found.append(_wrapping(name, PROBLEMS[name], arithmetic))
    return found + weakened(arithmetic)


def weakened(arithmetic: Arithmetic, times: int = 1, chip: Chip = ALONE) -> list[Case]:
    """The cases that mutants are tried on; or those of the same programs, with operands `times` as large each way, for
    all of a chip's multiprocessors."""
    return [
        _turning(name, PROBLEMS[name], warpgroups, arithmetic, times, chip)
        for name, sizes in WEAKENED.items()
        for warpgroups in sizes
    ]


def _case(name: str, problem: Problem, choice: int, chip: Chip, arithmetic: Arithmetic) -> Case:
    """A little more than one tile of rows, and less or more than one of columns."""
    tile = _configuration(problem, choice, chip).tile
    problem = replace(problem, n=tile.columns - 8 if choice % 2 else tile.columns + 8)
    m = tile.rows + 5 if tile.whole and problem.op != "grouped_mm_k" else tile.loaded_rows - 3
    if problem.a_major == "mn":
        m = tile.rows + 8
    return _named(f"{name}, {tile}", problem, m, choice, chip, arithmetic)


def _wrapping(name: str, problem: Problem, arithmetic: Arithmetic) -> Case:
    """One tile, and so much of K that the ring's slots are used again."""
    choice = min(range(len(candidates(problem, ALONE))), key=lambda i: _area(problem, i))
    stages = _configuration(problem, choice, ALONE).stages
    block = 128 // problem.a_format.itemsize
    problem = replace(problem, k=(stages + 2) * block - 48)
    return _named(f"{name}, {stages} stages and more blocks of K", problem, 5, choice, ALONE, arithmetic)


def _turning(name: str, problem: Problem, warpgroups: int, arithmetic: Arithmetic, times: int, chip: Chip) -> Case:
    """A small tile of so many math warpgroups, two stages, one buffer, and items enough to turn every ring twice."""
    tiles = [_configuration(problem, choice, ALONE).tile for choice in range(len(candidates(problem, ALONE)))]
    of_size = [i for i, tile in enumerate(tiles) if (tile.warpgroups if tile.whole else 0) == warpgroups]
    choice = min(of_size, key=lambda i: _area(problem, i))
    tile, block = _configuration(problem, choice, ALONE).tile, 128 // problem.a_format.itemsize
    grouped = problem.groups > 0 and problem.op.startswith("grouped")
    problem = replace(problem, n=tile.columns * (4 if grouped else 2) * times + 8, k=3 * block * times - 48)
    if problem.by in ("ends", "counts"):
        problem = replace(problem, groups=WARP + 3)  # sums over the groups of several lanes' turns
    if problem.op == "grouped_mm_k":
        problem = replace(problem, k=problem.k + 2 * block)  # more blocks of the last group than stages
    m = tile.rows * times + 8 if tile.whole else tile.loaded_rows - 3
    changes = {"stages": 2, "buffers": 1, "chip": chip}
    return replace(
        _named(f"{name}, {tile}, two stages", problem, m, choice, ALONE, arithmetic, changes),
        mutants=True,
        harmless=HARMLESS,
    )


def _named(
    name: str,
    problem: Problem,
    m: int,
    choice: int,
    chip: Chip,
    arithmetic: Arithmetic,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Case:
    """changes: of the configuration that the planner has."""
    kernel = "sm90_bf16" if problem.a_format is BF16 else "sm90_fp8"
    wanted = functools.cache(partial(_wanted, problem, m, choice, arithmetic))  # once for all schedules
    make = partial(_trial, problem, m, choice, chip, changes, wanted)
    return Case(f"{kernel}: {name}", kernel, "sm_90a", make, mutants=False)


def _trial(
    problem: Problem, m: int, choice: int, chip: Chip, changes: Mapping[str, Any], wanted: Callable[[], np.ndarray]
) -> Trial:
    given = sample(problem, m, groups_of(problem, m), seed=choice)
    d = given.result()
    launch = replace(_configuration(problem, choice, chip), **changes).bind(given.operands(d))
    return Trial(launch, lambda: difference(d, wanted()))


def _wanted(problem: Problem, m: int, seed: int, arithmetic: Arithmetic) -> np.ndarray:
    """From operands of its own, whatever a run has done to others."""
    return sample(problem, m, groups_of(problem, m), seed).expected(arithmetic)


def groups_of(problem: Problem, m: int) -> Sequence[int] | None:
    """Which of `m` rows, or of K, belong to which group: some empty, some rows or K nobody's; None for no groups."""
    if problem.op == "grouped_mm_k":
        return [16, 16, problem.k - 16]
    more = problem.groups - 2
    return {
        None: None,
        "rows": [0] * (m // 2) + [2] * (m - m // 2 - 2) + [-1, 7],
        "ends": [3, 3, *[m - 2] * more],
        "counts": [m, *[0] * more, 5],
    }[problem.by]


def _configuration(problem: Problem, choice: int, chip: Chip) -> Any:
    return candidates(problem, chip)[choice]


def _area(problem: Problem, choice: int) -> int:
    tile = _configuration(problem, choice, ALONE).tile
    return int(tile.loaded_rows * tile.columns)
