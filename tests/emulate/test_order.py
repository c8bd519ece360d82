"""What happens before what: small programs that lack one thing, found in every order, beside the ones that have it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kingpost import emulate
from kingpost.emulate import EmulationError
from kingpost.formats import F32, U8, U32
from kingpost.program import Builder, Register, Registers, SharedArray, f32, u32
from kingpost.targets.nvidia.isa.blackwell import (
    tensor_fence_after,
    tensor_fence_before,
    tensor_load_bits,
    tensor_store,
    tensor_wait_load,
    tensor_wait_store,
)
from kingpost.targets.nvidia.isa.common import (
    bulk_commit,
    bulk_load_2d,
    bulk_reduce_add_3d,
    bulk_store_2d,
    bulk_store_3d,
    bulk_wait_read,
    copy_async_4,
    copy_async_arrive,
    elect,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_arrive,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
    named_barrier,
)
from kingpost.targets.nvidia.isa.hopper import wgmma_commit, wgmma_fence, wgmma_wait

from ..targets.nvidia.test_blackwell_units import allocated, numbered
from ..targets.nvidia.test_wgmma_queue import Operands, four_steps, multiply
from .harness import build, found, run

SCHEDULES = ("late", "early", "random")
Body = Callable[..., None]


def fine(body: Body, how: str, **given: Any) -> None:
    """`body(k, how, ...)` has no finding in any order."""
    for order in SCHEDULES:
        run(lambda k, **places: body(k, how, **places), order, seed=1, **given)


def refused(body: Body, how: str, kind: str, *words: str, **given: Any) -> None:
    """`body(k, how, ...)` has this finding in every order."""
    for order in SCHEDULES:
        with found(kind, *words):
            run(lambda k, **places: body(k, how, **places), order, seed=1, **given)


def barrier(k: Builder, name: str, count: int) -> SharedArray:
    """A block's mbarrier, initialised by one thread before all go on."""
    array = k.shared_barriers(name, 1)
    with k.when(k.warp == 0), k.mask(elect(k)):
        mbarrier_init(k, array.at(0), count=count)
        fence_mbarrier_init(k)
    k.barrier()
    return array


# Writes before a bulk store reads them


def staged(k: Builder, how: str, d: Any) -> None:
    """Two warps write a row each, and a thread of the first stores both."""
    tile = k.shared("tile", (2, 32), F32)
    with k.role("math", warps=2) as warp:
        if how == "before the writes":
            fence_proxy_async(k)
        k.store(tile.at(warp) + k.lane * 4, k.lane)
        if how in ("by all", "no barrier"):
            fence_proxy_async(k)
        with k.when(warp == 0):
            if how == "by one warp":
                fence_proxy_async(k)
        with k.mask(k.lane == 0):
            if how == "by a lane of each":
                fence_proxy_async(k)
        if how != "no barrier":
            k.barrier()
        with k.when(warp == 0), k.mask(elect(k)):
            if how == "by the one that stores":
                fence_proxy_async(k)
            bulk_store_2d(k, d.register, 0, 0, tile.at(0), type=d.type)
            bulk_commit(k)
            bulk_wait_read(k, groups=0)


def rows() -> dict[str, tuple]:
    return {"d": (np.zeros((2, 32), np.float32), (2, 32), 0)}


def test_a_fence_of_each_thread_before_the_barrier() -> None:
    fine(staged, "by all", maps=rows())


@pytest.mark.parametrize("how, place", [
    ("by none", "tile[0]"), ("before the writes", "tile[0]"), ("by a lane of each", "tile[0]"),
    ("by one warp", "tile[1]"), ("by the one that stores", "tile[0]"),
])  # fmt: skip
def test_a_fence_of_other_threads_or_at_another_time(how: str, place: str) -> None:
    words = f"bulk store from tile[0] at test_order.py:{{}}: reads {place}, through the asynchronous proxy"
    refused(staged, how, "proxy", *words.split("{}"), "math warp", "wrote: that thread's proxy fence", maps=rows())


