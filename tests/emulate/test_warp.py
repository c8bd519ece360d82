"""Warps on the emulator: lanes, masks, loops, memory; and every way to touch what one should not."""

from __future__ import annotations

import numpy as np
import pytest

from kingpost import emulate
from kingpost.formats import F32, U32
from kingpost.program import Builder, f32, pred, u32, u64

from .harness import build, found, run

LANES = np.arange(32)


def words(count: int = 32) -> np.ndarray:
    return np.full(count, 0xDEAD, np.uint32)


# What runs


def test_lanes_warps_blocks() -> None:
    d = np.zeros((3, 2, 32, 4), np.uint32)

    def body(k: Builder, d) -> None:
        for role in "ab":
            with k.role(role, warps=1) as own:
                place = k.address(d, (k.block * 2 + k.warp) * 32 + k.lane, 16)
                for i, value in enumerate((k.block, k.warp, own, k.grid)):
                    k.store(place, value, offset=4 * i)

    report = emulate.run(build(body, grid=3, d=d))
    assert report.blocks == 3
    for block in range(3):
        for warp in range(2):
            np.testing.assert_array_equal(d[block, warp], np.tile([block, warp, 0, 3], (32, 1)))


def test_masks_and_conditions() -> None:
    d = words()

    def body(k: Builder, d) -> None:
        place = k.address(d, k.lane, 4)
        even = k.lane % 2 == 0
        with k.mask(k.lane < 10):
            k.store(place, k.new(u32, 1))
            with k.mask(even):
                k.store(place, k.new(u32, 2))
            with k.mask(k.lane > 50):
                k.store(place, k.new(u32, 99))
        with k.when(k.block == 1):
            k.store(place, k.new(u32, 99))
        with k.when(k.block == 0), k.mask(k.lane == 20):
            k.store(place, k.new(u32, 3))

    run(body, d=d)
    expected = np.where(LANES < 10, np.where(LANES % 2 == 0, 2, 1), np.where(LANES == 20, 3, 0xDEAD))
    np.testing.assert_array_equal(d, expected)


def test_registers_keep_the_values_of_other_lanes() -> None:
    d = words()

    def body(k: Builder, d) -> None:
        x = k.new(u32, 5)
        with k.mask(k.lane < 4):
            x += 10
        k.select(k.lane == 9, 77, x, into=x)
        k.store(k.address(d, k.lane, 4), x)

    run(body, d=d)
    np.testing.assert_array_equal(d, np.where(LANES < 4, 15, np.where(LANES == 9, 77, 5)))


@pytest.mark.parametrize("start, stop, step", [(0, 5, 1), (3, 20, 4), (7, 7, 1), (9, 2, 1), (0, 1, 100)])
def test_loops(start: int, stop: int, step: int) -> None:
    d = words()

    def body(k: Builder, d) -> None:
        total, turns = k.new(u32, 0), k.new(u32, 0)
        with k.loop(k.new(u32, stop), start=start, step=k.new(u32, step)) as i:
            total += i
            turns += 1
        k.store(d, total)
        k.store(d, turns, offset=4)

    run(body, d=d)
    assert d[:2].tolist() == [sum(range(start, stop, step)), len(range(start, stop, step))]


def test_a_loops_bound_is_read_at_every_turn() -> None:
    d = words()

    def body(k: Builder, d) -> None:
        stop, turns = k.new(u32, 10), k.new(u32, 0)
        with k.loop(stop):
            stop -= 1
            turns += 1
        k.store(d, turns)

    run(body, d=d)
    assert d[0] == 5


def test_arrays_of_registers_and_views() -> None:
    d = np.zeros((8, 32), np.float32)

    def body(k: Builder, d) -> None:
        x = k.array(f32, 8)
        for i, register in enumerate(x):
            k.set(register, float(i))
        k.set(x[0:3], x[1:4])
        k.fused_multiply_add(x[4:8], x[[0, 0, 1, 1]], 0.5, into=x[4:8])
        for i, register in enumerate(x):
            k.store(k.address(d, k.lane, 4), register, offset=128 * i)

    run(body, d=d)
    np.testing.assert_array_equal(d[:, 7], [1, 2, 3, 3, 4.5, 5.5, 12.5, 14.5])


@pytest.mark.parametrize("schedule", ["late", "early", "random"])
def test_shared_memory_between_warps(schedule: str) -> None:
    d = words()

    def body(k: Builder, d) -> None:
        row = k.shared("row", (32,), U32)
        with k.role("writer", warps=1):
            k.store(row.at(k.lane), k.lane * 3)
            k.barrier()
        with k.role("reader", warps=1):
            k.barrier()
            k.store(k.address(d, k.lane, 4), k.load(u32, row.at(k.lane ^ 31)))

    run(body, schedule, d=d)
    np.testing.assert_array_equal(d, (31 - LANES) * 3)


