"""Bulk tensor copies: boxes at and over the edges, swizzles, groups of stores, and each way to misuse them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kingpost import emulate
from kingpost.emulate import ASYNC
from kingpost.emulate.memory import WRITTEN
from kingpost.formats import F32, U8
from kingpost.program import Builder, swizzle, u32
from kingpost.targets.nvidia.isa.common import (
    bulk_commit,
    bulk_load_2d,
    bulk_load_3d,
    bulk_store_2d,
    bulk_store_3d,
    bulk_wait_read,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
    prefetch_tensor_map,
)

from ...emulate.harness import found, run

SCHEDULES = ("late", "early", "random")
ROWS, COLUMNS = 13, 48
SOURCE = np.random.default_rng(0).integers(1, 255, (ROWS, COLUMNS), np.uint8)


def one_lane(k: Builder):
    return k.mask(k.lane == 0)


def window(array: np.ndarray, row: int, column: int, box: tuple[int, int]) -> np.ndarray:
    """The box at a place that may lie anywhere, zeros outside the array."""
    result = np.zeros(box, array.dtype)
    for i in range(box[0]):
        for j in range(box[1]):
            if 0 <= row + i < array.shape[0] and 0 <= column + j < array.shape[1]:
                result[i, j] = array[row + i, column + j]
    return result


def loaded(
    array: np.ndarray, box: tuple[int, int], row: int, column: int, span: int = 0, order: str = "late"
) -> emulate.Block:
    def body(k: Builder, source) -> None:
        tile = k.shared("tile", box, source.type.format, span)
        full = k.shared_barriers("full", 1).at(0)
        with one_lane(k):
            prefetch_tensor_map(k, source.register)
            mbarrier_init(k, full, count=1)
            fence_mbarrier_init(k)
            mbarrier_arrive_expect(k, full, bytes=tile.bytes)
            at = [k.new(u32, place % 2**32) for place in (row, column)]
            bulk_load_2d(k, tile.at(0), source.register, *at, full, type=source.type)
        mbarrier_wait(k, full, 0)

    return run(body, order, maps={"source": (array, box, span)})


PLACES = [
    (0, 0), (3, 16), (ROWS - 8, COLUMNS - 32), (ROWS - 3, 0), (0, COLUMNS - 5), (ROWS - 1, COLUMNS - 1), (-3, 0),
    (0, -7), (-2, -30), (-8, 0), (ROWS, 0), (0, COLUMNS), (100, 100), (-1000, -1000), (-2, COLUMNS - 1), (5, 7),
]  # fmt: skip


@pytest.mark.parametrize("row, column", PLACES)
def test_loads_fill_what_lies_outside_with_zeros(row: int, column: int) -> None:
    block = loaded(SOURCE, (8, 32), row, column)
    np.testing.assert_array_equal(block.shared.bytes.data[:256].reshape(8, 32), window(SOURCE, row, column, (8, 32)))
    assert (block.shared.bytes.state[:256] == WRITTEN).all()


@pytest.mark.parametrize("order", SCHEDULES)
def test_a_box_larger_than_the_tensor(order: str) -> None:
    block = loaded(SOURCE, (16, 64), -1, -8, order=order)
    np.testing.assert_array_equal(block.shared.bytes.data[:1024].reshape(16, 64), window(SOURCE, -1, -8, (16, 64)))


@pytest.mark.parametrize("span", [32, 64, 128])
def test_loads_swizzle_absolute_addresses(span: int) -> None:
    source = np.random.default_rng(1).integers(0, 256, (24, span), np.uint8)
    block = loaded(source, (24, span), 0, 0, span)
    base = block.shared.base + block.program.shared[0].offset
    linear = np.arange(base, base + 24 * span)
    at = swizzle(linear, span) - block.shared.base
    np.testing.assert_array_equal(block.shared.bytes.data[at].reshape(24, span), source)
    assert (at != linear - block.shared.base).any()


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_wider_elements_count_in_elements(dtype) -> None:
    source = np.arange(20 * 24, dtype=np.float32).reshape(20, 24).astype(dtype)
    block = loaded(source, (4, 16), 18, 12)
    size = 4 * 16 * source.itemsize
    got = block.shared.bytes.data[:size].view(dtype).reshape(4, 16)
    np.testing.assert_array_equal(got.astype(np.float32), window(source.astype(np.float32), 18, 12, (4, 16)))


def test_loads_of_a_view_with_gaps() -> None:
    whole = np.full((ROWS, 64), 255, np.uint8)
    whole[:, :COLUMNS] = SOURCE
    block = loaded(whole[:, :COLUMNS], (8, 32), 9, 30)
    np.testing.assert_array_equal(block.shared.bytes.data[:256].reshape(8, 32), window(SOURCE, 9, 30, (8, 32)))


@pytest.mark.parametrize("order", SCHEDULES)
def test_provenance(order: str) -> None:
    block = loaded(SOURCE, (8, 32), 0, 0, order=order)
    (event,) = set(block.shared.bytes.written[:256])
    ledger = block.order.ledger
    assert ledger.events[event].agent == "bulk load into tile[0]" and ledger.proxies[event] == ASYNC


# Stores


def store_body(row: int, column: int, span: int, box: tuple[int, int], wait: bool = True):
    def body(k: Builder, d) -> None:
        tile = k.shared("tile", box, F32, span)
        width = box[1]
        with k.loop(box[0]) as line, k.mask(k.lane < width):
            linear = k.fused_multiply_add(k.lane, 4, tile.at(line))
            k.store(swizzle(linear, span), line * 1000 + k.lane)
        fence_proxy_async(k)
        k.barrier()
        with one_lane(k):
            at = [k.new(u32, place % 2**32) for place in (row, column)]
            bulk_store_2d(k, d.register, *at, tile.at(0), type=d.type)
            bulk_commit(k)
            if wait:
                bulk_wait_read(k, groups=0)

    return body


TILE = np.arange(8)[:, None] * 1000 + np.arange(16)


@pytest.mark.parametrize("span", [0, 64])
@pytest.mark.parametrize(
    "row, column", [(0, 0), (9, 8), (-3, 0), (4, -5), (-7, -15), (12, 19), (13, 0), (0, 20), (-8, 0)]
)
def test_stores_drop_what_lies_outside(row: int, column: int, span: int) -> None:
    whole = np.full((ROWS + 2, 24), 0xFFFF, np.uint32).view(np.float32)
    d = whole[1 : 1 + ROWS, :20]
    run(store_body(row, column, span, (8, 16)), maps={"d": (d, (8, 16), span)})
    expected = np.full((ROWS + 2, 24), 0xFFFF, np.uint32)
    for i in range(8):
        for j in range(16):
            if 0 <= row + i < ROWS and 0 <= column + j < 20:
                expected[1 + row + i, column + j] = TILE[i, j]
    np.testing.assert_array_equal(whole.view(np.uint32), expected)


@pytest.mark.parametrize("order", SCHEDULES)
def test_stores_are_done_at_the_end(order: str) -> None:
    d = np.zeros((8, 16), np.float32)
    block = run(store_body(0, 0, 0, (8, 16)), order, maps={"d": (d, (8, 16), 0)})
    np.testing.assert_array_equal(d.view(np.uint32), TILE)
    (region,) = block.memory.regions
    (event,) = set(region.written)
    ledger = block.order.ledger
    assert ledger.events[event].agent == "bulk store from tile[0]" and ledger.proxies[event] == ASYNC


def test_a_store_that_has_not_read_its_source_at_exit() -> None:
    d = np.zeros((8, 16), np.float32)
    with found("in flight at exit", "bulk store from tile[0]"):
        run(store_body(0, 0, 0, (8, 16), wait=False), "late", maps={"d": (d, (8, 16), 0)})


def reuse(groups: int, order: str = "late") -> tuple[int, int]:
    """Two stores from one tile each, then the first tile is written again after waiting for all but `groups`."""

    def body(k: Builder, d) -> None:
        tiles = k.shared("tiles", (2, 8, 4), F32)
        with k.mask(k.lane < 2):
            for i in range(16):
                k.store(tiles.at(k.lane, 8 * i), k.lane + 1)
                k.store(tiles.at(k.lane, 8 * i + 4), k.lane + 1)
        fence_proxy_async(k)
        k.barrier()
        with one_lane(k):
            for tile in range(2):
                bulk_store_2d(k, d.register, 8 * tile, 0, tiles.at(tile), type=d.type)
                bulk_commit(k)
            bulk_wait_read(k, groups=groups)
            for i in range(32):
                k.store(tiles.at(0, 4 * i), k.new(u32, 99))
            bulk_wait_read(k, groups=0)

    d = np.zeros((16, 4), np.uint32)
    run(body, order, maps={"d": (d, (8, 4), 0)})
    return int(d[0, 0]), int(d[8, 0])


def test_waiting_for_all_but_the_newest_groups() -> None:
    assert reuse(0) == reuse(1) == (1, 2)
    for groups in (2, 3):  # too few are waited for; more than there are, so that none is
        with found("race", "bulk store from tiles[0]", "reads tiles[0], which block 0, warp 0", "nothing orders"):
            reuse(groups, "late")
        with found("race", "overwrites tiles[0], which bulk store from tiles[0]", "may still read"):
            reuse(groups, "early")


def test_stores_that_are_not_committed_are_not_waited_for() -> None:
    def body(k: Builder, d) -> None:
        tile = k.shared("tile", (8, 4), F32)
        with one_lane(k):
            for i in range(32):
                k.store(tile.at(0, 4 * i), k.new(u32, 1))
            fence_proxy_async(k)
            bulk_store_2d(k, d.register, 0, 0, tile.at(0), type=d.type)
            bulk_wait_read(k, groups=0)

    with found("in flight at exit", "bulk store"):
        run(body, "late", maps={"d": (np.zeros((8, 4), np.uint32), (8, 4), 0)})


# Planes

PLANES = np.random.default_rng(2).integers(1, 255, (3, ROWS, COLUMNS), np.uint8)
VIEWS = {  # [planes, rows, columns] that lie in memory in every way a map takes
    "planes of rows": PLANES,
    "rows of planes": PLANES.transpose(1, 0, 2).copy().transpose(1, 0, 2),
    "one plane": PLANES[1:2],
    "one row of each": PLANES[:, 4:5],
    "every second row": np.repeat(PLANES, 2, axis=1)[:, ::2],
}
assert VIEWS["rows of planes"].strides[0] < VIEWS["rows of planes"].strides[1]


PLACES_3D = [(0, 0, 0), (2, 3, 16), (1, 10, 32), (0, -2, 0), (3, 0, 0), (-1, 0, 0)]


def moved_box(place: tuple[int, int, int]):
    """A body that loads the box at a place and stores it to the same place of another tensor."""

    def body(k: Builder, source, d) -> None:
        tile, full = k.shared("tile", (8, 32), U8, 32), k.shared_barriers("full", 1).at(0)
        with one_lane(k):
            mbarrier_init(k, full, count=1)
            fence_mbarrier_init(k)
            mbarrier_arrive_expect(k, full, bytes=tile.bytes)
            at = [k.new(u32, each % 2**32) for each in place]
            bulk_load_3d(k, tile.at(0), source.register, *at, full, type=source.type)
            mbarrier_wait(k, full, 0)
            bulk_store_3d(k, d.register, *at, tile.at(0), type=d.type)
            bulk_commit(k)
            bulk_wait_read(k, groups=0)

    return body


def planes_at(source: np.ndarray, place: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The box at a place, and zeros but for what is stored of it."""
    plane, row, column = place
    box, stored = np.zeros((8, 32), source.dtype), np.zeros_like(source)
    if 0 <= plane < len(source):
        box = window(source[plane], row, column, (8, 32))
        part = np.s_[plane, max(row, 0) : row + 8, column : column + 32]
        stored[part] = source[part]
    return box, stored