def test_a_store_of_what_another_warp_may_still_write() -> None:
    for order in ("late", "early"):
        with found("race", "bulk store from tile[0]", "reads tile[1], which block 0, math warp 1", "nothing orders"):
            run(lambda k, d: staged(k, "no barrier", d), order, maps=rows())


def test_a_fence_of_one_lane_covers_that_lane() -> None:
    """Also where the other lanes have done something else, before, that they never fence."""

    def body(k: Builder, how: str, d: Any) -> None:
        other, tile = k.shared("other", (32,), U32), k.shared("tile", (2, 32), F32)
        k.store(other.at(0) + k.lane * 4, k.lane)
        k.barrier()
        with k.mask(k.lane == 0):
            with k.loop(64) as word:
                k.store(tile.at(0) + word * 4, word)
            fence_proxy_async(k)
        elect(k)
        with k.mask(k.lane == (0 if how == "same lane" else 1)):
            bulk_store_2d(k, d.register, 0, 0, tile.at(0), type=d.type)
            bulk_commit(k)
            bulk_wait_read(k, groups=0)

    fine(body, "same lane", maps=rows())
    fine(body, "another, after all have come together", maps=rows())


def test_copies_by_threads_are_fenced_by_who_waited_for_them() -> None:
    def body(k: Builder, how: str, source: Register, d: Any) -> None:
        tile, full = k.shared("tile", (2, 32), F32), barrier(k, "full", 32)
        for row in range(2):
            copy_async_4(k, tile.at(row) + k.lane * 4, k.address(source, k.lane, 4))
        if how == "before the wait":
            fence_proxy_async(k)
        copy_async_arrive(k, full.at(0))
        mbarrier_wait(k, full.at(0), 0)
        if how == "after the wait":
            fence_proxy_async(k)
        with k.mask(elect(k)):
            bulk_store_2d(k, d.register, 0, 0, tile.at(0), type=d.type)
            bulk_commit(k)
            bulk_wait_read(k, groups=0)

    source = np.arange(32, dtype=np.float32)
    fine(body, "after the wait", source=source, maps=rows())
    for how in ("never", "before the wait"):
        refused(body, how, "proxy", "reads tile[0]", "which cp.async of block 0, warp 0", source=source, maps=rows())


# Accesses while a bulk store is in flight


def test_a_source_in_flight_is_not_written() -> None:
    def body(k: Builder, how: str, d: Any) -> None:
        tile = k.shared("tile", (2, 32), F32)
        with k.mask(elect(k)):
            with k.loop(64) as word:
                k.store(tile.at(0) + word * 4, word)
            fence_proxy_async(k)
            bulk_store_2d(k, d.register, 0, 0, tile.at(0), type=d.type)
            bulk_commit(k)
            if how == "waited for":
                bulk_wait_read(k, groups=0)
            k.store(tile.at(1), k.new(u32, 5))
            bulk_wait_read(k, groups=0)

    fine(body, "waited for", maps=rows())
    refused(body, "in flight", "race", "tile[1]", "bulk store from tile[0]", "block 0, warp 0", maps=rows())


def test_what_a_bulk_store_wrote_is_not_there_once_it_has_read() -> None:
    def body(k: Builder, how: str, d: Any, whole: Register) -> None:
        staged(k, "by all", d)
        with k.when(k.warp == 0):
            k.load(f32, whole)

    d = np.zeros((2, 32), np.float32)
    with found("race", "reads global address", "which bulk store from tile[0]", "nothing orders the two"):
        run(lambda k, **places: body(k, "", **places), "early", maps={"d": (d, (2, 32), 0)}, whole=d)


# A stage that is loaded again and again


