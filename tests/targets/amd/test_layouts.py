"""Operand layouts of the matrix instructions: equal to Triton's linear layouts where triton is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kingpost.targets.amd.isa.layouts import (
    block_scales,
    contiguous_operand,
    halved_operand,
    lane_bytes,
    result_matrix,
    result_places,
    result_registers,
)

LANES = 64
FLOAT8 = {(32, 16): (3, contiguous_operand), (16, 32): (3, contiguous_operand)}  # (side, K): version, our layout
MIXED = {(32, 64): (4, halved_operand), (16, 128): (4, halved_operand)}
SHAPES = FLOAT8 | MIXED


@pytest.fixture(scope="module")
def triton_builder() -> Any:
    pytest.importorskip("triton")
    from triton._C.libtriton import amd, gluon_ir, ir

    context = ir.context()
    ir.load_dialects(context)
    amd.load_dialects(context)
    return context, gluon_ir.GluonOpBuilder(context)


def spread(layout: Any, registers: int) -> np.ndarray:
    """Which element each register of each lane holds: [2, registers, 64], from a linear layout's basis vectors."""
    result = np.zeros((2, registers, LANES), int)
    for bases, index in (
        (layout.reg_bases, np.arange(registers)[:, None]),
        (layout.lane_bases, np.arange(LANES)[None]),
    ):
        for bit, basis in enumerate(bases):
            for dimension in range(2):
                result[dimension] ^= (index >> bit & 1) * basis[dimension]
    return result


def parent(side: int, k: int) -> Any:
    from triton.experimental.gluon.language.amd import AMDMFMALayout

    return AMDMFMALayout(
        version=SHAPES[side, k][0], instr_shape=[side, side, k], transposed=False, warps_per_cta=[1, 1]
    )


@pytest.mark.parametrize("side, k", SHAPES)
def test_results_as_triton(side: int, k: int, triton_builder: Any) -> None:
    _, builder = triton_builder
    layout = builder.to_linear_layout(parent(side, k)._to_ir(builder), [side, side])
    row, column = spread(layout, side * side // LANES)
    numbered = np.arange(side * side).reshape(side, side)
    assert (result_registers(numbered) == numbered[row, column]).all()


@pytest.mark.parametrize("operand", [0, 1], ids="AB")
@pytest.mark.parametrize("side, k", SHAPES)
def test_operands_as_triton(side: int, k: int, operand: int, triton_builder: Any) -> None:
    from triton.experimental.gluon.language._layouts import DotOperandLayout

    _, builder = triton_builder
    each = side * k // LANES  # elements of a lane
    width = 16 if (side, k) in MIXED else 8
    layout = DotOperandLayout(operand_index=operand, parent=parent(side, k), k_width=width)
    shape = [side, k] if operand == 0 else [k, side]
    places = spread(builder.to_linear_layout(layout._to_ir(builder), shape), each)
    row, depth = places if operand == 0 else places[::-1]
    numbered = np.arange(LANES * each).reshape(LANES, each)  # lane, element
    assert (SHAPES[side, k][1](numbered, side)[row, depth] == numbered.T).all()


@pytest.mark.parametrize("operand", [0, 1], ids="AB")
@pytest.mark.parametrize("side, k", MIXED)
@pytest.mark.usefixtures("triton_builder")
def test_scales_as_triton(side: int, k: int, operand: int) -> None:
    from triton._C.libtriton import gluon_ir

    layout = gluon_ir.get_amd_mfma_scale_layout(operand, [side, k // 32], side, [1, 1], [1, 1])
    row, block = spread(layout, 1)
    assert (block_scales(np.arange(LANES), side)[row[0], block[0]] == np.arange(LANES)).all()


@pytest.mark.parametrize("side", [16, 32])
def test_results_there_and_back(side: int) -> None:
    numbered = np.arange(side * side).reshape(side, side)
    registers = result_registers(numbered)
    assert (result_matrix(registers) == numbered).all()
    for register, (row, column) in zip(registers, result_places(side)):
        lane = np.arange(LANES)
        assert (register == numbered[row + lane // side * 4, column + lane % side]).all()


def test_published_formulas() -> None:
    """AMD's matrix calculator, by hand: v_mfma_f32_32x32x16_fp8_fp8 and the f8f6f4 forms."""
    elements = np.arange(LANES * 8).reshape(LANES, 8)
    a = contiguous_operand(elements, 32)
    for row, k in np.ndindex(32, 16):
        assert a[row, k] == elements[row + 32 * (k // 8), k % 8]
    elements = np.arange(LANES * 32).reshape(LANES, 32)
    for side in (16, 32):
        a = halved_operand(elements, side)
        for lane, e in np.ndindex(LANES, 32):
            k = a.shape[1] // 2 * (e // 16) + 16 * (lane // side) + e % 16
            assert a[lane % side, k] == elements[lane, e]


def test_bytes_of_registers() -> None:
    registers = np.array([[0x03020100] * LANES, [0x07060504] * LANES], np.uint32)
    assert (lane_bytes(registers) == np.arange(8)).all()
