"""Two waves and their memory: what orders them, and each wait and barrier of it missing, in every schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kingpost.formats import U32
from kingpost.program import Builder, Register, u32
from kingpost.targets.amd.isa.common import (
    ds_read_b32,
    ds_write_b32,
    global_load_dword,
    global_store_dword,
    s_barrier,
    s_waitcnt,
)
from kingpost.targets.amd.targets import GFX942

from ...emulate.harness import found, run
from .wave import SCHEDULES

LANES, WAVES = 64, 2
every_schedule = pytest.mark.parametrize("order", SCHEDULES)


def emulated(body: Callable[..., None], order: str) -> np.ndarray:
    """What two waves leave in `result`, uint32 [128]: a word for each thread."""
    result = np.zeros(WAVES * LANES, np.uint32)

    def whole(k: Builder, result: Register) -> None:
        k.warps(WAVES)
        body(k, result)

    run(whole, order, seed=3, target=GFX942, result=result)
    return result


def exchange(k: Builder, result: Register, missing: str = "") -> None:
    """Each wave writes a word of LDS a lane and reads the other's, twice; in the second round something is missing."""
    tile, value = k.shared("tile", (WAVES * LANES,), U32), k.array(u32, 1)
    own, other = tile.at(0) + k.thread * 4, tile.at(0) + (k.thread ^ LANES) * 4

    def exchanged(missing: str) -> None:
        ds_write_b32(k, own, k.thread)
        if missing == "wait after a write":
            s_waitcnt(k, vmcnt=0)  # of the other counter
        else:
            s_waitcnt(k, lgkmcnt=1 if missing == "wait for all writes" else 0)
        if missing != "barrier after a write":
            s_barrier(k)
        ds_read_b32(k, other, into=value)
        if missing != "wait after a read":
            s_waitcnt(k, lgkmcnt=0)
        if missing != "barrier after a read":
            s_barrier(k)
        s_waitcnt(k, lgkmcnt=0)

    for weak in ("", missing, ""):
        exchanged(weak)
    global_store_dword(k, k.address(result, k.thread, 4), value)


@every_schedule
def test_waves_exchange_words(order: str) -> None:
    assert (emulated(exchange, order) == np.arange(WAVES * LANES) ^ LANES).all()


@every_schedule
@pytest.mark.parametrize(
    "missing, touches",
    [
        ("wait after a write", "ds_write_b32 of block 0, warp"),
        ("wait for all writes", "ds_write_b32 of block 0, warp"),
        ("barrier after a write", "tile["),
        ("wait after a read", "ds_read_b32 of block 0, warp"),
        ("barrier after a read", "tile["),
    ],
)
def test_lds_is_exchanged_too_early(order: str, missing: str, touches: str) -> None:
    with found("race", "nothing orders the two", "tile[", touches, "test_races.py"):
        emulated(lambda k, result: exchange(k, result, missing), order)


Step = Callable[[], Any]


def one_after_another(k: Builder, first: Step, between: Step, then: Step) -> None:
    """Wave 0 does `first`, wave 1 `then`; both do what is `between`."""
    with k.when(k.warp == 0):
        first()
    between()
    with k.when(k.warp == 1):
        then()


@every_schedule
@pytest.mark.parametrize(
    "left, barrier, races",
    [
        ({"vmcnt": 0}, True, False),
        ({"vmcnt": 1}, True, True),  # of one store, one may be in flight: no wait
        ({"lgkmcnt": 0}, True, True),
        ({"vmcnt": 0}, False, True),
    ],
    ids=["ordered", "vmcnt too large", "other counter", "no barrier"],
)
def test_global_memory_from_wave_to_wave(order: str, left: dict[str, int], barrier: bool, races: bool) -> None:
    def body(k: Builder, result: Register) -> None:
        at, value = k.address(result, k.lane, 4), k.array(u32, 1)

        def between() -> None:
            s_waitcnt(k, **left)
            if barrier:
                s_barrier(k)

        def pass_on() -> None:
            global_load_dword(k, at, into=value)
            s_waitcnt(k, vmcnt=0)
            global_store_dword(k, at, value, offset=4 * LANES)

        one_after_another(k, lambda: global_store_dword(k, at, k.lane + 1), between, pass_on)

    if not races:
        assert (emulated(body, order) == np.tile(np.arange(LANES) + 1, WAVES)).all()
        return
    with found("race", "global address", "nothing orders the two", "warp 1", "warp 0"):
        emulated(body, order)


@every_schedule
@pytest.mark.parametrize("word", [0, 1])
def test_a_wait_with_one_left_covers_the_older_write_alone(order: str, word: int) -> None:
    def body(k: Builder, result: Register) -> None:
        tile, value = k.shared("tile", (2, LANES), U32), k.array(u32, 1)
        at = tile.at(0) + k.lane * 4

        def write(lgkmcnt: int) -> None:
            for each in range(2):
                ds_write_b32(k, at, k.lane, offset=4 * LANES * each)
            s_waitcnt(k, lgkmcnt=lgkmcnt)

        def read() -> None:
            ds_read_b32(k, at, into=value, offset=4 * LANES * word)

        one_after_another(k, lambda: (write(0), write(1)), lambda: s_barrier(k), read)

    if word == 0:
        emulated(body, order)
        return
    with found("race", "tile[1]", "ds_write_b32 of block 0, warp 0", "ds_read_b32 of block 0, warp 1"):
        emulated(body, order)


@every_schedule
@pytest.mark.parametrize("word", [0, 1])
def test_a_wait_with_one_left_covers_the_older_read_alone(order: str, word: int) -> None:
    def body(k: Builder, result: Register) -> None:
        tile, values = k.shared("tile", (2, LANES), U32), k.array(u32, 2)
        at = tile.at(0) + k.lane * 4

        def read() -> None:
            for each in range(2):
                ds_write_b32(k, at, k.lane, offset=4 * LANES * each)
            for each in range(2):
                ds_read_b32(k, at, into=values[each], offset=4 * LANES * each)
            s_waitcnt(k, lgkmcnt=1)

        one_after_another(k, read, lambda: s_barrier(k), lambda: ds_write_b32(k, at, k.lane, offset=4 * LANES * word))

    if word == 0:
        emulated(body, order)
        return
    with found("race", "tile[1]", "ds_read_b32 of block 0, warp 0", "ds_write_b32 of block 0, warp 1"):
        emulated(body, order)


@every_schedule
def test_a_portable_access_does_not_wait_for_what_is_in_flight(order: str) -> None:
    def store(k: Builder, result: Register) -> None:
        at, value = k.address(result, k.thread, 4), k.array(u32, 1)
        global_load_dword(k, at, into=value)
        k.store(at, k.thread)

    with found("race", "global address", "global_load_dword of block 0, warp"):
        emulated(store, order)

    def load(k: Builder, result: Register) -> None:
        tile = k.shared("tile", (WAVES * LANES,), U32)
        at = tile.at(0) + k.thread * 4
        k.store(at, k.thread)
        ds_write_b32(k, at, k.thread)
        k.barrier()  # waits for portable accesses, and knows nothing of others
        k.load(u32, at)

    with found("race", "tile[", "ds_write_b32 of block 0, warp"):
        emulated(load, order)
