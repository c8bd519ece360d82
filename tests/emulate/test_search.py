"""The search of all orders: against plain enumeration, on what is known to go wrong, on real kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kingpost.emulate.search import Exhausted, Found, Searched, Unfinished, record, search, search_launch
from kingpost.emulate.skeleton import (
    Agent,
    Arrive,
    AwaitStarts,
    Complete,
    Event,
    Init,
    Invalidate,
    MeetArrive,
    MeetWait,
    PhaseWait,
    Skeleton,
    Start,
)
from kingpost.formats import BF16, U32
from kingpost.program import Builder, Launch, u32
from kingpost.targets.nvidia.isa.blackwell import tensor_allocate, tensor_free
from kingpost.targets.nvidia.isa.common import mbarrier_arrive, mbarrier_init
from kingpost.targets.nvidia.units.tensor_memory import COLUMNS

from ..targets.nvidia import one_tile, product, test_kernel_bf16
from ..targets.nvidia.product import Config, operands, poisoned
from .harness import build

# Plain enumeration: every order of every event, with rules of its own


def enumerated(skeleton: Skeleton) -> set[str]:
    """The kinds of all that can go wrong in any order."""
    lists = [agent.events for agent in skeleton.agents]
    kinds: set[str] = set()
    seen = set()
    left = [((0,) * len(lists), (), (), ())]
    while left:
        state = left.pop()
        if state in seen:
            continue
        seen.add(state)
        moves = [agent for agent in range(len(lists)) if _ready(lists, state, agent)]
        for agent in moves:
            after = _moved(lists, state, agent)
            if isinstance(after, str):
                kinds.add(after)
            else:
                left.append(after)
        if not moves:
            places, barriers, *_ = state
            if any(place < len(events) for place, events in zip(places, lists)):
                kinds.add("deadlock")
            elif any(bytes for _, (_, _, bytes, _) in barriers):
                kinds.add("bytes")
    return kinds


def _ready(lists: Sequence[Sequence[Event]], state: tuple, agent: int) -> bool:
    places, barriers, starts, came = state
    if places[agent] == len(lists[agent]):
        return False
    event = lists[agent][places[agent]]
    if isinstance(event, PhaseWait):
        barrier = dict(barriers).get(event.barrier)
        return barrier is None or barrier[3] % 2 != event.parity
    if isinstance(event, AwaitStarts):
        return starts.count(event.action) >= event.starts
    if isinstance(event, MeetWait):
        return all(name != event.barrier or other != agent for name, other, *_ in came)
    return True


def _moved(lists: Sequence[Sequence[Event]], state: tuple, agent: int) -> tuple | str:
    """The state after an agent's next event, or what is wrong with it."""
    places, barriers, starts, came = state
    event = lists[agent][places[agent]]
    places = tuple(place + (i == agent) for i, place in enumerate(places))
    held = dict(barriers)
    if isinstance(event, Start):
        starts = tuple(sorted((*starts, event.action)))
    elif isinstance(event, MeetArrive):
        here = [each for each in came if each[0] == event.barrier]
        if any(other == agent for _, other, *_ in here):
            return "meeting"
        here.append((event.barrier, agent, event.warps, event.participants))
        if len({warps for _, _, warps, _ in here}) > 1:
            return "meeting"
        came = tuple(each for each in came if each[0] != event.barrier)
        if len(here) < event.warps:
            came = tuple(sorted((*came, *here), key=lambda each: each[:2]))
        elif any(wanted not in (None, {other for _, other, *_ in here}) for *_, wanted in here):
            return "meeting"
    elif isinstance(event, Init):
        if event.barrier in held:
            return "lifetime"
        held[event.barrier] = event.count, event.count, 0, 0
    elif isinstance(event, (Invalidate, PhaseWait, Arrive, Complete)):
        if event.barrier not in held:
            return "lifetime"
        count, pending, bytes, phase = held[event.barrier]
        if isinstance(event, Invalidate):
            del held[event.barrier]
        elif isinstance(event, (Arrive, Complete)):
            arrivals = event.count if isinstance(event, Arrive) else 0
            if arrivals > pending:
                return "arrivals"
            pending -= arrivals
            bytes += event.expect if isinstance(event, Arrive) else -event.bytes
            if pending == 0 and bytes == 0:
                for other, events in zip(places, lists):
                    wait = events[other] if other < len(events) else None
                    if isinstance(wait, PhaseWait) and wait.barrier == event.barrier and phase % 2 != wait.parity:
                        return "lap"
                pending, phase = count, phase + 1
            held[event.barrier] = count, pending, bytes, phase
    return places, tuple(sorted(held.items())), starts, came


