"""The portable tile product on Blackwell, and its device."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kingpost as kp
from kingpost import emulate
from kingpost.arrays import view
from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.formats import E4M3
from kingpost.program import Builder, Launch, kernel, swizzle, u32, u64
from kingpost.targets.nvidia.blackwell_arithmetic import tcgen05_f32
from kingpost.targets.nvidia.blackwell_device import EMULATED_BLACKWELL
from kingpost.targets.nvidia.targets import SM_100A

from .one_tile import codes


@kernel(target=SM_100A)
def products(k: Builder, *, rows: int, columns: int, times: int) -> None:
    """d[rows, columns] = a b^T `times` times over, a and b [.., 128] copied by threads, four bytes each."""
    k.warps(SM_100A.tile_warps)
    addresses = [k.parameter(name, u64) for name in ("a", "b", "d")]
    a, b = k.tile("a_tile", rows), k.tile("b_tile", columns)
    with k.loop(times):
        for address, tile in zip(addresses, (a, b)):
            with k.loop(tile.bytes // 512) as turn:
                at = k.fused_multiply_add(turn, 512, k.thread * 4)
                k.store(swizzle(tile.at(0) + at, tile.swizzle), k.load(u32, k.address(address, at)))
        product = k.tile_product(a, b)
        for value, (row, column) in zip(product.values, product.places):
            at = k.fused_multiply_add(product.row + row, columns, product.column + column)
            k.store(k.address(addresses[2], at, 4), value)


def launch(rows: int, columns: int, times: int = 1) -> tuple[Launch, np.ndarray, np.ndarray]:
    random = np.random.default_rng(rows + columns)
    a, b = codes(random, rows, 128, E4M3), codes(random, columns, 128, E4M3)
    d = np.full((rows, columns), np.nan, np.float32)
    views = {name: view(x) for name, x in (("a", a), ("b", b), ("d", d))}
    return Launch.of(products(rows=rows, columns=columns, times=times), 1, **views), d, tcgen05_f32(a, b)


@pytest.mark.parametrize("rows, columns", [(64, 64), (128, 64), (64, 16), (128, 48), (64, 208)])
@pytest.mark.parametrize("schedule", ["late", "early", "random"])
def test_bits_are_the_models(rows: int, columns: int, schedule: str) -> None:
    given, d, wanted = launch(rows, columns)
    emulate.run(given, schedule)
    np.testing.assert_array_equal(d.view(np.uint32), wanted.view(np.uint32))


def test_products_in_a_loop() -> None:
    given, d, wanted = launch(64, 64, times=3)
    emulate.run(given)
    np.testing.assert_array_equal(d.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("rows", [64, 128])
def test_ptxas_accepts_without_a_remark(rows: int) -> None:
    try:
        tool = find_ptxas()
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    binary = assemble(EMULATED_BLACKWELL.text(products(rows=rows, columns=64, times=1)), "sm_100a", tool)
    assert binary.spill_bytes == binary.stack_bytes == 0


@pytest.mark.parametrize("rows, columns", [(32, 64), (64, 40), (128, 272)])
def test_refused_sizes(rows: int, columns: int) -> None:
    with pytest.raises(ValueError, match=f"a tile product of {rows} rows and {columns} columns"):
        products(rows=rows, columns=columns, times=1)


def test_the_device() -> None:
    device = EMULATED_BLACKWELL
    assert (device.name, device.target) == ("emulated:sm_100a", SM_100A)
    given, d, wanted = launch(64, 64)
    device.prepare(given)(0)
    np.testing.assert_array_equal(d, wanted)
    assert ".target sm_100a" in device.text(given.program)


def test_the_model_of_the_device() -> None:
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((40, 256), (128, 256)))
    a, b = kp.quantize(x, scaling="1x128"), kp.quantize(w, scaling="128x128")
    found = EMULATED_BLACKWELL.model(a, b.T, ml_dtypes.bfloat16)
    np.testing.assert_allclose(found.astype(np.float32), x @ w.T, atol=4.0)
