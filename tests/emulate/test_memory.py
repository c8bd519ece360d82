"""Memory with provenance: the event that last wrote each byte, by whom and through which proxy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from kingpost import emulate
from kingpost.arrays import view
from kingpost.emulate import ASYNC, GENERIC, Block, EmulationError, Finding, Late, Report
from kingpost.emulate.memory import IN_FLIGHT, OBJECT, SHARED_BASE, UNWRITTEN, WRITTEN, GlobalMemory
from kingpost.formats import F32, U32
from kingpost.program import Builder, f32, u32

from .harness import build, found, run


class Engine:
    """Somebody who touches memory."""

    name, source = "engine", None

    def __init__(self, block: Block) -> None:
        self.clock = block.order.action(None, block.order.nothing())

    def fail(self, kind: str, message: str) -> None:
        raise EmulationError(Finding(kind, message, "engine", None))


def empty_block(*arrays: tuple[str, tuple[int, ...]]) -> Block:
    k = Builder("empty", "sm_90a")
    for name, shape in arrays:
        k.shared(name, shape, F32)
    k.lane  # noqa: B018
    return Block(k.finish({}), 0, 1, {}, GlobalMemory([]), Late(), Report("late"))


def found_by_engine(kind: str, message: str) -> Any:
    return pytest.raises(EmulationError, match=f"^{kind}: engine: .*{re.escape(message)}")


def test_shared_bytes_know_their_writers() -> None:
    def body(k: Builder) -> None:
        row = k.shared("row", (32,), F32)
        with k.role("a", warps=1), k.mask(k.lane < 8):
            k.store(row.at(k.lane), k.new(f32, 1.0))
        with k.role("b", warps=1), k.mask(k.lane >= 8), k.mask(k.lane < 10):
            k.store(row.at(k.lane), k.new(f32, 2.0))

    block = run(body)
    bytes = block.shared.bytes
    ledger = block.order.ledger
    events = [ledger.events[number] for number in bytes.written[::4]]
    names = [None if event is None else event.agent for event in events]
    assert names == ["block 0, a warp 0"] * 8 + ["block 0, b warp 1"] * 2 + [None] * 22
    assert re.match(r"block 0, a warp 0 at test_memory\.py:\d+", str(events[0]))
    assert bytes.state.tolist() == [WRITTEN] * 40 + [UNWRITTEN] * 88
    first, second = bytes.written[0], bytes.written[32]
    assert (bytes.written[:32] == first).all() and (bytes.written[32:40] == second).all() and 0 < first < second
    assert ledger.proxies[[first, second]].tolist() == [GENERIC] * 2 and (bytes.written[40:] == 0).all()


def test_later_writes_are_later() -> None:
    def body(k: Builder) -> None:
        row = k.shared("row", (4,), F32)
        with k.loop(3):
            k.store(row.at(0), k.new(f32, 1.0))
        k.store(row.at(1), k.new(f32, 1.0))

    written = run(body).shared.bytes.written
    assert written[4] > written[0] > 2 and written[8] == 0


def test_states_and_proxies() -> None:
    block = empty_block(("row", (8,)))
    shared, engine, ledger = block.shared, Engine(block), block.order.ledger
    at = np.arange(SHARED_BASE, SHARED_BASE + 16)
    shared.mark(at, IN_FLIGHT, engine)
    with found_by_engine("uninitialised", "reads row[0], which is still being written"):
        shared.read(at, engine)
    shared.write(at, np.arange(16, dtype=np.uint8), engine, ASYNC)
    assert shared.read(at, engine).tolist() == list(range(16))
    (event,) = set(shared.bytes.written[:16])
    assert ledger.proxies[event] == ASYNC and ledger.columns[event] == engine.clock.column
    assert ledger.events[event].agent == "engine" and set(shared.bytes.written[16:]) == {0}


def test_objects_are_neither_read_nor_written() -> None:
    block = empty_block(("row", (8,)))
    shared, engine = block.shared, Engine(block)
    barrier = np.arange(SHARED_BASE + 8, SHARED_BASE + 16)
    shared.mark(barrier, OBJECT, engine)
    around = np.arange(SHARED_BASE, SHARED_BASE + 32)
    with found_by_engine("barrier object", "writes over row[2], a barrier in use"):
        shared.write(around, np.zeros(32, np.uint8), engine, GENERIC)
    with found_by_engine("barrier object", "row[2]"):
        shared.mark(around, IN_FLIGHT, engine)
    with found_by_engine("uninitialised", "reads row[2], which is a barrier object"):
        shared.read(barrier, engine)


def test_addresses_by_name() -> None:
    shared = empty_block(("row", (3, 2)), ("gap", (1,)), ("other", (40,))).shared
    row, gap, other = shared.block.program.shared
    at = {shared.describe(SHARED_BASE + row.offset + i): i for i in (0, 5, 8, 23)}
    assert at == {"row[0]": 0, "row[0]+5": 5, "row[1]": 8, "row[2]+7": 23}
    assert shared.describe(SHARED_BASE + other.offset + 4) == "other[1]"
    assert shared.describe(SHARED_BASE + gap.offset + 4) == f"shared address {SHARED_BASE + gap.offset + 4}"


def test_global_bytes_know_their_writers() -> None:
    d, source = np.zeros(64, np.uint32), np.ones(64, np.uint32)

    def body(k: Builder, d, source) -> None:
        with k.role("a", warps=1):
            k.load(u32, source)
        with k.role("b", warps=1), k.mask(k.lane < 4):
            k.store(k.address(d, k.lane, 4), k.new(u32, 7), offset=16)

    block = run(body, d=d, source=source)
    (region,) = (each for each in block.memory.regions if each.start == view(d).pointer)
    written = np.zeros(256, bool)
    written[16:32] = True
    np.testing.assert_array_equal(region.state == WRITTEN, written)
    np.testing.assert_array_equal(region.written > 0, written)
    events = block.order.ledger.events
    assert {events[number].agent for number in region.written[written]} == {"block 0, b warp 1"}


def test_global_memory_is_the_arrays_own() -> None:
    d = np.zeros((4, 8), np.float32)
    column = d[:, 5]

    def body(k: Builder, column) -> None:
        with k.mask(k.lane < 4):
            k.store(k.address(column, k.lane, 32), k.new(f32, 3.0))

    run(body, column=column)
    expected = np.zeros((4, 8), np.float32)
    expected[:, 5] = 3
    np.testing.assert_array_equal(d, expected)


def test_overlapping_views_are_one_memory() -> None:
    d = np.zeros(64, np.uint32)

    def body(k: Builder, front, whole) -> None:
        k.store(front, k.new(u32, 9), offset=4)
        k.store(whole, k.load(u32, whole, offset=4), offset=252)

    run(body, front=d[:32], whole=d)
    assert d[63] == 9


def test_an_empty_array() -> None:
    def body(k: Builder, d, nothing) -> None:
        k.store(d, k.new(u32, 1))

    d = np.zeros(4, np.uint32)
    run(body, d=d, nothing=np.zeros((0, 16), np.uint32))
    assert d[0] == 1
    with found("out of bounds"):
        run(lambda k, nothing: k.load(u32, nothing), nothing=np.zeros((0, 16), np.uint32))


def test_a_report_counts_what_ran() -> None:
    d = np.zeros(64, np.uint32)

    def body(k: Builder, d) -> None:
        with k.loop(5):
            k.store(k.address(d, k.block * 32 + k.lane, 4), k.lane)
        k.shared("row", (4,), U32)

    report = emulate.run(build(body, grid=2, d=d))
    stores = {i: n for i, n in report.executed.items() if i.operation.name == "store_global.u32"}
    assert list(stores.values()) == [10] and report.uses["global store bytes"] == 10 * 128
    assert report.instructions == report.executed.total() and report.seconds > 0