def reloaded(k: Builder, how: str, source: Any) -> None:
    """Two warps read a row and release it; a thread of a third loads the next one there."""
    tile = k.shared("tile", (1, 128), U8)
    full, empty = barrier(k, "full", 1).at(0), barrier(k, "empty", 1 if how == "by one of two warps" else 2).at(0)
    with k.role("reader", warps=2) as warp, k.loop(3) as turn:
        mbarrier_wait(k, full, turn & 1)
        if how == "released before it is read":
            with k.mask(elect(k)):
                mbarrier_arrive(k, empty)
        k.load(u32, tile.at(0) + k.lane * 4)
        if how not in ("without the readers' fence", "the loader's fence"):
            fence_proxy_async(k)
        if how != "released before it is read":
            one_warp = k.when(warp == 0) if how == "by one of two warps" else nullcontext()
            one_lane = k.lane == 0 if how == "without convergence" else elect(k)
            with one_warp, k.mask(one_lane):
                mbarrier_arrive(k, empty)
    with k.role("loader", warps=1), k.mask(elect(k)), k.loop(3) as turn:
        mbarrier_wait(k, empty, (turn & 1) ^ 1)
        if how == "the loader's fence":
            fence_proxy_async(k)
        mbarrier_arrive_expect(k, full, bytes=128)
        bulk_load_2d(k, tile.at(0), source.register, turn, 0, full, type=source.type)


def source() -> dict[str, tuple]:
    return {"source": (np.ones((3, 128), np.uint8), (1, 128), 0)}


def test_a_stage_released_by_each_warp() -> None:
    fine(reloaded, "fenced", maps=source())


@pytest.mark.parametrize("how, kind, missing", [
    ("without the readers' fence", "proxy", "that thread's proxy fence"),
    ("the loader's fence", "proxy", "that thread's proxy fence"),
    ("released before it is read", "race", "nothing orders the two"),
    ("without convergence", "race", "nothing orders the two"),
    ("by one of two warps", "race", "nothing orders the two"),
])  # fmt: skip
def test_a_stage_released_wrongly(how: str, kind: str, missing: str) -> None:
    refused(reloaded, how, kind, "tile[0]", "bulk load into tile[0]", "reader warp", missing, maps=source())


def test_a_read_before_the_wait() -> None:
    """Found where the row is there already, too."""

    def body(k: Builder, source: Any) -> None:
        tile, full = k.shared("tile", (1, 128), U8), barrier(k, "full", 1).at(0)
        with k.mask(elect(k)):
            mbarrier_arrive_expect(k, full, bytes=128)
            bulk_load_2d(k, tile.at(0), source.register, 0, 0, full, type=source.type)
        k.load(u32, tile.at(0) + k.lane * 4)
        mbarrier_wait(k, full, 0)

    with found("uninitialised", "block 0, warp 0", "reads tile[0], which is still being written"):
        run(body, "late", maps=source())
    with found("race", "block 0, warp 0", "reads tile[0], which bulk load into tile[0]", "nothing orders the two"):
        run(body, "early", maps=source())


# Barriers


def test_named_barriers_are_not_shared_by_two_groups_of_warps() -> None:
    def body(k: Builder, how: str) -> None:
        with k.role("first", warps=2):
            named_barrier(k, 1, threads=64)
            if how == "one after the other":
                k.barrier()
        with k.role("second", warps=2):
            if how == "one after the other":
                k.barrier()
            named_barrier(k, 1, threads=64)

    fine(body, "one after the other")
    refused(body, "at any time", "barrier shared", "comes to barrier 1, whose last use by others may not be over")


def handed_on(k: Builder, how: str) -> None:
    """A warp writes a row, and tells another by an mbarrier."""
    row, full = k.shared("row", (32,), U32), barrier(k, "full", 32 if how == "by all" else 1)
    with k.role("writer", warps=1):
        if how == "lane 0's own":
            k.store(row.at(8) + k.lane * 0, k.lane * 0)  # by all lanes, which is not handed on
            with k.mask(k.lane == 0):
                k.store(row.at(0), k.new(u32, 1))
        else:
            k.store(row.at(0) + k.lane * 4, k.lane)
        if how == "once converged":
            elect(k)
        with k.mask(k.lane < (32 if how == "by all" else 1)):
            mbarrier_arrive(k, full.at(0))
    with k.role("reader", warps=1):
        if how == "waited for by one lane":
            elect(k)
            with k.mask(k.lane == 0):
                mbarrier_wait(k, full.at(0), 0)
        else:
            mbarrier_wait(k, full.at(0), 0)
        if how != "unread":
            k.load(u32, row.at(0) + k.lane * (0 if how == "lane 0's own" else 4))


