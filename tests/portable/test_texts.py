"""Portable kernels as PTX: taken by ptxas without a remark or a spill, in 16-byte accesses where that is said."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.formats import BF16, F16, F32
from kingpost.portable import (
    add_slices,
    cast,
    dequantise,
    masked_silu_mul_cast,
    relayout,
    silu_mul_cast,
    tile_product,
    transpose,
    transposed_cast,
    vector_add,
)
from kingpost.program import Launch, Program
from kingpost.targets.nvidia.ptx import ptx
from kingpost.targets.nvidia.targets import SM_90A

from .harness import launch


def zeros(format: np.dtype | type, *shape: int) -> np.ndarray:
    return np.zeros(shape, format)


def launches() -> dict[str, Launch]:
    codes, f4 = SM_90A.float8.dtype, np.float32
    found = {
        "vector_add": launch(vector_add, SM_90A, *(zeros(f4, 64) for _ in range(3))),
        "vector_add, not aligned": launch(vector_add, SM_90A, *(zeros(f4, 64)[1:] for _ in range(3))),
        "relayout": launch(relayout, SM_90A, zeros(f4, 4, 2), zeros(f4, 4, 2)),
    }
    for columns, kind in ((512, "whole"), (131, "ragged")):
        for format in (BF16, F32):
            for options in ({}, {"power_of_two": True}, {"eps": 0.0}):
                name = f"{format}, {kind}, {options}"
                results = zeros(codes, 2, columns), zeros(f4, 2, -(-columns // 128))
                x = zeros(format.dtype, 2, 2 * columns)
                found[f"cast, {name}"] = launch(cast, SM_90A, x[:, :columns], *results, **options)
                found[f"silu_mul_cast, {name}"] = launch(silu_mul_cast, SM_90A, x, *results, **options)
            d = zeros(format.dtype, 2, columns)
            found[f"dequantise, {format}, {kind}"] = launch(dequantise, SM_90A, *results, d)
    for format in (BF16, F32):
        operands = zeros(codes, 4, 128), zeros(f4, 4, 1), zeros(codes, 8, 128), zeros(f4, 1, 1)
        found[f"tile_product, {format}"] = launch(tile_product, SM_90A, *operands, zeros(format.dtype, 4, 8))
    for columns, kind in ((512, "whole"), (131, "ragged")):
        source, destination = zeros(np.uint8, columns, columns), zeros(np.uint8, columns, columns)
        found[f"transpose, {kind}"] = launch(transpose, SM_90A, source, destination)
        blocks = -(-columns // 128)
        for format in (BF16, F16, F32):
            x, c = zeros(f4, 3, 4, columns), zeros(format.dtype, 4, columns)
            for given in ([], [c]):
                name = f"add_slices, {format}, {kind}, {len(given)} c"
                found[name] = launch(add_slices, SM_90A, x, *given, zeros(format.dtype, 4, columns))
        for format in (BF16, F32):
            x, results = zeros(format.dtype, 2, 3, 2 * columns), (zeros(codes, 2, 3, columns), zeros(f4, 2, 3, blocks))
            counts = zeros(np.int32, 2)
            found[f"masked_silu_mul_cast, {format}, {kind}"] = launch(masked_silu_mul_cast, SM_90A, x, counts, *results)
            for options in ({}, {"eps": 1e-4, "reciprocal_scale": True}, {"reciprocal_maximum": True}, {"eps": 0.0}):
                name, x = f"{format}, {kind}, {options}", zeros(format.dtype, columns, columns)
                data, scales = zeros(codes, columns, columns), zeros(f4, blocks, blocks)
                square = launch(cast, SM_90A, x, data, scales, scaling="128x128", **options)
                found[f"cast 128x128, {name}"] = square
                for ends in ([], [zeros(np.int32, 2)]):
                    scales = zeros(f4, columns, columns // 128 + 2 if ends else blocks)
                    turned = launch(transposed_cast, SM_90A, x, *ends, data, scales, **options)
                    found[f"transposed_cast, {name}, {len(ends)} ends"] = turned
    return found


PROGRAMS: dict[str, Program] = {name: each.program for name, each in launches().items()}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_ptxas_accepts_without_a_remark(program: Program) -> None:
    try:
        binary = assemble(ptx(program), "sm_90a", find_ptxas())
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    assert binary.spill_bytes == binary.stack_bytes == 0


def test_aligned_rows_are_read_16_bytes_at_a_time() -> None:
    text = ptx(PROGRAMS["silu_mul_cast, bfloat16, whole, {}"])
    loads = re.findall(r"ld\.global\.\S+", text)
    assert loads == ["ld.global.v4.u32"] * 4
    assert re.findall(r"st\.global\.\S+", text) == ["st.global.v2.u32"] * 2 + ["st.global.f32"]
    assert re.findall(r"(?:div|rem)\.\S+", text) == ["div.rn.f32"] * 2  # the scale and its reciprocal