def agree(skeleton: Skeleton) -> None:
    kinds, outcome = enumerated(skeleton), search(skeleton)
    if isinstance(outcome, Found):
        assert outcome.kind in kinds, (outcome, kinds)
    else:
        assert isinstance(outcome, Exhausted) and not kinds, (outcome, kinds)


# Random skeletons: nothing but noise, and rings with something changed

NAMES = ["x", "y"]
EVENTS = st.one_of(
    st.builds(PhaseWait, st.sampled_from(NAMES), st.integers(0, 1)),
    st.builds(Arrive, st.sampled_from(NAMES), st.integers(0, 2), st.sampled_from([0, 0, 0, 8])),
    st.builds(Arrive, st.sampled_from(NAMES)),
    st.builds(Complete, st.sampled_from(NAMES), st.sampled_from([4, 8])),
    st.builds(Start, st.sampled_from("ab")),
    st.builds(AwaitStarts, st.sampled_from("ab"), st.integers(1, 2)),
    st.builds(MeetArrive, st.just("b"), st.integers(1, 3), st.sampled_from([None, frozenset((0, 1))])),
    st.builds(MeetWait, st.just("b")),
    st.builds(Invalidate, st.sampled_from(NAMES)),
)


@st.composite
def noise(draw: st.DrawFn) -> Skeleton:
    lists = draw(st.lists(st.lists(EVENTS, max_size=5), min_size=1, max_size=4))
    begin = [Init(name, draw(st.integers(1, 3))) for name in NAMES]
    started = [*begin, Start("begun")]
    if draw(st.integers(0, 9)):
        lists = [[AwaitStarts("begun"), *events] for events in lists]
    return skeleton(started, *lists)


def skeleton(*lists: Sequence[Event]) -> Skeleton:
    return Skeleton(tuple(Agent(f"agent {i}", tuple(events)) for i, events in enumerate(lists)))


def ring(stages: int, blocks: int, readers: int, copies: int, meets: bool = False) -> list[list[Event]]:
    """A producer, its readers, and an engine for every copy; the producer initialises."""
    producer: list[Event] = []
    for s in range(stages):
        producer += [Init(f"full[{s}]", 1), Init(f"empty[{s}]", readers)]
    together: list[Event] = [MeetArrive("all", readers + 1, frozenset(range(readers + 1))), MeetWait("all")]
    producer += together
    engines: list[list[Event]] = []
    consumers = [list(together) for _ in range(readers)]
    for block in range(blocks):
        s, turn = block % stages, block // stages % 2
        producer += [PhaseWait(f"empty[{s}]", 1 - turn), Arrive(f"full[{s}]", 1, 16 * copies)]
        for copy in range(copies):
            producer.append(Start((block, copy)))
            engines.append([AwaitStarts((block, copy)), Complete(f"full[{s}]", 16)])
        for consumer in consumers:
            consumer.append(PhaseWait(f"full[{s}]", turn))
            if meets:
                group = frozenset(range(1, readers + 1))
                consumer += [MeetArrive("readers", readers, group), MeetWait("readers")]
            consumer.append(Arrive(f"empty[{s}]"))
    return [producer, *consumers, *engines]


@st.composite
def bent_ring(draw: st.DrawFn) -> Skeleton:
    lists = ring(
        *(draw(st.integers(1, n)) for n in (2, 4, 2)), copies=draw(st.integers(0, 1)), meets=draw(st.booleans())
    )
    for _ in range(draw(st.integers(0, 2))):
        events = draw(st.sampled_from([each for each in lists if each]))
        place = draw(st.integers(0, len(events) - 1))
        event = events[place]
        match draw(st.sampled_from(["drop", "double", "swap", "change", "move"])):
            case "drop":
                del events[place]
            case "double":
                events.insert(place, event)
            case "swap":
                other = draw(st.integers(0, len(events) - 1))
                events[place], events[other] = events[other], event
            case "change" if isinstance(event, PhaseWait):
                events[place] = replace(event, parity=1 - event.parity)
            case "change" if isinstance(event, Arrive):
                events[place] = replace(event, count=draw(st.integers(0, 2)))
            case "change" if isinstance(event, Complete):
                events[place] = replace(event, bytes=draw(st.sampled_from([8, 32])))
            case "change" if isinstance(event, Init):
                events[place] = replace(event, count=draw(st.integers(1, 3)))
            case "move":
                draw(st.sampled_from(lists)).append(events.pop(place))
    return skeleton(*lists)


@settings(max_examples=150, deadline=None)
@given(noise())
def test_noise_is_judged_as_by_enumeration(given: Skeleton) -> None:
    agree(given)


