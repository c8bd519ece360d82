"""The bfloat16 kernel on the chip: the arithmetic model's bits in every configuration, major and walk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kingpost.formats import BF16, F16, F32
from kingpost.program import Launch
from kingpost.registry import Problem
from kingpost.targets.nvidia.bf16_candidates import candidates
from kingpost.targets.nvidia.chip import H200

from ..targets.nvidia.product import same_bits
from ..targets.nvidia.test_kernel_bf16 import (
    ENDS,
    FINISHES,
    INDICES,
    MAJORS,
    Grouped,
    Product,
    config,
    groups_of_rows,
    int32,
    normal,
    product,
)
from .on_gpu import run

pytestmark = pytest.mark.gpu
PICKED = candidates(Problem("mm", 4096, 7168, BF16, BF16, None, None, BF16), H200)


def on_chip(given: Product | Grouped, candidate) -> np.ndarray:
    launch: Launch = given.launch(candidate)
    run(replace(launch, grid=max(launch.grid, 1)))
    return given.d


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("candidate", PICKED, ids=[each.name for each in PICKED])
def test_every_configuration_in_every_major(candidate, majors: tuple[str, str]) -> None:
    if majors[0] != "k" and not candidate.tile.whole:
        return  # never picked: rows are loaded together there
    tile = candidate.tile
    given = product(1, 520 if tile.whole else tile.loaded_rows - 8, 776, 1096, op="mm", majors=majors)
    assert same_bits(on_chip(given, candidate), given.expected())


@pytest.mark.parametrize("m, n, k", [(1, 8, 8), (1, 4096, 7168), (300, 576, 2112), (64, 2112, 512)])
def test_shapes(m: int, n: int, k: int) -> None:
    picked = [each for each in candidates(Problem("mm", n, k, BF16, BF16, None, None, F32), H200) if each.tile.whole]
    for candidate in (picked[0], picked[-1]):
        given = product(1, m, n, k, op="mm", out=F32)
        assert same_bits(on_chip(given, candidate), given.expected())


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("out", [BF16, F16, F32], ids=str)
def test_what_comes_after_the_product(finish: str, out) -> None:
    random, more = np.random.default_rng(9), dict(FINISHES[finish])
    if more.get("c"):
        more["c"] = random.standard_normal((2, 200, 200)).astype(out.dtype)
    if bias := more.get("bias"):
        more["bias"] = random.standard_normal((2, 200)).astype(bias.dtype)
    given = product(2, 200, 200, 136, out=out, **more)
    assert same_bits(on_chip(given, config(2, 1, 256, 3, 1)), given.expected())


@pytest.mark.parametrize("planes", [1, 33, 65])
def test_slices_of_sums(planes: int) -> None:
    given = product(planes, 200, 136, 264, op="summed_mm", out=F32, majors=("mn", "mn"))
    assert same_bits(on_chip(given, config(2, 1, 128, 4, 1)), given.expected())


@pytest.mark.parametrize("tile", [(1, 1, 32), (2, 1, 256), (2, 2, 128)])
@pytest.mark.parametrize("case", INDICES)
def test_groups_of_rows(case: str, tile: tuple[int, int, int]) -> None:
    given = groups_of_rows(case, 520, 328, majors=("k", "mn"), c=True)
    assert same_bits(on_chip(given, config(*tile, 3, 1)), given.expected())


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("ends", ENDS)
def test_groups_of_k(ends: str, majors: tuple[str, str]) -> None:
    given = Grouped("grouped_mm_k", None, normal(520, 304), normal(264, 304), int32(*ENDS[ends]), majors, F32)
    assert same_bits(on_chip(given, config(2, 1, 128, 4, 1)), given.expected())
