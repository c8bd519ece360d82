"""Waits and wait states: the weakest that are right, none that can be left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kingpost.formats import U32
from kingpost.program import f32, u32
from kingpost.program.operations import portable
from kingpost.targets.amd.amdgcn import amdgcn
from kingpost.targets.amd.isa.cdna3 import v_mfma_f32_32x32x16_fp8_fp8
from kingpost.targets.amd.isa.common import ds_read_b32, s_waitcnt
from kingpost.targets.amd.targets import GFX942

from .interpreter import Refused
from .programs import LANES, interpret, launch


def text_of(body: Callable[..., None], **given: Any) -> str:
    return amdgcn(launch(GFX942, body, d=np.zeros(1, np.uint32), **given).program)


def lines_of(body: Callable[..., None], *names: str, **given: Any) -> list[str]:
    """The instructions of a body's text whose names start with one of `names`."""
    lines = [line.strip() for line in text_of(body, **given).splitlines()]
    code = lines[next(i for i, line in enumerate(lines) if line.startswith("s_load")) :]
    return [line for line in code if line.startswith(names)]


def use(k, d, count):
    """Loads of each kind, used; a product that stalls; stores to LDS and a barrier."""
    words = k.shared("words", (LANES,), U32).at(0)
    place = k.fused_multiply_add(k.lane, 4, words)
    first, second = (k.load(u32, k.address(d, k.lane, 4), offset=i * 4 * LANES) for i in range(2))
    k.store(place, first + k.block)
    k.barrier()
    other = k.load(u32, k.fused_multiply_add(k.lane ^ 5, 4, words))
    divided = portable("div", f32)(k, k.convert(f32, second), k.convert(f32, other | 1))
    chosen = k.select(k.lane < 20, other, k.convert(u32, divided))
    k.store(k.address(d, k.lane, 4), k.shuffle_xor(chosen, 32) + (second // (other | 1)))


def rounds(k, d, count):
    """A value loaded ahead, one round before it is used."""
    total, ahead = k.new(u32, 0), k.load(u32, k.address(d, k.lane, 4))
    with k.loop(count) as i:
        following = k.load(u32, k.address(d, i * LANES + k.lane, 4))
        total += ahead
        with k.mask(k.lane > i * 40):  # no lane in some rounds
            k.set(ahead, k.load(u32, k.address(d, i * LANES + k.lane, 4), offset=4 * LANES))
        total += following
    k.store(k.address(d, k.lane, 4), total + ahead)


@pytest.mark.parametrize("body", [use, rounds])
def test_no_wait_and_no_wait_state_can_be_left_out(body: Callable[..., None]) -> None:
    """The interpreter, which knows nothing of how they were put in, refuses the text without any one of them."""

    def outcome(text: str | None) -> np.ndarray:
        left = []
        for count in (0, 4):  # every way through the text
            d = np.arange(8 * LANES, dtype=np.uint32)
            interpret(launch(GFX942, body, d=d, scalars={"count": np.uint32(count)}), text)
            left.append(d)
        return np.stack(left)

    whole, lines = outcome(None), text_of(body, scalars={"count": np.uint32(4)}).splitlines()
    waits = [i for i, line in enumerate(lines) if line.strip().startswith(("s_waitcnt", "s_nop"))]
    assert len(waits) > 4
    for i in waits:
        name, _, rest = lines[i].strip().partition(" ")
        less = [] if rest == "0" or name == "s_waitcnt" else [f"  s_nop {int(rest) - 1}"]
        try:
            same = (outcome("\n".join([*lines[:i], *less, *lines[i + 1 :]])) == whole).all()
        except Refused:
            same = False
        assert not same, f"nobody misses line {i}: {lines[i]}"


def test_loads_are_counted_in_order() -> None:
    def body(k, d):
        loaded = [k.load(u32, k.address(d, k.lane, 4), offset=i * 4 * LANES) for i in range(4)]
        for i in (0, 2, 3, 1):
            k.store(k.address(d, k.lane, 4), loaded[i] + 1)

    # stores count too: after the first, two loads and it are newer than the third load... and so on
    assert lines_of(body, "s_waitcnt", "global_", "s_load") == [
        *(line for line in lines_of(body, "s_load")),
        "s_waitcnt lgkmcnt(0)",
        *(line for line in lines_of(body, "global_load")),
        "s_waitcnt vmcnt(3)",
        lines_of(body, "global_store")[0],
        "s_waitcnt vmcnt(2)",
        lines_of(body, "global_store")[1],
        "s_waitcnt vmcnt(2)",
        *lines_of(body, "global_store")[2:],
    ]


def test_a_scalar_load_in_flight_is_waited_for_to_the_end() -> None:
    """LDS and scalar loads share a counter out of order."""

    def body(k, d, late):
        k.barrier()
        words = k.shared("words", (LANES,), U32).at(0)
        value = k.load(u32, k.fused_multiply_add(k.lane, 4, words))
        other = k.load(u32, k.fused_multiply_add(k.lane, 4, words), offset=4)
        k.store(k.address(d, k.lane, 4), value + late)
        k.store(k.address(d, k.lane, 4), other)

    waits = lines_of(body, "s_waitcnt", scalars={"late": np.uint32(1)})
    assert all("lgkmcnt(0)" in wait for wait in waits)


def test_lds_alone_is_counted() -> None:
    def body(k, d):
        words = k.shared("words", (4 * LANES,), U32).at(0)
        place = k.fused_multiply_add(k.lane, 4, words)
        at = k.address(d, k.lane, 4)
        k.store(at, k.lane)
        loaded = [k.load(u32, place, offset=4 * LANES * i) for i in range(3)]
        for each in loaded:
            k.store(at, each)

    assert re.findall(r"lgkmcnt\((\d)\)", " ".join(lines_of(body, "s_waitcnt"))) == ["0", "2", "1", "0"]


def test_a_barrier_waits_for_stores_and_not_for_loads() -> None:
    def body(k, d):
        words = k.shared("words", (LANES,), U32).at(0)
        k.store(k.address(d, k.lane, 4), k.lane)
        value = k.load(u32, k.address(d, k.lane, 4), offset=256)
        k.store(k.fused_multiply_add(k.lane, 4, words), k.lane)
        k.barrier()
        k.store(k.address(d, k.lane, 4), value)

    lines = lines_of(body, "s_waitcnt", "s_barrier")
    assert lines == ["s_waitcnt lgkmcnt(0)", "s_waitcnt vmcnt(1) lgkmcnt(0)", "s_barrier", "s_waitcnt vmcnt(0)"]


def test_a_load_ahead_stays_in_flight_around_a_loop() -> None:
    def body(k, d):
        ahead, total = k.load(u32, k.address(d, k.lane, 4)), k.new(u32, 0)
        with k.loop(4) as i:
            following = k.load(u32, k.address(d, i * LANES + k.lane, 4))
            total += ahead
            k.set(ahead, following)
        k.store(k.address(d, k.lane, 4), total)

    # in the loop: first for the value of the round before, with the new load in flight; then for the new one
    assert lines_of(body, "s_waitcnt vm") == ["s_waitcnt vmcnt(1)", "s_waitcnt vmcnt(0)"]


def test_arguments_are_there_before_what_is_written_by_hand() -> None:
    """So no scalar load, which lgkmcnt would count out of order, is in flight at a wait of the kernel's own."""

    def body(k, d, late):
        words, value = k.shared("words", (LANES,), U32).at(0), k.array(u32, 1)
        ds_read_b32(k, k.fused_multiply_add(k.lane, 4, words), into=value)
        s_waitcnt(k, lgkmcnt=0)

    lines = lines_of(body, "s_load", "s_waitcnt", "ds_read", scalars={"late": np.uint32(1)})
    by_hand = next(i for i, line in enumerate(lines) if line.startswith("ds_read"))
    assert lines[by_hand - 2].startswith("s_load") and lines[by_hand - 1] == "s_waitcnt lgkmcnt(0)", lines


def test_a_product_by_hand_is_waited_for_where_its_result_is_read() -> None:
    def body(k, d):
        operand, result = k.array(u32, 2), k.array(f32, 16)
        k.set(operand, 0)
        v_mfma_f32_32x32x16_fp8_fp8(k, operand, operand, 0, into=result)
        k.store(k.address(d, k.lane, 4), result[5])

    code = lines_of(body, "v_", "s_nop", "global_store")
    after = code[next(i for i, line in enumerate(code) if line.startswith("v_mfma")) + 1 :]
    states = sum(int(line.split()[1]) + 1 if line.startswith("s_nop") else 1 for line in after[:-1])
    assert after[-1].startswith("global_store") and states == 20, after