@pytest.mark.parametrize("how", ["once converged", "by all", "lane 0's own"])
def test_what_is_handed_on(how: str) -> None:
    fine(handed_on, how)


def test_lane_0_does_not_hand_on_what_other_lanes_wrote() -> None:
    refused(handed_on, "by lane 0", "race", "reader warp 1", "reads row[0], which block 0, writer warp 0",
            "wrote: nothing orders the two")  # fmt: skip


def test_what_one_lane_learns_the_others_know_once_they_converge() -> None:
    def body(k: Builder, how: str) -> None:
        row, full = k.shared("row", (32,), U32), barrier(k, "full", 32)
        with k.role("writer", warps=1):
            k.store(row.at(0) + k.lane * 4, k.lane)
            mbarrier_arrive(k, full.at(0))
        with k.role("reader", warps=1):
            with k.mask(k.lane == 0):
                mbarrier_wait(k, full.at(0), 0)
            if how == "converged":
                elect(k)
            with k.mask(k.lane < (1 if how == "that lane" else 32)):
                k.load(u32, row.at(0) + k.lane * 4)

    fine(body, "converged")
    fine(body, "that lane")
    refused(body, "not converged", "race", "reader warp 1", "reads row[0], which block 0, writer warp 0")


def test_a_finding_names_both_lines() -> None:
    with pytest.raises(EmulationError) as info:
        run(lambda k: handed_on(k, "by lane 0"))
    said = re.fullmatch(
        r"race: block 0, reader warp 1 at test_order\.py:(\d+): reads row\[0\], which block 0, writer warp 0 at "
        r"test_order\.py:(\d+) wrote: nothing orders the two",
        str(info.value),
    )
    assert said is not None, str(info.value)
    text = Path(__file__).read_text().splitlines()
    read, written = (text[int(number) - 1] for number in said.groups())
    assert "k.load(u32, row.at(0)" in read and "k.store(row.at(0) + k.lane" in written


def test_who_waits_for_a_phase_must_have_gone_on_before_the_next_completes() -> None:
    """A wait by parity cannot tell phases two apart. In one order it is in time, in another it never ends."""

    def body(k: Builder, how: str) -> None:
        tick, seen = barrier(k, "tick", 1).at(0), barrier(k, "seen", 1).at(0)
        with k.role("waiter", warps=1), k.mask(elect(k)):
            mbarrier_wait(k, tick, 0)
            mbarrier_arrive(k, seen)
        with k.role("ticker", warps=1), k.mask(elect(k)):
            mbarrier_arrive(k, tick)
            if how == "answered":
                mbarrier_wait(k, seen, 0)
            mbarrier_arrive(k, tick)

    fine(body, "answered")
    with found("mbarrier", "ticker warp 1", "completes phase 1 of mbarrier tick[0], while block 0, waiter warp 0",
               "may still wait for phase 0: no arrival comes after its going on"):  # fmt: skip
        run(lambda k: body(k, "unanswered"), "late")
    with pytest.raises(emulate.DeadlockError, match=r"waiter warp 0 .* waits for mbarrier tick\[0\]"):
        run(lambda k: body(k, "unanswered"), "early")


def initialised(k: Builder, how: str, source: Any) -> None:
    """A thread of one warp initialises a barrier, one of another loads with it."""
    tile, full = k.shared("tile", (1, 128), U8), k.shared_barriers("full", 1).at(0)
    k.warps(2)
    with k.when(k.warp == 0):
        with k.mask(k.lane == 0):
            if how == "fenced before":
                fence_mbarrier_init(k)
            mbarrier_init(k, full, count=1)
        with k.mask(k.lane == (1 if how == "fenced by another lane" else 0)):
            if "fenced" in how and how != "fenced before":
                fence_mbarrier_init(k)
    if how != "fenced, no barrier":
        k.barrier()
    with k.when(k.warp == 1), k.mask(elect(k)):
        mbarrier_arrive_expect(k, full, bytes=128)
        bulk_load_2d(k, tile.at(0), source.register, 0, 0, full, type=source.type)
    if how != "fenced, no barrier":
        mbarrier_wait(k, full, 0)