@settings(max_examples=150, deadline=None)
@given(bent_ring())
def test_a_bent_ring_is_judged_as_by_enumeration(given: Skeleton) -> None:
    agree(given)


# What would be missed if the search held too much for independent

GO, WENT = Start("go"), AwaitStarts("go")
MEET = [MeetArrive("m", 2), MeetWait("m")]
MISSED = {
    "a wait that others may lap": ("lap", [[PhaseWait("x", 1)], [Arrive("y"), Arrive("x")]]),
    "an arrival that laps who is on its way": ("lap", [[Arrive("x"), Arrive("x")], [Arrive("y"), PhaseWait("x", 1)]]),
    "an arrival that leaves none to another": (
        "arrivals",
        [[Arrive("x", 2)], [Arrive("y"), PhaseWait("y", 0), Arrive("x")]],
    ),
    "bytes that come before they are expected": (
        "arrivals",
        [[Arrive("z", 2), Arrive("z", 2, 8)], [Complete("z", 8)]],
    ),
    "bytes expected by who does not arrive": (
        "deadlock",
        [[Arrive("x")], [Arrive("x", 0, 8)], [PhaseWait("x", 0), Complete("x", 8)]],
    ),
    "a barrier that another is done with": ("lifetime", [[Arrive("z")], [Arrive("x"), Invalidate("z")]]),
    "a barrier used before it is there": ("lifetime", [[Init("w", 1)], [Arrive("x"), PhaseWait("w", 1)]]),
    "two who meet without a third": ("deadlock", [[*MEET, *MEET], MEET, MEET]),
    "who goes on after a meeting": ("lap", [[PhaseWait("y", 1)], [*MEET, Arrive("y")], MEET]),
    "who goes on after a phase": ("lap", [[PhaseWait("y", 1)], [PhaseWait("x", 0), Arrive("y")], [Arrive("x")]]),
    "who goes on after a phase whose bytes are all there": (
        "lap",
        [
            [PhaseWait("y", 1), AwaitStarts("sent"), Complete("z", 8)],
            [PhaseWait("z", 0), Arrive("y")],
            [Arrive("z"), Arrive("z"), Arrive("z", 1, 8), Start("sent")],
        ],
    ),
    "who goes on after a phase of a new barrier": (
        "lap",
        [
            [Arrive("x"), PhaseWait("y", 1)],
            [PhaseWait("x", 0), Invalidate("x"), Init("x", 1), Start("new")],
            [AwaitStarts("new"), PhaseWait("x", 1), Arrive("y")],
        ],
    ),
}


@pytest.mark.parametrize("missed", MISSED)
def test_nothing_is_missed(missed: str) -> None:
    """Whoever comes first among the agents."""
    kind, lists = MISSED[missed]
    for order in permutations(lists):
        whole = skeleton([Init("x", 1), Init("y", 1), Init("z", 2), GO], *([WENT, *events] for events in order))
        assert kind in enumerated(whole)
        agree(whole)


# What is known to go wrong


def found(kind: str, *lists: Sequence[Event]) -> Found:
    outcome = search(skeleton(*lists))
    assert isinstance(outcome, Found) and outcome.kind == kind, outcome
    return outcome


def with_barriers(first: Sequence[Event], *others: Sequence[Event], **counts: int) -> list[list[Event]]:
    """The lists, after the first agent has initialised these barriers and all have met."""
    meet: list[Event] = [MeetArrive("all", 1 + len(others)), MeetWait("all")]
    return [[*(Init(*each) for each in counts.items()), *meet, *first], *([*meet, *events] for events in others)]


def test_a_ring_goes_right_and_a_single_path_shows_it() -> None:
    whole = skeleton(*ring(stages=2, blocks=6, readers=4, copies=2, meets=True))
    outcome = search(whole)
    assert outcome == Exhausted(1 + sum(len(agent.events) for agent in whole.agents))
    assert str(outcome) == f"no order goes wrong ({outcome.states} states)"


def test_barriers_awaited_in_opposite_orders() -> None:
    one = [PhaseWait("x", 0), Arrive("y")]
    other = [PhaseWait("y", 0), Arrive("x")]
    outcome = found("deadlock", *with_barriers(one, other, x=1, y=1))
    assert outcome.blocked == ("agent 0: wait x parity 0", "agent 1: wait y parity 0")
    lines = str(outcome).splitlines()
    assert lines[0] == "deadlock: 2 agents wait, and nobody can go on"
    assert lines[-3:] == ["then:", "  agent 0: wait x parity 0", "  agent 1: wait y parity 0"]