@pytest.mark.parametrize("source", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("place", PLACES_3D, ids=str)
def test_planes(source: np.ndarray, place: tuple[int, int, int]) -> None:
    """Past a plane's last row come zeros, not the next plane's rows; so do planes that are none."""
    d = np.zeros_like(source)
    block = run(moved_box(place), maps={"source": (source, (1, 8, 32), 32), "d": (d, (1, 8, 32), 32)})
    box, stored = planes_at(source, place)
    at = swizzle(np.arange(block.shared.base, block.shared.base + 256), 32) - block.shared.base
    np.testing.assert_array_equal(block.shared.bytes.data[at].reshape(8, 32), box)
    np.testing.assert_array_equal(d, stored)


# What is found


def misuse(what: str):
    def body(k: Builder, source) -> None:
        tile, full = k.shared("tile", (2, 8, 32), U8), k.shared_barriers("full", 1).at(0)
        with one_lane(k):
            mbarrier_init(k, full, count=1)
            fence_mbarrier_init(k)
            mbarrier_arrive_expect(k, full, bytes=256)
        destination = tile.at(0, 16) if what == "misaligned" else tile.at(2) if what == "past the end" else tile.at(0)
        with k.mask(k.lane < (2 if what == "two lanes" else 1)):
            bulk_load_2d(
                k, destination, source.register, 0, 0, full + (8 if what == "no barrier" else 0), type=source.type
            )
        if what != "no wait":
            mbarrier_wait(k, full, 0)

    run(body, maps={"source": (SOURCE, (8, 32), 0)})


def test_misuse() -> None:
    misuse("nothing")
    with found("misaligned", "a multiple of 128 is wanted"):
        misuse("misaligned")
    with found("out of bounds", "of 520 bytes"):
        misuse("past the end")
    with found("bulk copy", "issued by 2 lanes, each a copy of its own; one is wanted"):
        misuse("two lanes")
    with found("mbarrier", "which was never initialised"):
        misuse("no barrier")
    with found("in flight at exit", "bulk load into tile[0]"):
        misuse("no wait")


def test_a_missing_wait_reads_what_is_still_being_written() -> None:
    def body(k: Builder, source) -> None:
        tile, full = k.shared("tile", (8, 32), U8), k.shared_barriers("full", 1).at(0)
        with one_lane(k):
            mbarrier_init(k, full, count=1)
            fence_mbarrier_init(k)
            mbarrier_arrive_expect(k, full, bytes=256)
            bulk_load_2d(k, tile.at(0), source.register, 0, 0, full, type=source.type)
        k.load(u32, tile.at(3))
        mbarrier_wait(k, full, 0)

    maps = {"source": (SOURCE, (8, 32), 0)}
    with found("uninitialised", "reads tile[3], which is still being written"):
        run(body, "late", maps=maps)
    with found("race", "reads tile[3], which bulk load into tile[0]", "wrote: nothing orders the two"):
        run(body, "early", maps=maps)
