"""Conversions and the way out of registers: what lanes give and where it lands."""

from __future__ import annotations

import numpy as np
import pytest

from kingpost.formats import BF16, F32
from kingpost.program import Builder, f32, u32
from kingpost.targets.nvidia.isa.common import stmatrix, store_shared_pair

from ...emulate.harness import found, run


def test_pairs_are_rounded_to_nearest_even() -> None:
    below, tie_down, tie_up, above = (0x3F800000 + low for low in (0x7FFF, 0x8000, 0x18000, 0x8001))
    bits = [below, tie_down, tie_up, above, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x80000000, 0x00000001, 0x00018000]
    wanted = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80, 0x7F80, 0x8000, 0x0000, 0x0002]
    values = np.resize(np.array(bits, np.uint32).view(np.float32), 32)
    d = np.zeros(32, np.uint32)

    def body(k: Builder, d, values) -> None:
        x = k.load(f32, k.address(values, k.lane, 4))
        k.store(k.address(d, k.lane, 4), k.pack_bf16(x, x * -1.0))

    run(body, d=d, values=values)
    assert (d & 0xFFFF)[: len(bits)].tolist() == wanted
    assert (d >> 16)[: len(bits)].tolist() == [each ^ 0x8000 for each in wanted]


def test_a_nan_is_the_chips_nan() -> None:
    d = np.zeros(1, np.uint32)

    def body(k: Builder, d) -> None:
        k.store(d, k.pack_bf16(k.new(f32, float("nan")), k.new(f32, 1.0)))

    run(body, d=d)
    assert d[0] == 0x3F807FFF


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_rows(count: int) -> None:
    """Register i of lane 4 r + c: elements 2 c and 2 c + 1 of row r of matrix i, where lane 8 i + r says."""
    order = np.random.default_rng(0).permutation(8 * count)
    places = np.zeros(32, np.uint32)
    places[: 8 * count] = order * 16

    def body(k: Builder, places) -> None:
        tile = k.shared("tile", (8 * count, 8), BF16)
        values = k.array(u32, count)
        for i, value in enumerate(values):
            k.set(value, k.fused_multiply_add(k.lane * 2 + i * 64, 0x10001, 0x10000))  # its place twice, and one more
        stmatrix(k, tile.at(0) + k.load(u32, k.address(places, k.lane, 4)), values)

    block = run(body, places=places)
    tile = block.shared.bytes.data.view(np.uint16).reshape(8 * count, 8)
    np.testing.assert_array_equal(tile[order], np.arange(64 * count).reshape(8 * count, 8))


def test_stmatrix_misuse() -> None:
    def body(k: Builder, count: int = 2, shift: int = 0, lanes: int = 32) -> None:
        tile = k.shared("tile", (32, 8), BF16)
        values = k.array(u32, count)
        k.set(values, 0)
        with k.mask(k.lane < lanes):
            stmatrix(k, k.fused_multiply_add(k.lane, 16, tile.at(0, shift)), values)

    run(body)
    with pytest.raises(ValueError, match="stmatrix stores 3 registers; 1, 2 or 4 are wanted"):
        run(lambda k: body(k, count=3))
    with found("misaligned", "stmatrix to a row address that is no multiple of 16"):
        run(lambda k: body(k, shift=8))
    with found("out of bounds", "shared offset"):
        run(lambda k: body(k, count=4, shift=16))
    with found("divergence", "stmatrix in 31 of 32 lanes"):
        run(lambda k: body(k, lanes=31))


def test_neighbouring_float32() -> None:
    def body(k: Builder, shift: int = 0) -> None:
        row = k.shared("row", (72,), F32)
        x = k.new(f32, 1.5)
        store_shared_pair(k, k.fused_multiply_add(k.lane, 8, row.at(0)), x, x + 1.0, offset=16 + shift)

    data = run(body).shared.bytes.data.view(np.float32)
    np.testing.assert_array_equal(data[4:68], np.tile([1.5, 2.5], 32))
    assert not data[:4].any() and not data[68:].any()
    with found("misaligned", "accesses 8 bytes"):
        run(lambda k: body(k, shift=4))