def test_a_deadlock_that_needs_an_unlucky_order() -> None:
    """The first agent is to meet the second, then the third; it is left alone if those two meet each other."""
    meet = [MeetArrive("b", 2), MeetWait("b")]
    outcome = found("deadlock", [*meet, *meet], meet, meet)
    assert outcome.blocked == ("agent 0: meet at b",)


def test_one_warp_does_not_arrive() -> None:
    lists = ring(stages=2, blocks=3, readers=4, copies=1)
    lists[4].remove(Arrive("empty[0]"))
    outcome = found("deadlock", *lists)
    assert "agent 0: wait empty[0] parity 0" in outcome.blocked


def test_a_slot_left_before_it_was_full() -> None:
    """A reader leaves a slot before it waits for it: that is twice before the writer looks once."""
    lists = ring(stages=1, blocks=4, readers=1, copies=0)
    reader = lists[1]
    reader[4:6] = reader[5:3:-1]
    outcome = found("lap", *lists)
    assert "agent 0 has yet to look at empty[0] for a phase that has completed (parity 0)" in outcome.message
    assert outcome.trace[-1] == "agent 1: arrive empty[0]"
    assert outcome.blocked == ("agent 0: wait empty[0] parity 0", "agent 1: arrive empty[0]")


def test_a_slow_warp_sleeps_through_two_phases() -> None:
    """Every count is right, but nobody waits for the second reader."""
    lists = ring(stages=2, blocks=5, readers=2, copies=1)
    lists[0] = [replace(e, count=1) if isinstance(e, Init) else e for e in lists[0]]
    lists[2] = [event for event in lists[2] if not isinstance(event, Arrive)]
    outcome = found("lap", *lists)
    assert "agent 2 has yet to look at full[0]" in outcome.message
    slow = [line for line in outcome.trace if line.startswith("agent 2")]
    assert len(slow) < len(outcome.trace) / 4


def test_an_arrival_too_many() -> None:
    outcome = found("arrivals", *with_barriers([Arrive("x", 2)], [Arrive("x")], x=2))
    assert (
        outcome.message == "1 more at x, whose phase lacks 0" or "2 more at x, whose phase lacks 1" in outcome.message
    )


def test_bytes_that_do_not_add_up() -> None:
    wait = PhaseWait("x", 0)
    for bytes, kind in ((8, None), (16, "deadlock"), (4, "deadlock")):
        lists = with_barriers([Arrive("x", 1, 8), Start("copy"), wait], x=1) + [
            [AwaitStarts("copy"), Complete("x", bytes)]
        ]
        outcome = search(skeleton(*lists))
        assert getattr(outcome, "kind", None) == kind
    found("bytes", *with_barriers([Arrive("x", 1, 8)], x=1))


def test_groups_that_mix_at_a_named_barrier() -> None:
    groups = [frozenset((0, 1)), frozenset((2, 3))]
    lists = [[MeetArrive("b", 2, group), MeetWait("b")] for group in groups for _ in group]
    outcome = found("meeting", *lists)
    assert "lets go" in outcome.message and "which is not one group" in outcome.message
    apart = [[replace(e, barrier=f"b{i // 2}") for e in each] for i, each in enumerate(lists)]  # type: ignore[call-arg]
    assert isinstance(search(skeleton(*apart)), Exhausted)


def test_a_named_barrier_of_two_counts() -> None:
    outcome = found("meeting", [MeetArrive("b", 2), MeetWait("b")], [MeetArrive("b", 3), MeetWait("b")])
    assert "b is for" in outcome.message


def test_a_barrier_used_before_it_is_there() -> None:
    outcome = found("lifetime", [Init("x", 1), Arrive("x")], [PhaseWait("x", 0)])
    assert outcome.trace == ("agent 1: wait x parity 0",)
    assert outcome.message == "x is not initialised"


def test_a_bound_is_kept_and_said() -> None:
    noisy = [[Arrive("x"), Arrive("x")] for _ in range(6)]
    unordered = skeleton(*with_barriers(*noisy, x=4))
    assert search(unordered, bound=20) == Unfinished(20)
    assert str(Unfinished(20)) == "unfinished: nothing found in 20 states, more are left"
    assert isinstance(search(unordered), Exhausted)


def test_agents_that_do_the_same_can_change_places() -> None:
    """Six agents arrive twice each, four to a phase: in any order, but the states know how many, not who."""
    outcome = search(skeleton(*with_barriers(*[[Arrive("x"), Arrive("x")] for _ in range(6)], x=4)))
    assert isinstance(outcome, Exhausted) and outcome.states < 3**6


