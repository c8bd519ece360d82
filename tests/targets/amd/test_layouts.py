"""Operand layouts of the matrix instructions: equal to Triton's linear layouts where triton is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Form:
    """An instruction to Triton: [side, k] operands of `depth` stored elements along K (of 4 bits two are one), of which
    a lane holds `width` together. arranged: our layout."""

    version: int
    side: int
    k: int
    depth: int
    width: int
    arranged: Callable[[np.ndarray, int], np.ndarray]


FORMS = {
    "32x32x16_fp8": Form(3, 32, 16, 16, 8, contiguous_operand),
    "16x16x32_fp8": Form(3, 16, 32, 32, 8, contiguous_operand),
    "32x32x8_f16": Form(3, 32, 8, 8, 4, contiguous_operand),
    "32x32x64_8_bits": Form(4, 32, 64, 64, 16, halved_operand),
    "16x16x128_8_bits": Form(4, 16, 128, 128, 16, halved_operand),
    "32x32x64_4_bits": Form(4, 32, 64, 32, 16, contiguous_operand),
    "16x16x128_4_bits": Form(4, 16, 128, 64, 16, contiguous_operand),
}


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


def parent(form: Form) -> Any:
    from triton.experimental.gluon.language.amd import AMDMFMALayout

    shape = [form.side, form.side, form.k]
    return AMDMFMALayout(version=form.version, instr_shape=shape, transposed=False, warps_per_cta=[1, 1])


@pytest.mark.parametrize("name", FORMS)
def test_results_as_triton(name: str, triton_builder: Any) -> None:
    form, (_, builder) = FORMS[name], triton_builder
    layout = builder.to_linear_layout(parent(form)._to_ir(builder), [form.side, form.side])
    row, column = spread(layout, form.side**2 // LANES)
    numbered = np.arange(form.side**2).reshape(form.side, form.side)
    assert (result_registers(numbered) == numbered[row, column]).all()


@pytest.mark.parametrize("operand", [0, 1], ids="AB")
@pytest.mark.parametrize("name", FORMS)
def test_operands_as_triton(name: str, operand: int, triton_builder: Any) -> None:
    from triton.experimental.gluon.language._layouts import DotOperandLayout

    form, (_, builder) = FORMS[name], triton_builder
    each = form.side * form.depth // LANES  # elements of a lane
    layout = DotOperandLayout(operand_index=operand, parent=parent(form), k_width=form.width)
    shape = [form.side, form.depth] if operand == 0 else [form.depth, form.side]
    places = spread(builder.to_linear_layout(layout._to_ir(builder), shape), each)
    row, depth = places if operand == 0 else places[::-1]
    numbered = np.arange(LANES * each).reshape(LANES, each)  # lane, element
    assert (form.arranged(numbered, form.side)[row, depth] == numbered.T).all()


@pytest.mark.parametrize("operand", [0, 1], ids="AB")
@pytest.mark.parametrize("side, k", [(32, 64), (16, 128)])
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
