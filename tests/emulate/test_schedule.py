"""Schedules: what is late, early or random about them; the same seed, the same run; what only one of them shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kingpost import emulate
from kingpost.emulate import ASYNC, Block, Random, Wait, Warp, schedule
from kingpost.emulate.order import Knowledge
from kingpost.formats import U32
from kingpost.program import Builder, operation, u32

from .harness import build, found, run

SCHEDULES = ("late", "early", "random")


class Couriers:
    """An asynchronous engine for these tests: it writes a word to shared memory, some time."""

    def __init__(self, block: Block) -> None:
        self.block, self.sent = block, 0
        self.delivered: list[int] = []
        self.back: list[Knowledge] = []  # what each that is back teaches whoever waits

    def send(self, warp: Warp, address: int, value: int, queue: object, shared: bool = True) -> None:
        number = self.sent = self.sent + 1

        def perform(action: Any) -> None:
            bytes = np.array([value], np.uint32).view(np.uint8)
            self.block.shared.write(np.arange(address, address + 4), bytes, action, ASYNC)
            self.delivered.append(value)
            self.back.append(action.clock.release())

        queue = number if queue is None else queue
        self.block.submit(f"courier {number}", ("courier", queue), warp.instruction.source, perform, shared)


@operation("send", name="send")
def send(warp: Any, address: Any, value: Any, *, queue: object = None, shared: bool = True) -> None:
    one = np.broadcast_to(value, 32)[0]
    warp.block.unit(Couriers).send(warp, int(address[0]), int(one), queue, shared)


@operation("await", name="await")
def await_all(warp: Any) -> Wait:
    couriers = warp.block.unit(Couriers)
    wanted = couriers.sent

    def passed() -> None:
        for knows in couriers.back:
            warp.clock.acquire(knows)

    return Wait(
        lambda: len(couriers.back) >= wanted, lambda: f"couriers: {len(couriers.back)} of {wanted} are back", passed
    )


def last(order: str, seed: int = 0, queue: object = None) -> int:
    """Which of four couriers, 0 to 3, comes last."""

    def body(k: Builder) -> None:
        row = k.shared("row", (4,), U32)
        for value in range(4):
            send(k, row.at(value), value, queue=queue)
        await_all(k)
        k.load(u32, row.at(k.lane % 4))

    return run(body, order, seed).unit(Couriers).delivered[-1]


def test_names() -> None:
    assert [schedule(name, 3).name for name in SCHEDULES] == ["late", "early", "random (seed 3)"]
    with pytest.raises(ValueError, match="schedule is 'lazy'; 'late', 'early' or 'random' is wanted"):
        schedule("lazy")


def test_late_is_newest_first_and_early_in_order() -> None:
    assert last("late") == 0
    assert last("early") == 3
    assert {last("random", seed) for seed in range(30)} == {0, 1, 2, 3}


@pytest.mark.parametrize("order", SCHEDULES)
def test_a_queue_keeps_its_order(order: str) -> None:
    assert {last(order, seed, queue="one") for seed in range(10)} == {3}


def test_early_is_at_once_and_late_only_when_all_wait() -> None:
    def body(k: Builder, wait: bool) -> None:
        word = k.shared("word", (4,), U32).at(0)
        send(k, word, 5)
        if wait:
            await_all(k)
        k.load(u32, word)
        await_all(k)

    for order in SCHEDULES:
        run(lambda k: body(k, True), order)
    with found("race", "reads word[0], which courier 1", "wrote: nothing orders the two"):
        run(lambda k: body(k, False), "early")
    with found("uninitialised", "word[0]", "never written"):
        run(lambda k: body(k, False), "late")


def test_a_missing_wait_is_found_in_every_order() -> None:
    """Whether the courier was there already, or not yet."""

    def body(k: Builder) -> None:
        word = k.shared("word", (4,), U32).at(0)
        send(k, word, 5)
        k.set(k.new(u32), 0)
        k.load(u32, word)
        await_all(k)

    outcomes = set()
    for seed in range(200):
        try:
            run(body, "random", seed)
            outcomes.add("fine")
        except emulate.EmulationError as error:
            outcomes.add(error.finding.kind)
    assert outcomes == {"race", "uninitialised"}


# Two warps that write in turn, with an interruption possible after every instruction


def trace(seed: int) -> list[int]:
    d = np.zeros(3, np.uint32)

    class Watched(Random):
        def pick(self, warps: Any, actions: Any) -> Any:
            chosen = super().pick(warps, actions)
            picks.append(getattr(chosen, "index", -1))
            return chosen

    picks: list[int] = []

    def body(k: Builder, d) -> None:
        rows = k.shared("rows", (3, 20), U32)
        for name in "abc":
            with k.role(name, warps=1):
                with k.loop(20) as i:
                    send(k, rows.at(k.warp) + i * 4, i)
                await_all(k)
                k.barrier()
                k.store(k.address(d, k.warp, 4), k.load(u32, rows.at(k.warp)))

    block = run(body, Watched(seed), d=d)
    return [*picks, *d.tolist(), *block.shared.bytes.written.tolist(), *block.unit(Couriers).delivered]


def test_the_same_seed_is_the_same_run() -> None:
    assert trace(1) == trace(1) and trace(2) == trace(2)
    assert trace(1) != trace(2)


@pytest.mark.parametrize("order", ["late", "early"])
def test_late_and_early_are_one_run_each(order: str) -> None:
    def body(k: Builder) -> None:
        row = k.shared("row", (8,), U32)
        with k.loop(5) as i:
            send(k, row.at(i), i)
        await_all(k)

    first, second = run(body, order), run(body, order)
    assert first.shared.bytes.written.tolist() == second.shared.bytes.written.tolist()
    assert first.shared.bytes.data.tolist() == second.shared.bytes.data.tolist()


def test_a_schedule_of_ones_own() -> None:
    class First(emulate.Schedule):
        name = "first come"

        def pick(self, warps: Any, actions: Any) -> Any:
            return [*warps, *actions][0]

    def body(k: Builder) -> None:
        send(k, k.shared("word", (4,), U32).at(0), 1)
        await_all(k)

    assert emulate.run(build(body), First()).schedule == "first come"


# The end of a block


def test_what_touches_shared_memory_must_be_over_at_exit() -> None:
    def body(k: Builder, shared: bool) -> None:
        send(k, k.shared("word", (4,), U32).at(0), 1, shared=shared)

    for order in SCHEDULES:
        with found("in flight at exit", "courier 1", "the block ends while this may still touch its shared memory"):
            run(lambda k: body(k, True), order)
    assert run(lambda k: body(k, False), "late").pending == []  # it happens all the same


def test_a_deadlock_names_who_waits_for_what() -> None:
    @operation("never", name="never")
    def never(warp: Any) -> Wait:
        return Wait(lambda: False, lambda: "a train that was cancelled")

    def body(k: Builder) -> None:
        with k.role("waits", warps=1):
            never(k)
        with k.role("waits too", warps=2):
            k.barrier()

    with pytest.raises(emulate.DeadlockError) as info:
        run(body)
    lines = str(info.value).splitlines()
    assert lines[0] == "deadlock: block 0: nobody can go on:"
    assert lines[1].startswith("  block 0, waits warp 0 at test_schedule.py:")
    assert lines[1].endswith("waits for a train that was cancelled")
    assert [line.partition(" waits for ")[2] for line in lines[2:]] == [
        "barrier 0, where 2 of 3 warps have arrived"
    ] * 2
