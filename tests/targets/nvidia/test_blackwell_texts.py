"""Portable kernels for sm_100a: taken by ptxas without a remark or a spill, under the PTX version that it needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.formats import BF16, F32
from kingpost.portable import cast, dequantise, relayout, silu_mul_cast, tile_product, vector_add
from kingpost.program import Launch, Program
from kingpost.targets.nvidia.ptx import ptx
from kingpost.targets.nvidia.targets import SM_90A, SM_100A

from ...portable.harness import launch
from .test_ptx import everything

CODES, SINGLE, HALF = SM_100A.float8.dtype, F32.dtype, BF16.dtype


def launches() -> dict[str, Launch]:
    codes, scales, wide = np.zeros((2, 131), CODES), np.zeros((2, 2), SINGLE), np.zeros((2, 262), HALF)
    operands = np.zeros((4, 128), CODES), np.zeros((4, 1), SINGLE), np.zeros((8, 128), CODES), np.zeros((1, 1), SINGLE)
    return {
        "vector_add": launch(vector_add, SM_100A, *(np.zeros(64, SINGLE) for _ in range(3))),
        "relayout": launch(relayout, SM_100A, scales, scales.copy()),
        "cast": launch(cast, SM_100A, wide[:, :131], codes, scales),
        "cast by powers of two": launch(cast, SM_100A, wide[:, :131].astype(SINGLE), codes, scales, power_of_two=True),
        "silu_mul_cast": launch(silu_mul_cast, SM_100A, wide, codes, scales),
        "dequantise": launch(dequantise, SM_100A, codes, scales, wide[:, :131].copy()),
        "tile_product": launch(tile_product, SM_100A, *operands, np.zeros((4, 8), HALF)),
        "tile_product, float32": launch(tile_product, SM_100A, *operands, np.zeros((4, 8), SINGLE)),
    }


PROGRAMS: dict[str, Program] = {name: each.program for name, each in launches().items()}
PROGRAMS["every portable operation"] = replace(everything(), target="sm_100a")


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_ptxas_accepts_without_a_remark(program: Program) -> None:
    try:
        binary = assemble(ptx(program), "sm_100a", find_ptxas())
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    assert binary.spill_bytes == binary.stack_bytes == 0


def test_each_target_has_the_lowest_version_that_serves() -> None:
    arrays = [np.zeros(64, SINGLE) for _ in range(3)]
    heads = [ptx(launch(vector_add, target, *arrays).program).splitlines()[:2] for target in (SM_90A, SM_100A)]
    assert heads == [[".version 8.0", ".target sm_90a"], [".version 8.8", ".target sm_100a"]]
