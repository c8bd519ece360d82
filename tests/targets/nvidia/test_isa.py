"""Between lanes, conversions, and the way out of registers: what lanes give and where it lands; the texts are taken."""

from __future__ import annotations

import numpy as np
import pytest

from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.formats import BF16, F32
from kingpost.program import Builder, f32, u32, u64
from kingpost.targets.nvidia.isa.common import (
    ballot,
    bulk_load_3d,
    bulk_store_3d,
    find_first_set,
    pack_f16,
    population_count,
    shuffle_index,
    shuffle_up,
    stmatrix,
    store_shared_pair,
    unpack_f16,
)
from kingpost.targets.nvidia.ptx import ptx

from ...emulate.harness import found, run

LANES = np.arange(32, dtype=np.uint32)


def per_lane(operation, *given: np.ndarray, type=u32) -> np.ndarray:
    """What `operation(k, *values)` gives in each lane, `given` being its operands lane by lane."""
    d = np.zeros(32, np.uint32)

    def body(k: Builder, d, **arrays) -> None:
        values = [k.load(type, k.address(array, k.lane, 4)) for array in arrays.values()]
        result = operation(k, *values)
        k.store(k.address(d, k.lane, 4), result)

    run(body, d=d, **{f"x{i}": np.resize(x, 32).astype(type.dtype) for i, x in enumerate(given)})
    return d


@pytest.mark.parametrize("distance", [1, 4, 16, 31])
def test_shuffles_up(distance: int) -> None:
    x = LANES * 3 + 5
    want = np.concatenate([x[:distance], x[:-distance]])
    np.testing.assert_array_equal(per_lane(lambda k, x: shuffle_up(k, x, distance=distance), x), want)


def test_shuffles_by_index() -> None:
    x, index = LANES * 3 + 5, (LANES * 7 + 3) % 64
    np.testing.assert_array_equal(per_lane(shuffle_index, x, index), x[index % 32])
    np.testing.assert_array_equal(per_lane(lambda k, x: shuffle_index(k, x, 30), x), np.full(32, x[30]))


def test_ballots() -> None:
    for x in (LANES % 3, LANES * 0, LANES * 0 + 1, LANES // 31):
        want = sum(1 << lane for lane in range(32) if x[lane])
        np.testing.assert_array_equal(per_lane(lambda k, x: ballot(k, x != 0), x), np.full(32, want, np.uint32))


def test_bits_are_counted_and_found() -> None:
    x = np.array([0, 1, 2, 0x80000000, 0xFFFFFFFF, 0xA0, 0x12345600, 3 << 20], np.uint32)
    counts = [bin(each).count("1") for each in x.tolist()]
    np.testing.assert_array_equal(per_lane(population_count, x), np.resize(counts, 32))
    first = [bin(each)[::-1].index("1") if each else 32 for each in x.tolist()]
    np.testing.assert_array_equal(per_lane(find_first_set, x), np.resize(first, 32))


@pytest.mark.parametrize("name, operation", [
    ("shfl.sync.up.b32", lambda k: shuffle_up(k, k.lane, distance=1)),
    ("shfl.sync.idx.b32", lambda k: shuffle_index(k, k.lane, 3)),
    ("vote.sync.ballot.b32", lambda k: ballot(k, k.lane < 3)),
])  # fmt: skip
def test_whole_warps_only(name: str, operation) -> None:
    def body(k: Builder) -> None:
        with k.mask(k.lane < 31):
            operation(k)

    with found("divergence", f"{name} in 31 of 32 lanes"):
        run(body)


def test_halves_and_back() -> None:
    """To nearest even, subnormals kept, past the largest infinity, one NaN; and every float16 comes back as it is."""
    x = np.array([1, 1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, -1e6, 2**-24, 2**-25, 3 * 2**-26, -0.0], np.float32)
    want = [0x3C00, 0x3C00, 0x3C02, 0x7BFF, 0x7C00, 0xFC00, 0x0001, 0x0000, 0x0001, 0x8000]
    got = per_lane(pack_f16, x, -x, type=f32)[: len(x)]
    assert (got & 0xFFFF).tolist() == want
    assert (got >> 16).tolist() == [each ^ 0x8000 for each in want]
    nan = np.array([0x7FC00000, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    assert set(per_lane(pack_f16, nan, nan, type=f32)) == {0x7FFF7FFF}
    codes = np.arange(1 << 16, dtype=np.uint32)
    for half in (0, 1):
        for first in range(0, 1 << 16, 1 << 12):
            some = codes[first : first + 32]
            got = per_lane(lambda k, x, half=half: unpack_f16(k, x, half=half), some << np.uint32(16 * half) | 0)
            wanted = some.astype(np.uint16).view(np.float16).astype(np.float32)
            np.testing.assert_array_equal(got.view(np.float32), wanted)


def test_texts_are_taken() -> None:
    k = Builder("texts", "sm_90a")
    map, d = k.tensor_map("map", BF16, (1, 8, 64), 128), k.parameter("d", u64)
    tile, full = k.shared("tile", (8, 64), BF16, 128), k.shared_barriers("full", 1).at(0)
    with k.mask(k.lane == 0):
        bulk_load_3d(k, tile.at(0), map.register, k.block, 8, k.block * 64, full, type=map.type)
        bulk_store_3d(k, map.register, 0, k.block, 64, tile.at(0), type=map.type)
    values = k.array(u32, 4)
    k.set(values, k.lane)
    for count in (1, 2, 4):
        stmatrix(k, tile.at(0), values[:count], transposed=True)
    x = k.load(f32, d)
    halves = pack_f16(k, x, x + 1.0)
    sums = [unpack_f16(k, halves, half=half) for half in (0, 1)]
    votes = ballot(k, x > 0.0)
    bits = shuffle_up(k, k.lane, distance=3) + shuffle_index(k, votes, k.lane ^ 1)
    for at, result in enumerate([halves, *sums, population_count(k, bits), find_first_set(k, bits)]):
        k.store(d, result, offset=4 * at)
    text = ptx(k.finish({}))
    assert "{%r" in text and ".x4.trans.shared.b16" in text
    try:
        assemble(text, "sm_90a", find_ptxas())
    except AssemblerNotFound as error:
        pytest.skip(str(error))


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


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_transposed(count: int) -> None:
    """What lands in column r of matrix i is what lane 4 r + c holds, in rows 2 c and 2 c + 1."""

    def tiles(transposed: bool) -> np.ndarray:
        def body(k: Builder) -> None:
            tile, values = k.shared("tile", (8 * count, 8), BF16), k.array(u32, count)
            for i, value in enumerate(values):
                k.set(value, k.fused_multiply_add(k.lane * 2 + i * 64, 0x10001, 0x10000))
            stmatrix(k, k.fused_multiply_add(k.lane, 16, tile.at(0)), values, transposed=transposed)

        return run(body).shared.bytes.data.view(np.uint16).reshape(count, 8, 8)

    np.testing.assert_array_equal(tiles(True), tiles(False).transpose(0, 2, 1))


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