def test_wide_words_and_offsets() -> None:
    d, source = np.zeros(4, np.uint64), np.array([0, 1, 2**63 + 5], np.uint64)

    def body(k: Builder, d, source) -> None:
        k.store(d, k.load(u64, source, offset=16), offset=8)

    run(body, d=d, source=source)
    assert d.tolist() == [0, 2**63 + 5, 0, 0]


def test_a_float_parameter_is_a_float() -> None:
    from kingpost.arrays import view
    from kingpost.program import Launch

    d = np.zeros(1, np.float32)
    k = Builder("eps", "sm_90a")
    k.store(k.parameter("d", u64), k.parameter("eps", f32))
    emulate.run(Launch(k.finish({}), 1, {"d": view(d).pointer, "eps": 1e-10}, (view(d),)))
    assert d[0] == np.float32(1e-10)


# Arithmetic


def chip(name: str, type, *operands: np.ndarray) -> np.ndarray:
    """One portable operation on up to 32 values a lane."""
    from kingpost.program.operations import portable

    arrays = {f"x{i}": np.resize(np.asarray(x, type.dtype), 32) for i, x in enumerate(operands)}
    d = np.zeros(32, np.uint32 if type is not u64 else np.uint64)

    def body(k: Builder, d, **places) -> None:
        size = type.bits // 8
        loads = [k.load(f32 if type is f32 else u32, k.address(p, k.lane, size)) for p in places.values()]
        result = portable(name, type)(k, *loads)
        if result.type is pred:
            result = k.select(result, 1, 0, into=k.new(u32))
        k.store(k.address(d, k.lane, 4), result)

    run(body, d=d, **arrays)
    return d[: len(operands[0])]


SPECIAL = np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 1e-45, 3e38], np.float32)
PAIRS = np.stack([x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL)])
NAN = 0x7FFFFFFF


@pytest.mark.parametrize("name", ["add", "sub", "mul", "min", "max", "lt", "le", "gt", "ge", "eq", "ne"])
def test_float32_as_ieee_has_it(name: str) -> None:
    """NaN is one NaN; minimum and maximum are of numbers, and know the sign of zero; only `ne` is true of NaN."""
    wanted = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
        "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        for start in range(0, PAIRS.shape[1], 32):
            a, b = PAIRS[:, start : start + 32]
            got = chip(name, f32, a, b)
            for x, y, bits in zip(a, b, got):
                if name in ("min", "max"):
                    numbers = [v for v in (x, y) if not np.isnan(v)]
                    pick = min if name == "min" else max
                    value = pick(numbers, key=lambda v: (v, not np.signbit(v))) if numbers else np.float32(np.nan)
                else:
                    value = wanted[name](x, y)
                if isinstance(value, np.float32):
                    value = NAN if np.isnan(value) else value.view(np.uint32)
                assert int(bits) == int(value), (name, x, y)


def test_float32_fma_rounds_once() -> None:
    x = np.float32(1 + 2**-12)
    (bits,) = chip("fma", f32, [x], [x], [-np.float32(1 + 2**-11)])
    assert bits == np.float32(2**-24).view(np.uint32)
    (nan,) = chip("fma", f32, [np.inf], [0.0], [1.0])
    assert nan == NAN


def test_unsigned_integers_wrap() -> None:
    top = np.array([2**32 - 1, 5, 0], np.uint32)
    assert chip("add", u32, top, [1, 1, 1]).tolist() == [0, 6, 1]
    assert chip("sub", u32, [0, 5, 0], top).tolist() == [1, 0, 0]
    assert chip("mul", u32, top, top).tolist() == [1, 25, 0]
    assert chip("shl", u32, [1, 3, 1], [31, 4, 32]).tolist() == [1 << 31, 48, 0]


# What is found


def test_a_register_without_a_value() -> None:
    def body(k: Builder, d) -> None:
        k.store(d, k.new(u32, name="x"))

    with found("uninitialised", "reads x, which was never written", "block 0, warp 0", "test_warp.py:"):
        run(body, d=words())


