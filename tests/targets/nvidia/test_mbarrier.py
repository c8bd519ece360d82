"""The mbarrier: phases, arrivals, bytes; and each way to misuse one."""

from __future__ import annotations

import numpy as np
import pytest

from kingpost import emulate
from kingpost.formats import F32, U8
from kingpost.program import Builder, SharedArray, f32, pred, u32
from kingpost.targets.nvidia.isa.common import (
    bulk_load_2d,
    copy_async_4,
    copy_async_arrive,
    elect,
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
    named_barrier,
)
from kingpost.targets.nvidia.units.mbarrier import Mbarriers

from ...emulate.harness import found, run

SCHEDULES = ("late", "early", "random")


def one_lane(k: Builder):
    return k.mask(k.lane == 0)


def barrier(k: Builder, count: int, name: str = "full") -> SharedArray:
    """A block's mbarrier, initialised by warp 0 before all go on."""
    array = k.shared_barriers(name, 1)
    with k.when(k.warp == 0), one_lane(k):
        mbarrier_init(k, array.at(0), count=count)
        fence_mbarrier_init(k)
    k.barrier()
    return array


def states(block: emulate.Block) -> list[tuple[int, int, int]]:
    """(completed phases, pending arrivals, bytes) of each barrier."""
    return [(s.phase, s.pending, s.bytes) for s in block.unit(Mbarriers).states.values()]


def test_a_phase_completes_with_its_last_arrival() -> None:
    def body(k: Builder, arrivals: int) -> None:
        full = barrier(k, count=3)
        with one_lane(k):
            for _ in range(arrivals):
                mbarrier_arrive(k, full.at(0))

    for arrivals, expected in ((0, (0, 3, 0)), (2, (0, 1, 0)), (3, (1, 3, 0)), (7, (2, 2, 0))):
        assert states(run(lambda k, n=arrivals: body(k, n))) == [expected]


def test_every_active_lane_arrives() -> None:
    def body(k: Builder) -> None:
        full = barrier(k, count=37)
        mbarrier_arrive(k, full.at(0))
        with k.mask(k.lane < 4):
            mbarrier_arrive(k, full.at(0))

    assert states(run(body)) == [(0, 1, 0)]


def test_a_phase_waits_for_its_bytes() -> None:
    def body(k: Builder, source) -> None:
        tile, full = k.shared("tile", (2, 128), U8), barrier(k, count=1)
        with one_lane(k):
            mbarrier_arrive_expect(k, full.at(0), bytes=256)
            for row in range(2):
                bulk_load_2d(k, tile.at(row), source.register, row, 0, full.at(0), type=source.type)
        mbarrier_wait(k, full.at(0), 0)
        k.load(f32, tile.at(1, 4))

    source = np.ones((2, 128), np.uint8)
    for order in SCHEDULES:
        assert states(run(body, order, maps={"source": (source, (1, 128), 0)})) == [(1, 1, 0)]


def test_bytes_may_come_before_they_are_expected() -> None:
    def body(k: Builder, source) -> None:
        tile, full = k.shared("tile", (1, 128), U8), barrier(k, count=2)
        with one_lane(k):
            bulk_load_2d(k, tile.at(0), source.register, 0, 0, full.at(0), type=source.type)
            mbarrier_arrive(k, full.at(0))
            mbarrier_arrive_expect(k, full.at(0), bytes=128)
        mbarrier_wait(k, full.at(0), 0)

    for order in SCHEDULES:
        assert states(run(body, order, maps={"source": (np.ones((1, 128), np.uint8), (1, 128), 0)})) == [(1, 2, 0)]


def test_parity_of_a_fresh_barrier() -> None:
    """Parity 1, the phase before the first, has completed; parity 0 has not."""

    def body(k: Builder, parity: int) -> None:
        full = barrier(k, count=1)
        mbarrier_wait(k, full.at(0), k.new(u32, parity))

    run(lambda k: body(k, 1))
    with pytest.raises(
        emulate.DeadlockError, match=r"mbarrier full\[0\] \(phase parity 0\): 1 of 1 arrivals and 0 bytes"
    ):
        run(lambda k: body(k, 0))


@pytest.mark.parametrize("order", SCHEDULES)
def test_a_hand_over_in_turns(order: str) -> None:
    """One slot between two warps, by two barriers and their parities."""
    d = np.zeros(10, np.uint32)

    def body(k: Builder, d) -> None:
        slot, full, empty = k.shared("slot", (4,), F32), barrier(k, 1, "full"), barrier(k, 1, "empty")
        full_at, empty_at, place = full.at(0), empty.at(0), slot.at(0)
        with k.role("writer", warps=1), one_lane(k), k.loop(10) as turn:
            mbarrier_wait(k, empty_at, (turn & 1) ^ 1)
            k.store(place, turn * 5)
            mbarrier_arrive(k, full_at)
        with k.role("reader", warps=1), one_lane(k), k.loop(10) as turn:
            mbarrier_wait(k, full_at, turn & 1)
            k.store(k.address(d, turn, 4), k.load(u32, place))
            mbarrier_arrive(k, empty_at)

    run(body, order, seed=4, d=d)
    assert d.tolist() == [5 * i for i in range(10)]


