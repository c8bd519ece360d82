"""Walks: every way that rows and K may be divided among groups, device data that make no sense, and dense shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kingpost import emulate
from kingpost.formats import BF16, E4M3, F32
from kingpost.registry import Problem
from kingpost.targets.nvidia.chip import H200
from kingpost.targets.nvidia.parts.groups import MOST_GROUPS
from kingpost.targets.nvidia.planner import candidates
from kingpost.targets.samples import sample

from .family_cases import MODEL, same_bits

CHIP = replace(H200, multiprocessors=2)
FP8 = Problem("grouped_mm", 24, 16, E4M3, E4M3, "1x128", "128x128", BF16)
BFLOAT16 = Problem("grouped_mm", 24, 16, BF16, BF16, None, None, BF16)
KINDS = pytest.mark.parametrize("kind", [FP8, BFLOAT16], ids=["e4m3", "bfloat16"])


def smallest(problem: Problem) -> Any:
    """The configuration with the least to emulate."""
    return min(taking(problem, 0), key=lambda each: each.tile.loaded_rows * each.tile.columns)


def taking(problem: Problem, m: int) -> list[Any]:
    """The configurations that take m rows."""
    return [each for each in candidates(problem, CHIP) if each.tile.whole or m <= each.tile.loaded_rows]


def same(candidate: Any, problem: Problem, m: int, index: list[int] | None, schedule: str = "random") -> None:
    found = sample(problem, m, index)
    d = found.result()
    emulate.run(candidate.bind(found.operands(d)), schedule, seed=m)
    assert same_bits(d, found.expected(MODEL))


def check(problem: Problem, m: int, index: list[int]) -> None:
    same(smallest(problem), problem, m, index)


sizes = st.lists(st.sampled_from([0, 0, 1, 15, 16, 17, 33, 64]), min_size=1, max_size=5)


@KINDS
@given(sizes=sizes, spare=st.integers(0, 3))
@example(sizes=[0], spare=2)
@example(sizes=[0, 130, 0], spare=0)
@settings(max_examples=3, deadline=None)
def test_ends(kind: Problem, sizes: list[int], spare: int) -> None:
    m = max(1, sum(sizes) + spare)
    check(replace(kind, by="ends", groups=len(sizes)), m, np.cumsum(sizes).tolist())


@KINDS
@given(counts=st.lists(st.integers(0, 19), min_size=1, max_size=5))
@settings(max_examples=3, deadline=None)
def test_counts(kind: Problem, counts: list[int]) -> None:
    check(replace(kind, by="counts", groups=len(counts)), 19, counts)


@KINDS
@given(rows=st.lists(st.sampled_from([0, 0, 1, 2, -1, 9]), min_size=1, max_size=40))
@settings(max_examples=3, deadline=None)
def test_rows_in_any_order(kind: Problem, rows: list[int]) -> None:
    check(replace(kind, by="rows", groups=3), len(rows), rows)


@KINDS
@pytest.mark.parametrize("by", ["ends", "counts"])
def test_the_most_groups(kind: Problem, by: str) -> None:
    counts = [0] * MOST_GROUPS
    counts[3] = counts[300] = counts[-1] = 1
    check(replace(kind, n=8, by=by, groups=MOST_GROUPS), 3, counts if by == "counts" else np.cumsum(counts).tolist())


def test_the_most_groups_of_k() -> None:
    sizes = [0] * MOST_GROUPS
    sizes[0] = sizes[37] = sizes[-1] = 16
    problem = replace(BFLOAT16, op="grouped_mm_k", n=8, k=64, groups=MOST_GROUPS, out_format=F32)
    check(problem, 1, np.cumsum(sizes).tolist())


@KINDS
@pytest.mark.parametrize(
    "by, index",
    [("ends", [5, 2, 9]), ("ends", [3, 1000, 4]), ("ends", [-1, 5, 9]), ("counts", [99, -1, 2]), ("rows", [7] * 9)],
)
def test_device_data_that_make_no_sense(kind: Problem, by: str, index: list[int]) -> None:
    """The call cannot look at them on a GPU: no block may hang, or touch what is not its own.

    Each block runs by itself: groups that overlap make blocks write the same rows, and nobody promises whose.
    """
    problem = replace(kind, by=by, groups=3, c=True)
    found = sample(problem, 9, index)
    schedules = ("late", "early", "random") if index[0] == 5 else ("random",)
    for schedule in schedules:
        launch = smallest(problem).bind(found.operands(found.result()))
        for block in range(launch.grid):
            emulate.run(launch, schedule, blocks=[block])


@KINDS
@pytest.mark.parametrize("ends", [[32, 16, 48], [-1, 16, 48], [16, 9999, 48]])
def test_ends_of_k_that_make_no_sense(kind: Problem, ends: list[int]) -> None:
    problem = replace(kind, op="grouped_mm_k", k=48, groups=3, out_format=F32)
    if kind.a_scaling:
        problem = replace(problem, b_scaling="1x128")
    found = sample(problem, 9, ends)
    emulate.run(smallest(problem).bind(found.operands(found.result())), "random")


# Dense products of any shape


@KINDS
@given(m=st.integers(1, 300), n=st.integers(1, 9), k=st.integers(1, 24), choice=st.integers(0, 99))
@example(m=1, n=1, k=1, choice=0)
@example(m=300, n=9, k=3, choice=3)
@settings(max_examples=5, deadline=None)
def test_dense_shapes(kind: Problem, m: int, n: int, k: int, choice: int) -> None:
    """Every tile may meet any number of rows that it takes, and tiles of any number, odd ones too."""
    problem = replace(kind, op="mm", n=8 * n, k=16 * k)
    offered = taking(problem, m)
    same(offered[choice % len(offered)], problem, m, None, "random")


@KINDS
@pytest.mark.parametrize("m, n, k", [(3, 576, 144), (5, 200, 144), (9, 24, 512), (2, 40, 2112)])
def test_dense_shapes_of_models(kind: Problem, m: int, n: int, k: int) -> None:
    """The columns of a latent, columns that are no multiple of 64, and K of whole and of part blocks."""
    problem = replace(kind, op="mm", n=n, k=k)
    same(smallest(problem), problem, m, None, "early")