def test_a_register_without_a_value_in_some_lanes() -> None:
    def body(k: Builder, d, masked: bool) -> None:
        x = k.new(u32, name="x")
        with k.mask(k.lane < 16):
            k.set(x, 1)
        with k.mask(k.lane < (16 if masked else 17)):
            k.store(k.address(d, k.lane, 4), x)

    run(lambda k, d: body(k, d, True), d=words())
    with found("uninitialised", "reads x"):
        run(lambda k, d: body(k, d, False), d=words())


def test_one_register_of_an_array_without_a_value() -> None:
    def body(k: Builder, d) -> None:
        x = k.array(u32, 4, "x")
        k.set(x[:3], 1)
        k.store(d, x[2])
        k.store(d, x[3])

    with found("uninitialised", "x[3]"):
        run(body, d=words())


def test_shared_memory_without_a_value() -> None:
    def body(k: Builder, d) -> None:
        row = k.shared("row", (4, 8), F32)
        k.store(row.at(2), k.new(f32, 1.0))
        k.store(d, k.load(f32, row.at(2)))
        k.store(d, k.load(f32, row.at(2, offset=4)))

    with found("uninitialised", "reads row[2]+4, which is never written"):
        run(body, d=words())


@pytest.mark.parametrize("offset, legal", [(124, True), (128, False), (-4, False)])
def test_global_bounds(offset: int, legal: bool) -> None:
    whole = words(96)

    def body(k: Builder, d) -> None:
        k.store(d + (offset & (2**64 - 1)), k.new(u32, 1))

    if legal:
        run(body, d=whole[32:64])
        assert whole[63] == 1 and (np.delete(whole, 63) == 0xDEAD).all()
    else:
        with found("out of bounds", "in none of the launch's arrays"):
            run(body, d=whole[32:64])
        assert (whole == 0xDEAD).all()


def test_global_bounds_of_loads() -> None:
    def body(k: Builder, d) -> None:
        k.load(u32, k.address(d, k.lane + 1, 4))

    with found("out of bounds", "in none of the launch's arrays"):
        run(body, d=words())


def test_gaps_between_views_are_out_of_bounds() -> None:
    whole = words(96)

    def body(k: Builder, a, b) -> None:
        k.load(u32, a, offset=128)

    with found("out of bounds"):
        run(body, a=whole[:32], b=whole[64:])


@pytest.mark.parametrize("at", [64, 1 << 20])
def test_shared_bounds(at: int) -> None:
    def body(k: Builder) -> None:
        k.shared("row", (16,), F32)
        k.store(k.shared_base + at, k.new(f32, 1.0))

    with found("out of bounds", "of 64 bytes"):
        run(body)


def test_below_shared_memory() -> None:
    def body(k: Builder) -> None:
        k.shared("row", (16,), F32)
        k.load(f32, k.shared_base - 4)

    with found("out of bounds", "offset -4"):
        run(body)


@pytest.mark.parametrize("type, offset", [(u32, 2), (f32, 1), (u64, 4)])
def test_misalignment(type, offset: int) -> None:
    def from_global(k: Builder, d) -> None:
        k.load(type, d + offset)

    def to_shared(k: Builder) -> None:
        row = k.shared("row", (16,), F32)
        k.store(row.at(0, offset), k.new(type, 0))

    d = np.zeros(32, np.uint64)
    with found("misaligned", f"accesses {type.bits // 8} bytes"):
        run(from_global, d=d)
    with found("misaligned"):
        run(to_shared)


def test_a_condition_that_differs_between_lanes() -> None:
    def body(k: Builder) -> None:
        with k.when(k.lane < 5):
            k.set(k.new(u32), 1)

    with found("divergence", "the condition of a when differs between lanes"):
        run(body)


def test_a_bound_that_differs_between_lanes() -> None:
    def body(k: Builder) -> None:
        with k.loop(k.lane):
            k.set(k.new(u32), 1)

    with found("divergence", "a loop's bound differs"):
        run(body)


def test_the_blocks_barrier_in_some_lanes() -> None:
    def body(k: Builder) -> None:
        with k.mask(k.lane < 5):
            k.barrier()

    with found("divergence", "barrier in 5 of 32 lanes; all are wanted"):
        run(body)


def test_a_barrier_that_one_warp_never_reaches() -> None:
    def body(k: Builder) -> None:
        with k.role("stays", warps=2):
            k.barrier()
        with k.role("leaves", warps=1):
            k.set(k.new(u32), 1)

    with pytest.raises(emulate.DeadlockError) as info:
        run(body)
    message = str(info.value)
    assert "block 0" in message and message.count("barrier 0, where 2 of 3 warps have arrived") == 2
    assert "block 0, stays warp 0 at test_warp.py:" in message and "leaves" not in message