# What is found


def test_arriving_more_often_than_the_phase_lacks() -> None:
    def at_once(k: Builder) -> None:
        full = barrier(k, count=3)
        with k.mask(k.lane < 4):
            mbarrier_arrive(k, full.at(0))

    def while_bytes_are_missing(k: Builder) -> None:
        full = barrier(k, count=1)
        with one_lane(k):
            mbarrier_arrive_expect(k, full.at(0), bytes=64)
            mbarrier_arrive(k, full.at(0))

    with found("mbarrier", "arrives 4 times at mbarrier full[0], whose phase lacks 3"):
        run(at_once)
    with found("mbarrier", "arrives 1 times", "lacks 0"):
        run(while_bytes_are_missing)


@pytest.mark.parametrize("use", [
    lambda k, at: mbarrier_arrive(k, at), lambda k, at: mbarrier_wait(k, at, 0),
    lambda k, at: mbarrier_arrive_expect(k, at, bytes=16), lambda k, at: copy_async_arrive(k, at),
])  # fmt: skip
def test_a_barrier_that_was_never_initialised(use) -> None:
    def body(k: Builder) -> None:
        full = k.shared_barriers("full", 2)
        with one_lane(k):
            use(k, full.at(1))

    with found("mbarrier", "full[1], which was never initialised"):
        run(body, "early")


def test_initialising_twice() -> None:
    def body(k: Builder) -> None:
        full = barrier(k, count=1)
        with one_lane(k):
            mbarrier_init(k, full.at(0), count=2)

    with found("mbarrier", "initialises mbarrier full[0] again while it is in use"):
        run(body)


def test_initialising_by_many_lanes() -> None:
    """Each lane would do so, all but the first while the barrier is in use."""

    def body(k: Builder) -> None:
        with k.when(k.warp == 0):
            mbarrier_init(k, k.shared_barriers("full", 1).at(0), count=1)

    with found("mbarrier", "32 lanes initialise mbarrier full[0]; one is wanted"):
        run(body)


def test_a_misaligned_barrier() -> None:
    def body(k: Builder) -> None:
        full = k.shared_barriers("full", 2)
        with one_lane(k):
            mbarrier_init(k, full.at(0, offset=4), count=1)

    with found("misaligned", "a multiple of 8 is wanted"):
        run(body)


def test_lanes_that_name_different_barriers() -> None:
    def body(k: Builder) -> None:
        full = k.shared_barriers("full", 4)
        with k.mask(k.lane < 2):
            mbarrier_init(k, full.at(k.lane), count=1)

    with found("divergence", "the lanes name different barriers"):
        run(body)


def test_writing_over_a_barrier() -> None:
    def by_a_store(k: Builder) -> None:
        full = barrier(k, count=1)
        k.store(full.at(0), k.new(u32, 0))

    def by_a_copy(k: Builder, source) -> None:
        k.shared("before", (1, 120), U8)
        full, tile = k.shared_barriers("full", 1), k.shared("tile", (1, 128), U8)
        with one_lane(k):
            mbarrier_init(k, full.at(0), count=1)
            fence_mbarrier_init(k)
            bulk_load_2d(k, tile.at(0) - 128, source.register, 0, 0, full.at(0), type=source.type)

    with found("barrier object", "writes over full[0], a barrier in use"):
        run(by_a_store)
    with found("barrier object", "writes over full[0]"):
        run(by_a_copy, maps={"source": (np.ones((1, 128), np.uint8), (1, 128), 0)})


def test_reading_a_barrier_as_data() -> None:
    def body(k: Builder) -> None:
        k.load(u32, barrier(k, count=1).at(0))

    with found("uninitialised", "reads full[0], which is a barrier object"):
        run(body)


@pytest.mark.parametrize("order", SCHEDULES)
def test_a_missing_arrival_names_who_waits(order: str) -> None:
    def body(k: Builder) -> None:
        full = barrier(k, count=3)
        full_at = full.at(0)
        with k.role("gives", warps=2), one_lane(k):
            mbarrier_arrive(k, full_at)
        with k.role("takes", warps=1):
            mbarrier_wait(k, full_at, 0)

    with pytest.raises(emulate.DeadlockError) as info:
        run(body, order)
    (line,) = str(info.value).splitlines()[1:]
    assert line.startswith("  block 0, takes warp 2 at test_mbarrier.py:")
    assert line.endswith("mbarrier full[0] (phase parity 0): 1 of 3 arrivals and 0 bytes missing")


