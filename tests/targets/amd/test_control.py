"""Control flow in AMDGCN text: loops, conditions, masks and roles do what the emulator does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kingpost.formats import U32
from kingpost.program import f32, pred, u32
from kingpost.targets.amd.amdgcn import amdgcn
from kingpost.targets.amd.targets import GFX942, GFX950

from .programs import LANES, both, launch

SCALARS = {"five": np.uint32(5), "zero": np.uint32(0)}


def triangle(k, d, five, zero):
    total = k.new(u32, 0)
    with k.loop(five) as i:
        with k.loop(i + k.lane * 0) as j:  # a bound in a vector register
            total += j * k.lane + i
    k.store(k.address(d, k.block * LANES + k.lane, 4), total)


def no_rounds(k, d, five, zero):
    total = k.new(f32, 1.0)
    with k.loop(zero):
        total += 1.0
    with k.loop(five, start=five + 3):
        total += 1.0
    with k.loop(17, start=2, step=five):
        total += 1.0
    k.store(k.address(d, k.block * LANES + k.lane, 4), k.convert(u32, total))


def nested_masks(k, d, five, zero):
    value = k.new(u32, 7)
    with k.mask(k.lane < 40):
        k.set(value, k.lane)
        with k.mask(k.lane % 3 == 1):
            value += 100
            with k.loop(five) as i:
                value += i
        value += 1000
    k.store(k.address(d, k.block * LANES + k.lane, 4), value)


def uniform_values_in_a_mask(k, d, five, zero):
    """What is the same in the lanes that write it is not the same in all lanes."""
    value = k.new(u32, 1)
    with k.loop(five) as i:
        with k.mask(k.lane % 5 == i):
            k.set(value, i * 2 + five)
            inside = i + five
            value += inside
    k.store(k.address(d, k.block * LANES + k.lane, 4), value)


def predicates_in_a_mask(k, d, five, zero):
    """Other lanes keep their predicate."""
    flag = k.new(pred)
    k.set(flag, k.lane < 10)
    with k.mask(k.lane > 5):
        k.set(flag, k.lane > 50)
    count = k.new(u32, 0)
    with k.mask(flag):
        count += 3
    k.store(k.address(d, k.block * LANES + k.lane, 4), k.select(flag, count + 1, count))


def conditions(k, d, five, zero):
    value = k.new(u32, 0)
    with k.when(five == 5):
        value += 1
        with k.when(k.block == 1):
            value += 10
    with k.when(zero != 0):
        value += 100
    with k.mask(k.lane >= 32):
        with k.when(k.lane >= 32):  # the same in all lanes that are here
            value += 1000
    k.store(k.address(d, k.block * LANES + k.lane, 4), value)


def a_counter_in_a_mask(k, d, five, zero):
    value = k.new(u32, 0)
    with k.mask(k.lane % 2 == 1):
        with k.loop(five) as i:
            with k.mask(k.lane > i * 10):
                value += i + 1
    k.store(k.address(d, k.block * LANES + k.lane, 4), value)


def carried(k, d, five, zero):
    """Registers carried around a loop keep their places; those of one round may share theirs."""
    first, second = k.new(u32, 1), k.new(u32, 1)
    kept = k.array(u32, 4)
    k.set(kept, 0)
    with k.loop(five) as i:
        together = first + second
        k.set(first, second)
        k.set(second, together)
        with k.when(i == 2):
            k.set(kept[1], together * 3)
        rest = [together + n + k.lane for n in range(6)]
        for each in rest:
            kept[0].__iadd__(each)
    k.store(k.address(d, k.block * LANES + k.lane, 4), kept[0] + kept[1] * 1000 + second)


@pytest.mark.parametrize("body", [
    triangle, no_rounds, nested_masks, uniform_values_in_a_mask, predicates_in_a_mask, conditions, a_counter_in_a_mask,
    carried,
])  # fmt: skip
def test_one_wave_a_block(body: Callable[..., Any]) -> None:
    d = np.full(2 * LANES, 0xDEAD, np.uint32)
    emulated, interpreted = both(GFX942, body, d, scalars=SCALARS, grid=2)
    assert (emulated != 0xDEAD).all()
    np.testing.assert_array_equal(interpreted, emulated)


def exchange(k, d):
    """Four waves through LDS, twice, by a barrier."""
    words = k.shared("words", (4 * LANES,), U32)
    value = k.new(u32, k.thread * 3)
    with k.loop(3) as i:
        k.store(k.fused_multiply_add(k.thread, 4, words.at(0)), value)
        k.barrier()
        other = (k.thread + 97 * (i + 1)) % (4 * LANES)
        value += k.load(u32, k.fused_multiply_add(other, 4, words.at(0)))
        k.barrier()
    k.store(k.address(d, k.block * (4 * LANES) + k.thread, 4), value + k.grid)


def test_waves_exchange_values() -> None:
    emulated, interpreted = both(GFX950, exchange, np.zeros(8 * LANES, np.uint32), warps=4, grid=2)
    np.testing.assert_array_equal(interpreted, emulated)


def roles(k, d):
    words = k.shared("words", (2 * LANES,), U32)
    with k.role("one", 1):
        k.store(k.fused_multiply_add(k.lane, 4, words.at(0)), k.lane + 7)
    with k.role("two", 2) as warp:
        with k.mask(k.lane < 32):
            k.store(k.fused_multiply_add(warp * 32 + k.lane, 4, words.at(LANES)), k.lane * warp)
    k.barrier()
    k.store(k.address(d, k.thread, 4), k.load(u32, k.fused_multiply_add(k.thread % (2 * LANES), 4, words.at(0))))


def test_roles() -> None:
    emulated, interpreted = both(GFX942, roles, np.zeros(3 * LANES, np.uint32))
    np.testing.assert_array_equal(interpreted, emulated)


def reduction(k, d):
    value = k.convert(f32, k.lane * 3 % 17)
    lanes = [k.reduce(name, value, n) for name in ("add", "max") for n in (4, 64)]
    for i, each in enumerate(lanes):
        k.store(k.address(d, k.lane + i * LANES, 4), each)


def test_reductions_over_a_wave() -> None:
    emulated, interpreted = both(GFX942, reduction, np.zeros(4 * LANES, np.float32))
    np.testing.assert_array_equal(interpreted, emulated)


def test_the_shape_of_a_mask_and_a_loop() -> None:
    def body(k, d, five):
        with k.mask(k.lane < 3):
            with k.loop(five) as i:
                k.store(k.address(d, k.lane, 4), i)

    text = amdgcn(launch(GFX942, body, d=np.zeros(LANES, np.uint32), scalars={"five": np.uint32(5)}).program)
    lines = [line.split()[0] for line in text.splitlines() if line.strip().startswith(("s_", "L"))]
    shape = [line for line in lines if line.startswith(("L", "s_cbranch", "s_and_save", "s_mov_b64"))]
    # labels are numbered in the order in which they are made
    end_of_mask, start, end = sorted(line for line in shape if line.startswith("L"))
    assert shape == [
        "s_and_saveexec_b64", "s_cbranch_execz", "s_cbranch_scc1", start, "s_cbranch_scc1", end, end_of_mask,
        "s_mov_b64",
    ]  # fmt: skip