def test_an_initialisation_is_fenced_and_ordered() -> None:
    fine(initialised, "fenced", maps=source())
    for how in ("no fence", "fenced by another lane", "fenced before"):
        refused(initialised, how, "mbarrier", "warp 1", "has an engine arrive at mbarrier full[0], which block 0, "
                "warp 0", "initialises without a fence.mbarrier_init after it", maps=source())  # fmt: skip
    with found("mbarrier", "warp 1", "uses mbarrier full[0], which block 0, warp 0", "nothing orders the two"):
        run(lambda k, source: initialised(k, "fenced, no barrier", source), "late", maps=source())


def test_bytes_that_are_still_expected_at_the_end() -> None:
    def body(k: Builder, how: str, source: Any) -> None:
        tile, full = k.shared("tile", (1, 128), U8), barrier(k, "full", 1).at(0)
        with k.mask(elect(k)):
            mbarrier_arrive_expect(k, full, bytes=128)
            bulk_load_2d(k, tile.at(0), source.register, 0, 0, full, type=source.type)
        mbarrier_wait(k, full, 0)
        if how == "expected again":
            with k.mask(elect(k)):
                mbarrier_arrive_expect(k, full, bytes=64)

    fine(body, "once", maps=source())
    refused(body, "expected again", "mbarrier", "the block ends with mbarrier full[0] in phase 1, for which 64 bytes "
            "are missing", maps=source())  # fmt: skip


# Blocks


def blocks(body: Body, order: str = "late", **given: Any) -> None:
    emulate.run(build(body, grid=2, **given), order)


def test_blocks_that_write_one_byte() -> None:
    def body(k: Builder, d: Register, apart: int) -> None:
        k.store(k.address(d, k.block * apart + k.lane, 4), k.lane)

    blocks(lambda k, d: body(k, d, 32), d=np.zeros(64, np.uint32))
    with found("race", "block 1, warp 0", "writes global address", "which block 0, warp 0", "nothing orders blocks"):
        blocks(lambda k, d: body(k, d, 31), d=np.zeros(64, np.uint32))


@pytest.mark.parametrize("writer", [0, 1])
def test_a_block_that_reads_what_another_writes(writer: int) -> None:
    def body(k: Builder, d: Register) -> None:
        with k.when(k.block == writer):
            k.store(k.address(d, k.lane, 4), k.lane)
        with k.when(k.block != writer):
            k.load(u32, k.address(d, k.lane, 4))

    words = ("reads", "which block 0, warp 0") if writer == 0 else ("writes", "which another block reads")
    with found("race", "block 1, warp 0", *words, "nothing orders blocks of one launch"):
        blocks(body, d=np.zeros(32, np.uint32))


@pytest.mark.parametrize("order", SCHEDULES)
def test_sums_of_blocks_may_meet(order: str) -> None:
    """Bulk additions, in any order; not an addition and a store."""

    def body(k: Builder, d: Any, how: str) -> None:
        tile = k.shared("tile", (8, 4), F32)
        k.store(tile.at(0) + k.lane * 4, k.new(f32, 1.0))
        fence_proxy_async(k)
        with k.mask(elect(k)):
            with k.when(k.block == 0):
                bulk_reduce_add_3d(k, d.register, 0, 0, 0, tile.at(0), type=d.type)
            with k.when(k.block == 1):
                store = bulk_reduce_add_3d if how == "sums" else bulk_store_3d
                store(k, d.register, 0, 0, 0, tile.at(0), type=d.type)
            bulk_commit(k)
            bulk_wait_read(k, groups=0)

    d = np.zeros((1, 8, 4), np.float32)
    blocks(lambda k, d: body(k, d, "sums"), order, maps={"d": (d, (1, 8, 4), 0)})
    assert (d == 2).all()
    with found("race", "bulk store from tile[0]", "writes global address", "nothing orders blocks"):
        blocks(lambda k, d: body(k, d, "a store"), order, maps={"d": (d, (1, 8, 4), 0)})