@pytest.mark.parametrize("expected, missing", [(64, -64), (256, 128)])
def test_a_wrong_number_of_bytes(expected: int, missing: int) -> None:
    def body(k: Builder, source) -> None:
        tile, full = k.shared("tile", (1, 128), U8), barrier(k, count=1)
        with one_lane(k):
            mbarrier_arrive_expect(k, full.at(0), bytes=expected)
            bulk_load_2d(k, tile.at(0), source.register, 0, 0, full.at(0), type=source.type)
        mbarrier_wait(k, full.at(0), 0)

    with pytest.raises(emulate.DeadlockError, match=rf"0 of 1 arrivals and {missing} bytes missing"):
        run(body, maps={"source": (np.ones((1, 128), np.uint8), (1, 128), 0)})


# Named barriers, election, copies by threads


@pytest.mark.parametrize("order", SCHEDULES)
def test_named_barriers_hold_their_own_warps(order: str) -> None:
    d = np.zeros(4, np.uint32)

    def body(k: Builder, d) -> None:
        row = k.shared("row", (4,), F32)
        for pair in range(2):
            with k.role(f"pair {pair}", warps=2) as own, k.loop(3) as turn:
                with k.when(own == 0):
                    k.store(row.at(pair), turn)
                named_barrier(k, k.new(u32, pair + 1), threads=64)
                with k.when(own == 1):
                    k.store(d, k.load(u32, row.at(pair)), offset=4 * pair)
                named_barrier(k, pair + 1, threads=64)

    run(body, order, d=d)
    assert d.tolist() == [2, 2, 0, 0]


def test_a_named_barrier_that_lacks_a_warp() -> None:
    def body(k: Builder) -> None:
        with k.role("both", warps=2) as own, k.when(own == 0):
            named_barrier(k, 3, threads=64)

    with pytest.raises(emulate.DeadlockError, match="barrier 3, where 1 of 2 warps have arrived"):
        run(body)


def test_a_named_barrier_of_two_minds() -> None:
    def body(k: Builder) -> None:
        with k.role("a", warps=1):
            named_barrier(k, 3, threads=64)
        with k.role("b", warps=1):
            named_barrier(k, 3, threads=96)

    with found("barrier count", "barrier 3 is waited at for 2 warps and for 3"):
        run(body)


def test_one_lane_is_elected() -> None:
    d = np.full(32, 7, np.uint32)

    def body(k: Builder, d) -> None:
        chosen = elect(k)
        assert chosen.type is pred
        k.store(k.address(d, k.lane, 4), k.select(chosen, 1, 0, into=k.new(u32)))

    run(body, d=d)
    assert d.sum() == 1

    def in_some_lanes(k: Builder) -> None:
        with k.mask(k.lane < 31):
            elect(k)

    with found("divergence", "elect.sync in 31 of 32 lanes"):
        run(in_some_lanes)


@pytest.mark.parametrize("order", SCHEDULES)
def test_copies_by_threads_arrive_when_they_are_done(order: str) -> None:
    source, d = np.arange(64, dtype=np.float32)[::-1].copy(), np.zeros(32, np.float32)

    def body(k: Builder, source, d, wait: bool = True) -> None:
        row, full = k.shared("row", (32,), F32), barrier(k, count=32)
        copy_async_4(k, row.at(k.lane), k.address(source, k.lane, 8))
        copy_async_arrive(k, full.at(0))
        if wait:
            mbarrier_wait(k, full.at(0), 0)
        k.store(k.address(d, k.lane, 4), k.load(f32, row.at(k.lane)))

    block = run(body, order, source=source, d=d)
    np.testing.assert_array_equal(d, source[::2])
    assert states(block) == [(1, 32, 0)]
    writers = {block.order.ledger.events[number].agent for number in block.shared.bytes.written[:128]}
    assert writers == {"cp.async of block 0, warp 0"}
    with found("uninitialised", "row[0], which is still being written"):
        run(lambda k, source, d: body(k, source, d, wait=False), "late", source=source, d=d)


def test_copies_by_threads_that_are_misaligned_or_out_of_bounds() -> None:
    source = np.zeros(32, np.float32)

    def body(k: Builder, source, at: int) -> None:
        row, full = k.shared("row", (32,), F32), barrier(k, count=32)
        copy_async_4(k, row.at(k.lane), k.address(source, k.lane, 4) + at)
        copy_async_arrive(k, full.at(0))
        mbarrier_wait(k, full.at(0), 0)

    with found("misaligned", "cp.async of 4 bytes at a global address"):
        run(lambda k, source: body(k, source, 2), source=source)
    with found("out of bounds", "cp.async"):
        run(lambda k, source: body(k, source, 4), source=source)