# Kernels


def searched(launch: Launch) -> Searched:
    (found,) = search_launch(launch)
    assert found.settled
    return found


def fp8_launch() -> Launch:
    """Two tiles of five K blocks, by one block of two math warpgroups with a ring of two stages."""
    numbers = operands(256, 16, 640)
    return product.launch(Config(2, 1, 16, 2, 1), numbers, poisoned(numbers, BF16), grid=1)


def test_the_fp8_kernel() -> None:
    found = searched(fp8_launch())
    names = [agent.name for agent in found.skeleton.agents]
    assert names[:13] == [*(f"math warp {i}" for i in range(8)), *(f"load warp {i}" for i in range(8, 12)), names[12]]
    assert [name for name in names[12:] if name.startswith("bulk load")] == names[12:32]  # two for each K block
    assert names[32:] == ["cp.async of warp 9"]
    assert found.outcome == Exhausted(1 + sum(len(agent.events) for agent in found.skeleton.agents))


def test_the_bf16_kernel() -> None:
    given = test_kernel_bf16.product(1, 64, 64, 64 * 4, op="mm")
    found = searched(given.launch(test_kernel_bf16.config(1, 1, 32, 3, 1), 1))
    assert isinstance(found.outcome, Exhausted), str(found)


@pytest.mark.parametrize("blackwell", one_tile.CASES[3:4], ids=str)
def test_a_blackwell_kernel(blackwell: one_tile.Case) -> None:
    found = searched(one_tile.launch(blackwell)[0])
    assert isinstance(found.outcome, Exhausted), str(found)
    assert any("tcgen05" in agent.name for agent in found.skeleton.agents)


def test_blocks_that_do_the_same_are_searched_once_and_arrays_are_left_alone() -> None:
    numbers = operands(128, 32, 256)
    d = np.ones((128, 32), BF16.dtype)
    (found,) = search_launch(product.launch(Config(1, 1, 16, 2, 1), numbers, d, grid=4))
    assert found.blocks == (0, 1, 2, 3) and (d == 1).all()
    assert str(found).startswith("blocks 0, 1, 2, 3: no order goes wrong (")


def without(skeleton: Skeleton, name: str, text: str, nth: int = 0) -> Skeleton:
    """The skeleton without the nth event of an agent that reads so."""
    (events,) = (agent.events for agent in skeleton.agents if agent.name == name)
    place = [i for i, event in enumerate(events) if str(event) == text][nth]
    less = (*events[:place], *events[place + 1 :])
    return Skeleton(tuple(replace(a, events=less) if a.name == name else a for a in skeleton.agents))


def test_a_broken_fp8_kernel() -> None:
    (recorded,) = record(fp8_launch(), "late", [0])
    for name, text, kind in [
        ("math warp 6", "arrive empty[0]", "deadlock"),
        ("math warp 3", "arrive empty[1]", "deadlock"),
        ("load warp 8", "meet at barrier 0", "lifetime"),
        ("math warp 5", "meet at barrier 2", "meeting"),
    ]:
        outcome = search(without(recorded, name, text))
        assert isinstance(outcome, Found) and outcome.kind == kind, (name, text, outcome)
        assert all(re.fullmatch(r".* \(\S+\.py:\d+\)", line) for line in (*outcome.trace, *outcome.blocked))
    stuck = search(without(recorded, "math warp 6", "arrive empty[0]"))
    assert isinstance(stuck, Found)
    assert any(re.match(r"load warp 8: wait empty\[0\] parity \d \(.*ring.py:\d+\)", line) for line in stuck.blocked)


def test_control_flow_that_depends_on_the_order_is_said() -> None:
    """Two warps allocate tensor memory; one arrives at a barrier if it gets what whoever comes first gets."""

    def body(k: Builder) -> None:
        barrier, slots = k.shared_barriers("done", 1).at(0), k.shared("slots", (2,), U32)
        with k.when(k.warp == 0), k.mask(k.lane == 0):
            mbarrier_init(k, barrier, count=1)
        k.barrier()
        for number, role in enumerate(("one", "other")):
            with k.role(role, warps=1):
                slot = slots.at(number)
                tensor_allocate(k, slot, columns=64)
                address = k.load(u32, slot)
                k.barrier()  # both have theirs
                if role == "other":
                    with k.when(address == COLUMNS - 64), k.mask(k.lane == 0):
                        mbarrier_arrive(k, barrier)
                tensor_free(k, address, columns=64)

    (found,) = search_launch(build(body, target="sm_100a"))
    assert not found.settled
    assert str(found).endswith("order-dependent control flow: search covers the recorded one only")