# Columns


@pytest.mark.parametrize("order", SCHEDULES)
def test_columns_are_used_again(order: str) -> None:
    def body(k: Builder, source: Any) -> None:
        tile, full = k.shared("tile", (2, 128), U8), barrier(k, "full", 1).at(0)
        with k.loop(40) as turn:
            with k.mask(elect(k)):
                mbarrier_arrive_expect(k, full, bytes=256)
                for row in range(2):
                    bulk_load_2d(k, tile.at(row), source.register, row, 0, full, type=source.type)
            mbarrier_wait(k, full, turn & 1)
            k.load(u32, tile.at(1) + k.lane * 4)
            fence_proxy_async(k)

    block = run(body, order, seed=1, maps=source())
    assert len(block.order.last) <= 2 + 2  # all lanes, the elected one, two loads


# Products


@pytest.mark.parametrize("order", SCHEDULES)
def test_registers_are_fenced_before_a_product(order: str) -> None:
    def work(k: Builder, operands: Operands, total: Registers, fenced: bool) -> None:
        k.set(total, 1.0)
        if fenced:
            wgmma_fence(k)
        operands.product(total, accumulate=True)
        wgmma_commit(k)
        wgmma_wait(k, groups=0)

    multiply(lambda k, operands, warp, total: work(k, operands, total, True), order)
    with found("wgmma", "math warp", "total, which other instructions have used since the last wgmma.fence"):
        multiply(lambda k, operands, warp, total: work(k, operands, total, False), order)


@pytest.mark.parametrize("order", SCHEDULES)
def test_one_warp_does_not_speak_for_its_warpgroup(order: str) -> None:
    """A warp's products end on their own: others of its warpgroup may still read the operands."""

    def work(k: Builder, operands: Operands, warp: Register, total: Registers, together: bool) -> None:
        four_steps(k, operands, warp, total)
        if together:
            k.barrier()
        (_, b), (_, tile) = operands.maps, operands.tiles
        with k.when(warp == 0), k.mask(elect(k)):
            mbarrier_arrive_expect(k, operands.full, bytes=tile.bytes)
            bulk_load_2d(k, tile.at(0), b.register, 0, 0, operands.full, type=b.type)
        with k.when(warp == 0):
            mbarrier_wait(k, operands.full, 1)

    multiply(lambda *given: work(*given, together=True), order)
    with found("race", "b_tile[0]", "wgmma of warp", "bulk load into b_tile[0]", "nothing orders the two"):
        multiply(lambda *given: work(*given, together=False), order)


def test_tensor_memory_goes_from_warp_to_warp_by_two_fences() -> None:
    def body(k: Builder, how: str) -> None:
        with allocated(k, warps=8) as address:
            with k.when(k.warp == 4):
                tensor_store(k, address, numbered(k, 4), count=4)
                tensor_wait_store(k)
                if how != "no fence before":
                    tensor_fence_before(k)
            if how != "no barrier":
                k.barrier()
            with k.when(k.warp == 0):
                if how != "no fence after":
                    tensor_fence_after(k)
                tensor_load_bits(k, address, count=4, into=k.array(u32, 4))
                tensor_wait_load(k)

    fine(body, "both")
    for how in ("no fence before", "no fence after"):
        refused(body, how, "tensor memory", "tcgen05.ld of warp 0", "which tcgen05.st of warp 4",
                "a tcgen05.fence, before_thread_sync there or after_thread_sync here, is missing")  # fmt: skip
    with found("tensor memory", "tcgen05.ld of warp 0", "something that synchronises the two threads is missing"):
        run(lambda k: body(k, "no barrier"), "early")
