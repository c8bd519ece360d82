"""Layouts of operands and results: equal to the linear layouts that Triton prints, where triton is installed.

A linear layout gives, for every bit of an index (register, lane, warp, offset in memory), the element that this bit
alone stands for; elements of several bits are the exclusive or.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kingpost.arrays import view
from kingpost.emulate import run
from kingpost.formats import U8, U32
from kingpost.program import Builder, Launch, Target, swizzle, u32, u64
from kingpost.targets.nvidia.isa.blackwell import (
    shared_descriptor,
    tensor_allocate,
    tensor_commit,
    tensor_copy_scales,
    tensor_free,
    tensor_load_bits,
    tensor_wait_load,
)
from kingpost.targets.nvidia.isa.common import elect, mbarrier_init, mbarrier_wait
from kingpost.targets.nvidia.targets import SM_90A, SM_100A
from kingpost.targets.nvidia.units import tcgen05, wgmma_queue

from ...emulate.harness import build


@pytest.fixture(scope="module")
def builder() -> Iterator[Any]:
    pytest.importorskip("triton")
    from triton._C.libtriton import gluon_ir, ir, nvidia

    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    yield gluon_ir.GluonOpBuilder(context)  # which needs the context alive


def elements(*parts: tuple[list[list[int]], np.ndarray]) -> np.ndarray:
    """The element (row, column) [2, ...] that indices stand for, each with the bases of its bits."""
    found: Any = 0
    for bases, index in parts:
        for bit, basis in enumerate(bases):
            found = found ^ np.multiply.outer(basis, index >> bit & 1)
    return found


def places(layout: Any, registers: int) -> np.ndarray:
    """The element [2, 128 threads, registers] that each register of each thread of four warps holds."""
    register, lane, warp = np.arange(registers), np.arange(32)[:, None], np.arange(4)[:, None, None]
    zero = np.zeros((4, 32, registers), int)
    bits = (layout.reg_bases, register + zero), (layout.lane_bases, lane + zero), (layout.warp_bases, warp + zero)
    return elements(*bits).reshape(2, 128, registers)


def wgmma_layout(columns: int) -> Any:
    from triton.experimental.gluon.language import NVMMADistributedLayout

    return NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 32])


def test_wgmma_accumulators(builder: Any) -> None:
    layout = builder.to_linear_layout(wgmma_layout(64)._to_ir(builder), [64, 64])
    numbered = np.arange(64 * 64).reshape(4, 16, 64)
    ours = np.stack([wgmma_queue._fragment(rows).T for rows in numbered])  # [warps, lanes, registers]
    row, column = places(layout, 32)
    np.testing.assert_array_equal(ours.reshape(128, 32), row * 64 + column)


@pytest.mark.parametrize("span", [32, 64, 128])
@pytest.mark.parametrize("bits", [8, 16])
def test_swizzles(span: int, bits: int, builder: Any) -> None:
    """Of rows as long as the span: where each element lies, for copies and for products' operands of both chips."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    rows, size = 64, bits // 8
    layout = builder.to_linear_layout(NVMMASharedLayout(span, bits, 2)._to_ir(builder), [rows, span // size])
    offset = np.arange(rows * span // size)
    row, column = elements((layout.offset_bases, offset))
    np.testing.assert_array_equal(swizzle(row * span + column * size, span), offset * size)

    stride = 8 * span >> 4 << 32
    hopper = {32: 3, 64: 2, 128: 1}[span] << 62 | stride
    blackwell = {32: 6, 64: 4, 128: 2}[span] << 61 | 1 << 46 | stride
    of_element = np.zeros((rows, span // size), int)
    of_element[row, column] = offset * size
    for step in range(0, span, 32):
        wanted = of_element[:, step // size : (step + 32) // size]
        for unit, descriptor in ((wgmma_queue, hopper), (tcgen05, blackwell)):
            found = unit.operand_addresses(descriptor | step >> 4, rows)
            np.testing.assert_array_equal(found[:, ::size], wanted)


@pytest.mark.parametrize("span", [32, 64, 128])
def test_mn_major_operands(span: int, builder: Any) -> None:
    """[columns, K] of bfloat16 whose columns are neighbours, more of them than a tile has: each step's elements."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    columns, depth = 2 * span, 64  # four tiles of span/2 columns
    layout = builder.to_linear_layout(NVMMASharedLayout(span, 16, 2, transposed=True)._to_ir(builder), [columns, depth])
    offset = np.arange(columns * depth)
    column, k = elements((layout.offset_bases, offset))
    of_element = np.zeros((columns, depth), int)
    of_element[column, k] = offset * 2
    leading, stride = depth * span, 8 * span
    descriptor = {32: 3, 64: 2, 128: 1}[span] << 62 | stride >> 4 << 32 | leading >> 4 << 16
    for step in range(0, depth, 16):
        found = wgmma_queue.operand_addresses(descriptor | step * span >> 4, columns, "mn")
        np.testing.assert_array_equal(found[:, ::2], of_element[:, step : step + 16])


@pytest.mark.parametrize("m", [64, 128])
def test_accumulators_in_tensor_memory(m: int, builder: Any) -> None:
    from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout

    layout = builder.to_linear_layout(TensorMemoryLayout((m, 128), 1)._to_ir(builder), [m, 128])
    lanes, rows = tcgen05.accumulator_lanes(m), np.arange(m)
    found = elements((layout.rows, lanes), (layout.cols, np.zeros(m, int)))
    np.testing.assert_array_equal(found, [rows, 0 * rows])
    columns = np.arange(128)
    np.testing.assert_array_equal(elements((layout.cols, columns)), [0 * columns, columns])


def test_scales_in_tensor_memory(builder: Any) -> None:
    """What tcgen05.cp makes of the 512 bytes of 128 rows' scales, in all 128 lanes."""
    from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryScalesLayout

    layout = builder.to_linear_layout(TensorMemoryScalesLayout()._to_ir(builder), [128, 4])
    lane, byte = np.arange(128)[:, None], np.arange(16)[None]
    row, k = elements((layout.rows, lane + 0 * byte), (layout.cols, byte + 0 * lane))
    numbered = np.random.default_rng(0).integers(0, 256, (128, 4)).astype(np.uint8)
    staged = numbered.reshape(4, 32, 4).transpose(1, 0, 2).copy()  # byte 16 (r mod 32) + 4 (r / 32) + k
    cells = np.zeros((128, 4), np.uint32)
    run(build(copied, staged=staged, cells=cells))
    np.testing.assert_array_equal(cells.view(np.uint8), numbered[row, k])


def copied(k: Builder, staged, cells) -> None:
    k.warps(4)
    scales, slot, barriers = k.shared("scales", (512,), U8), k.shared("slot", (1,), U32), k.shared_barriers("done", 1)
    k.store(scales.at(0) + k.thread * 4, k.load(u32, k.address(staged, k.thread, 4)))
    with k.when(k.warp == 0):
        tensor_allocate(k, slot.at(0), columns=32)
        with k.mask(elect(k)):
            mbarrier_init(k, barriers.at(0), count=1)
    k.barrier()
    address = k.load(u32, slot.at(0))
    with k.when(k.warp == 0), k.mask(elect(k)):
        tensor_copy_scales(k, address, shared_descriptor(k, scales.at(0), stride=128, swizzle=0))
        tensor_commit(k, barriers.at(0))
    mbarrier_wait(k, barriers.at(0), 0)
    values = k.array(u32, 4)
    tensor_load_bits(k, address + (k.warp << 21), count=4, into=values)
    tensor_wait_load(k)
    k.store_vector(k.address(cells, k.thread, 16), values)
    k.barrier()
    with k.when(k.warp == 0):
        tensor_free(k, address, columns=32)


@pytest.mark.parametrize(
    "target, rows", [(SM_90A, 64), (SM_100A, 64), (SM_100A, 128)], ids=lambda x: getattr(x, "name", str(x))
)
def test_tile_products(target: Target, rows: int, builder: Any) -> None:
    """Which elements of the result each thread gets."""
    columns = 128
    if target is SM_90A:
        layout = builder.to_linear_layout(wgmma_layout(columns)._to_ir(builder), [rows, columns])
    else:
        from triton.experimental.gluon.language import float32
        from triton.experimental.gluon.language._semantic import _compute_tmem_reg_layout
        from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout

        shape, memory = [rows, columns], TensorMemoryLayout((rows, columns), 1)
        layout = _compute_tmem_reg_layout(float32, shape, shape, memory, 4, "32x32b")
    found = np.zeros((2, 128), np.uint32)
    k = Builder("tile", target)
    k.warps(4)
    out = k.parameter("out", u64)
    product = k.tile_product(*(zeros(k, name, size) for name, size in (("a", rows), ("b", columns))))
    for i, value in enumerate((product.row, product.column)):
        k.store(k.address(out, k.thread, 4), value, offset=512 * i)
    run(Launch.of(k.finish({}), 1, out=view(found)))
    ours = found[:, :, None] + np.array(product.places).T[:, None, :]
    np.testing.assert_array_equal(ours, places(layout, rows * columns // 128))


def zeros(k: Builder, name: str, rows: int) -> Any:
    tile = k.tile(name, rows)
    with k.loop(tile.bytes // 512) as turn:
        k.store(k.fused_multiply_add(turn, 512, tile.at(0) + k.thread * 4), k.new(u32, 0))
    return tile
