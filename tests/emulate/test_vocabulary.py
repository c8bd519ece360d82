"""The wider vocabulary: conversions, vectors, narrow accesses, shuffles, reductions, other targets' waves."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kingpost import emulate
from kingpost.formats import E4M3FNUZ, F32, U8
from kingpost.program import Builder, Target, f32, s32, u32, u64

from .harness import build, found, run

LANES = np.arange(32)


def lanewise(make, x: np.ndarray, lanes: int = 32, target: str | Target = "sm_90a") -> np.ndarray:
    """`make(k, register)` of up to one value a lane, each 32 bits wide; u32 out."""
    source, d = np.resize(x, lanes), np.zeros(lanes, np.uint32)

    def body(k: Builder, source, d) -> None:
        value = k.load(f32 if x.dtype == np.float32 else u32, k.address(source, k.lane, 4))
        result = make(k, value)
        k.store(k.address(d, k.lane, 4), result if result.type is not s32 else k.bits(k.convert(f32, result)))

    run(body, source=source, d=d, target=target)
    return d[: len(x)]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# Conversions


def test_integers_from_floats() -> None:
    """Truncated, saturated, NaN to zero."""
    x = floats(-1.0, -0.99, 0.99, 1.5, 4.2e9, 4.3e9, np.inf, -np.inf, np.nan, 16777217.0)
    got = lanewise(lambda k, v: k.convert(u32, v), x)
    assert got.tolist() == [0, 0, 0, 1, 4200000000, 2**32 - 1, 2**32 - 1, 0, 0, 16777216]
    signed = lanewise(lambda k, v: k.convert(s32, v), floats(-1.9, 1.9, -3e9, 3e9, np.nan)).view(np.float32)
    assert signed.tolist() == [-1.0, 1.0, -(2.0**31), 2.0**31, 0.0]


def test_floats_from_integers() -> None:
    x = np.array([0, 1, 16777217, 16777219, 2**32 - 1], np.uint32)
    got = lanewise(lambda k, v: k.convert(f32, v), x).view(np.float32)
    assert got.tolist() == [0.0, 1.0, 16777216.0, 16777220.0, 4294967296.0]


def test_bits_and_back() -> None:
    x = floats(1.5, -0.0, np.inf, 1e-45)
    np.testing.assert_array_equal(lanewise(lambda k, v: k.bits(v), x), x.view(np.uint32))
    np.testing.assert_array_equal(lanewise(lambda k, v: k.from_bits(v), x.view(np.uint32)), x.view(np.uint32))


def test_wider_integers() -> None:
    d = np.zeros(32, np.uint64)

    def body(k: Builder, d) -> None:
        k.store(k.address(d, k.lane, 8), k.convert(u64, k.lane - 1))

    run(body, d=d)
    assert d[:2].tolist() == [2**32 - 1, 0]


def test_every_float8_code() -> None:
    codes = np.arange(256, dtype=np.uint32).reshape(8, 32)
    for index in range(4):
        got = [lanewise(lambda k, v, i=index: k.unpack_float8(v, i), row << (8 * index)) for row in codes]
        wanted = codes.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        np.testing.assert_array_equal(np.array(got).view(np.float32), wanted)


def test_packing_float8() -> None:
    x = floats(1.0, 448.0, 464.0, 1e9, -np.inf, np.nan, 2.0**-10, 3 * 2.0**-10, 17.0, 19.0, -0.0)
    wanted = [0x38, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x00, 0x02, 0x58, 0x5A, 0x80]
    got = lanewise(lambda k, v: k.pack_float8(v, v * 0.0, v, k.new(f32, 1.0)), x)
    assert (got & 0xFF).tolist() == (got >> 16 & 0xFF).tolist() == wanted
    assert set((got >> 24).tolist()) == {0x38}
    assert (got[5] >> 8 & 0xFF, got[0] >> 8 & 0xFF) == (0x7F, 0)


def test_packing_is_in_the_targets_float8() -> None:
    fnuz = Target("chip", float8=E4M3FNUZ)
    got = lanewise(lambda k, v: k.pack_float8(v, v, v, v), floats(1.0, 448.0, np.nan), target=fnuz)
    assert got.tolist() == [0x40404040, 0x7F7F7F7F, 0x80808080]


def test_signs_and_quotients() -> None:
    x = floats(3.0, -3.0, 0.0, -np.inf)
    assert lanewise(lambda k, v: k.emit_portable("abs", v), x).view(np.float32).tolist() == [3, 3, 0, np.inf]
    got = lanewise(lambda k, v: k.emit_portable("neg", v), x).view(np.float32)
    assert got.tolist() == [-3, 3, 0, np.inf] and np.signbit(got[2])
    quotients = lanewise(lambda k, v: k.emit_portable("div", k.new(f32, 1.0), v), x).view(np.float32)
    assert quotients.tolist() == [np.float32(1) / np.float32(3), -np.float32(1) / np.float32(3), np.inf, 0.0]
    assert lanewise(lambda k, v: k.emit_portable("div", v, v), floats(0.0)).tolist() == [0x7FFFFFFF]


def test_logic_of_conditions() -> None:
    def either(k: Builder, v):
        low, high = v < 3, v > 28
        return k.select(k.emit_portable("or", low, high), 1, k.select(k.emit_portable("not", low), 2, 3))

    got = lanewise(either, LANES.astype(np.uint32))
    np.testing.assert_array_equal(got, np.where((LANES < 3) | (LANES > 28), 1, 2))


# Memory


@pytest.mark.parametrize("type, dtype", [(u32, np.uint32), (f32, np.float32)])
@pytest.mark.parametrize("count", [2, 4])
def test_vectors(count: int, type, dtype) -> None:
    source, d = np.arange(32 * count).astype(dtype), np.zeros(32 * count, dtype)

    def body(k: Builder, source, d) -> None:
        place = 4 * count
        row = k.shared("row", (32 * count + 4,), F32)
        x = k.load_vector(type, k.address(source, k.lane, place), count)
        k.store_vector(k.fused_multiply_add(k.lane, place, row.at(0)), x, offset=16)
        y = k.load_vector(type, k.fused_multiply_add(k.lane ^ 1, place, row.at(0)), count, offset=16)
        with k.mask(k.lane < 30):
            k.store_vector(k.address(d, k.lane, place), y[::-1])

    run(body, source=source, d=d)
    wanted = source.reshape(16, 2, count)[:, ::-1, ::-1].reshape(32, count).copy()
    wanted[30:] = 0
    np.testing.assert_array_equal(d.reshape(32, count), wanted)


def test_vectors_that_are_misaligned_or_too_long() -> None:
    def body(k: Builder, d, offset: int) -> None:
        k.load_vector(f32, k.address(d, k.lane, 4) if offset == 4 else d, 4, offset=offset)

    d = np.zeros(64, np.float32)
    assert d.ctypes.data % 16 == 0
    for offset in (4, 8):
        with found("misaligned", "accesses 16 bytes"):
            run(lambda k, d, o=offset: body(k, d, o), d=d)
    with found("out of bounds"):
        run(lambda k, d: body(k, d, 256), d=d)
    k = Builder("refused", "sm_90a")
    with pytest.raises(TypeError, match="load_global_x3"):
        k.load_vector(f32, k.new(u64), 3)
    with pytest.raises(TypeError, match="store_global_x2 on u64"):
        k.store_vector(k.new(u64), k.array(u64, 2))


@pytest.mark.parametrize("bits", [8, 16])
def test_narrow_accesses(bits: int) -> None:
    dtype = np.dtype(f"uint{bits}")
    source, d = np.arange(32).astype(dtype) * 7 + (2**bits - 100), np.zeros(34, dtype)

    def body(k: Builder, source, d) -> None:
        size = bits // 8
        row = k.shared("row", (64,), U8)
        x = k.load_narrow(bits, k.address(source, k.lane, size))
        k.store_narrow(bits, k.fused_multiply_add(k.lane, size, row.at(0)), x | 0xFF0000)
        y = k.load_narrow(bits, k.fused_multiply_add(k.lane, size, row.at(0)))
        k.store_narrow(bits, k.address(d, k.lane, size), y + 1, offset=size)

    run(body, source=source.view(np.uint8), d=d.view(np.uint8))
    np.testing.assert_array_equal(d, np.concatenate([[0], source + dtype.type(1), [0]]))


# Between lanes


@pytest.mark.parametrize("mask", [1, 5, 16, 31])
def test_shuffles(mask: int) -> None:
    got = lanewise(lambda k, v: k.shuffle_xor(v, mask), LANES.astype(np.uint32) * 3)
    np.testing.assert_array_equal(got, (LANES ^ mask) * 3)


def test_a_shuffle_in_some_lanes() -> None:
    def body(k: Builder) -> None:
        with k.mask(k.lane < 16):
            k.shuffle_xor(k.lane, 1)

    with found("divergence", "shuffle_xor.u32 in 16 of 32 lanes"):
        run(body)


@pytest.mark.parametrize("lanes", [2, 8, None])
@pytest.mark.parametrize("name", ["add", "min", "max"])
def test_reductions(name: str, lanes: int | None) -> None:
    x = np.ldexp(np.random.default_rng(0).standard_normal(32), LANES % 7).astype(np.float32)
    groups = x.reshape(-1, lanes or 32)
    if name == "add":
        wanted = groups
        while wanted.shape[1] > 1:  # farthest lanes first
            half = wanted.shape[1] // 2
            wanted = wanted[:, :half] + wanted[:, half:]
    else:
        wanted = getattr(groups, name)(axis=1, keepdims=True)
    got = lanewise(lambda k, v: k.reduce(name, v, lanes), x).view(np.float32)
    np.testing.assert_array_equal(got.reshape(groups.shape), np.broadcast_to(wanted, groups.shape))


@pytest.mark.parametrize("lanes", [3, 0, 64, -2])
def test_reductions_over_groups_that_do_not_exist(lanes: int) -> None:
    k = Builder("refused", "sm_90a")
    with pytest.raises(ValueError, match=f"lanes is {lanes}; a power of two up to 32 is wanted"):
        k.reduce("add", k.lane, lanes)


# Blocks and targets


def test_blocks_of_several_warps_that_all_do_the_same() -> None:
    d = np.zeros(96, np.uint32)

    def body(k: Builder, d) -> None:
        k.warps(3)
        k.store(k.address(d, k.thread, 4), k.thread + 1)

    report = emulate.run(build(body, d=d))
    assert report.blocks == 1
    np.testing.assert_array_equal(d, np.arange(96) + 1)


def test_warps_are_counted_once() -> None:
    def both(k: Builder) -> None:
        with k.role("a", warps=1):
            k.barrier()
        k.warps(2)

    with pytest.raises(ValueError, match="warps is 2; this program has 1 already"):
        run(both)


def test_waves_of_another_target() -> None:
    wide = Target("wide", lanes=64)
    x = np.arange(64).astype(np.uint32)
    got = lanewise(lambda k, v: k.reduce("add", v, 64) + k.shuffle_xor(v, 32), x, lanes=64, target=wide)
    np.testing.assert_array_equal(got, x.sum() + (x ^ 32))

    def body(k: Builder) -> None:
        with k.mask(k.lane < 60):
            k.barrier()

    with found("divergence", "barrier in 60 of 64 lanes"):
        run(body, target=wide)
