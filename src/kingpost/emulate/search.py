"""Every order in which a block's agents can synchronise: deadlocks and lapped waits found by search, not by luck.

A state is how far each agent has come, and what the barriers hold. `search` looks at states depth first, each once.

Fewer orders do. In a state, all that an agent's next event changes, and all that the others can do before it happens,
may be independent: then whether it happens first or later leads to the same states, and the same findings, and `search`
follows that one event alone (a persistent set of one, in Godefroid's words). `_Reach` bounds what the others can do
while that agent stands still: how far each comes if every phase that could complete by the number of arrivals does.
With that bound,

- a start, and a wait for starts or at a named barrier that may end, are independent of everything: they only enable;
- a wait that may end is independent if the others cannot complete the phase under way without its agent (else that
  wait can be lapped, and only the search over both orders can tell);
- an arrival, or bytes, are independent if they and all that others can add fit in the phase under way, so that it
  completes when the last of them is there, whoever that is (the bytes then balance or are missing in any order), and if
  none of the others passes a wait that ends before this phase completes, which the event could lap;
- coming to a named barrier, if it and the others fit in the meeting under way;
- an initialisation, if nobody else uses that barrier before.

Where no agent's next event is independent, every order is followed. States in which agents with the same events have
changed places count as one.

A wait is lapped if it could have ended, and then a phase completes that makes its parity wrong again: whether it passes
is left to timing. A wait that is a phase or more behind in every order is none: it looks at the same phase every time.
What is not searched: data and their visibility, and whether everything asynchronous is over when the block ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kingpost.emulate.block import Block
from kingpost.emulate.run import run
from kingpost.emulate.skeleton import (
    Arrive,
    AwaitStarts,
    Complete,
    Event,
    Init,
    Invalidate,
    MeetArrive,
    MeetWait,
    PhaseWait,
    Recorder,
    Skeleton,
    Start,
)
from kingpost.emulate.synchronisation import State, Synchronisation, Wrong
from kingpost.program import Launch, TensorMap

BOUND = 100_000  # states
SHOWN = 30  # steps of an order, in its text


@dataclass(frozen=True)
class Exhausted:
    """No order goes wrong. states: how many were looked at, which stand for all."""

    states: int

    def __str__(self) -> str:
        return f"no order goes wrong ({self.states} states)"


@dataclass(frozen=True)
class Unfinished:
    """Nothing was found in this many states, but more are left."""

    states: int

    def __str__(self) -> str:
        return f"unfinished: nothing found in {self.states} states, more are left"


@dataclass(frozen=True)
class Found:
    """An order that goes wrong.

    kind: "deadlock", "lap", "arrivals" (too many), "bytes" (missing at the end), "lifetime" (of an mbarrier), "meeting"
    (of a wrong count or group). trace: the steps in order, each a line, without starts of actions; steps that the end
    does not need are left out, unless it is a deadlock. blocked: the next event of each agent that is neither done nor
    idle.
    """

    kind: str
    message: str
    trace: tuple[str, ...]
    blocked: tuple[str, ...]
    states: int

    def __str__(self) -> str:
        """The kind, what it is, the last steps of the order, and who is where."""
        before = len(self.trace) - SHOWN
        steps = [f"({before} steps)", *self.trace[before:]] if before > 0 else self.trace
        lines = [f"{self.kind}: {self.message}", "in this order:", *(f"  {step}" for step in steps)]
        if self.blocked:
            lines += ["then:", *(f"  {agent}" for agent in self.blocked)]
        return "\n".join(lines)


Outcome = Exhausted | Found | Unfinished


class _Reach:
    """How far agents can come from a state, and what they do on their way, while one of them stands still: a bound.

    mbarriers and named barriers by number: arrivals and bytes that the others add; `looked` at for a phase that has
    completed; `ended` or initialised; `touched` at all.
    """

    def __init__(self, machine: Synchronisation, state: State, still: int) -> None:
        self.machine, self.state = machine, state
        self.arrivals = [0] * len(state.phases)
        self.expected = [0] * len(state.phases)
        self.completed = [0] * len(state.phases)
        self.loose: set[int] = set()  # bytes are expected without an arrival
        self.looked: set[int] = set()
        self.ended: set[int] = set()
        self.touched: set[int] = set()
        self.came = [0] * len(state.meetings)
        self.starts = list(state.starts)
        self.levels: dict[tuple[int, int], int] = {}  # by agent and mbarrier: a phase that it knows has begun
        self.visits: dict[tuple[int, int], int] = {}  # by agent and named barrier: how often it has come
        for number, come in enumerate(state.meetings):
            for agent in come:
                self.visits[agent, number] = 1
        places = list(state.places)
        agents = [a for a in range(len(places)) if a != still and places[a] < len(machine.steps[a])]
        moved = True
        while moved:
            moved = False
            for agent in agents:
                steps, first = machine.steps[agent], places[agent]
                while places[agent] < len(steps) and self._may(agent, *steps[places[agent]]):
                    places[agent] += 1
                moved |= places[agent] > first

    def completions(self, of: int) -> int:
        """How many phases of an mbarrier can complete."""
        phase = self.state.phases[of]
        if phase is None:
            return 0
        more = self.arrivals[of] - phase.pending
        if more < 0:
            return 0
        times, left = divmod(more, phase.wanted)
        missing = phase.bytes + self.expected[of] - self.completed[of]  # when the last of these arrivals has come
        return times if left == 0 and missing > 0 else times + 1

    def _may(self, agent: int, event: Event, of: int) -> bool:
        """Whether an agent can get past this event; then what it adds is added."""
        if isinstance(event, Start):
            self.starts[of] += 1
        elif isinstance(event, AwaitStarts):
            return self.starts[of] >= event.starts
        elif isinstance(event, MeetArrive):
            self.came[of] += 1
            self.visits[agent, of] = self.visits.get((agent, of), 0) + 1
        elif isinstance(event, MeetWait):
            come = self.came[of] + len(self.state.meetings[of])
            return come // self.machine.smallest[of] >= self.visits.get((agent, of), 0)
        else:
            self.touched.add(of)
            if isinstance(event, PhaseWait):
                return self._passes(agent, event, of)
            if isinstance(event, Arrive):
                self.arrivals[of] += event.count
                if event.count:
                    self.expected[of] += event.expect
                else:
                    self.loose.add(of)
            elif isinstance(event, Complete):
                self.completed[of] += event.bytes
            else:
                self.ended.add(of)
        return True

    def _passes(self, agent: int, event: PhaseWait, of: int) -> bool:
        phase = self.state.phases[of]
        if phase is None or of in self.ended:
            return True
        level = max(self.levels.get((agent, of), 0), phase.number)
        level += level & 1 == event.parity
        if level > phase.number + self.completions(of):
            return False
        self.levels[agent, of] = level
        if level == phase.number:
            self.looked.add(of)
        return True


def _independent(machine: Synchronisation, state: State, agent: int) -> bool:
    """Whether it does not matter when an agent's next event happens, of those that can: see the module's text."""
    step = machine.next(state, agent)
    assert step is not None
    event, of = step
    if isinstance(event, (Start, AwaitStarts, MeetWait)):
        return True
    others = _Reach(machine, state, agent)
    if isinstance(event, MeetArrive):
        return len(state.meetings[of]) + others.came[of] + 1 <= event.warps
    phase = state.phases[of]
    if phase is None or isinstance(event, (Init, Invalidate)):
        return of not in others.touched
    if of in others.ended:
        return False
    if isinstance(event, PhaseWait):
        return others.completions(of) == 0
    if isinstance(event, Arrive):
        count, bytes = event.count, event.expect
    else:
        assert isinstance(event, Complete)
        count, bytes = 0, -event.bytes
    if of in others.looked or of in others.loose or (isinstance(event, Arrive) and not count):
        return False
    spare = phase.pending - others.arrivals[of] - count
    balance = phase.bytes + bytes + others.expected[of] - others.completed[of]
    return spare > 0 or (spare == 0 and balance >= 0)


def _followed(machine: Synchronisation, state: State, enabled: list[int], last: int) -> list[int]:
    """One agent whose next event is independent, best the one that went last; or else all."""
    cheap = [a for a in enabled if isinstance(machine.steps[a][state.places[a]].event, (Start, AwaitStarts, MeetWait))]
    if cheap:
        return cheap[:1]
    for agent in sorted(enabled, key=lambda a: (a != last, a)):
        if _independent(machine, state, agent):
            return [agent]
    return enabled


def search(skeleton: Skeleton, bound: int = BOUND) -> Outcome:
    """Look for an order of the agents' events that goes wrong, in at most `bound` states; one is enough."""
    machine = Synchronisation(skeleton)
    came: dict[State, tuple[State, int] | None] = {machine.start: None}
    stack = [(machine.start, 0)]  # all in order of progress, and who went last
    while stack:
        state, last = stack.pop()
        enabled = machine.enabled(state)
        try:
            if not enabled:
                machine.refuse_end(state)
            for agent in _followed(machine, state, enabled, last):
                last = agent
                after, _ = machine.sorted(machine.after(state, agent))
                if after not in came:
                    if len(came) >= bound:
                        return Unfinished(len(came))
                    came[after] = state, agent
                    stack.append((after, agent))
        except Wrong:
            order = [last] if enabled else []
            while (before := came[state]) is not None:
                state, agent = before
                order.append(agent)
            return _found(machine, order[::-1], len(came))
    return Exhausted(len(came))


def _found(machine: Synchronisation, order: list[int], states: int) -> Found:
    """What goes wrong in this order of agents, who are numbered by progress among those that are alike."""
    order = _shortened(machine, _by_name(machine, order))
    state, lines = machine.start, []
    try:
        for agent in order:
            step = machine.next(state, agent)
            if step and not isinstance(step.event, (Start, AwaitStarts)):
                lines.append(machine.line(state, agent))
            state = machine.after(state, agent)
        machine.refuse_end(state)
    except Wrong as wrong:
        blocked = [machine.line(state, agent) for agent in machine.unfinished(state)]
        return Found(wrong.kind, str(wrong), tuple(lines), tuple(blocked), states)
    raise AssertionError("nothing is wrong with this order")


def _by_name(machine: Synchronisation, order: list[int]) -> list[int]:
    """An order of agents numbered by progress as one of the agents themselves."""
    state, agents = machine.start, []
    for place in order:
        agents.append(machine.sorted(state)[1][place])
        if len(agents) < len(order):
            state = machine.after(state, agents[-1])
    return agents


def _shortened(machine: Synchronisation, order: list[int]) -> list[int]:
    """An order without the steps that its last, if that is wrong, does not need, the latest left out first."""
    states = [machine.start]
    for agent in order[:-1]:
        states.append(machine.after(states[-1], agent))
    kept = order[-1:]
    kind = _wrong(machine, states[-1], kept)
    if kind is None:
        return order
    for agent, state in zip(order[-2::-1], states[-2::-1]):
        if agent in kept or _wrong(machine, state, kept) != kind:
            kept.insert(0, agent)
    return kept


def _wrong(machine: Synchronisation, state: State, order: list[int]) -> str | None:
    """The kind of what is wrong with the last of these steps, if the others may happen and are right."""
    for number, agent in enumerate(order):
        if not machine.may(state, agent):
            return None
        try:
            state = machine.after(state, agent)
        except Wrong as wrong:
            return wrong.kind if number + 1 == len(order) else None
    return None


@dataclass(frozen=True)
class Searched:
    """What was found in blocks of one skeleton. settled: whether their control flow was the same in both schedules; if
    not, other orders may hold events that no search of the recorded ones has seen."""

    blocks: tuple[int, ...]
    skeleton: Skeleton
    outcome: Outcome
    settled: bool

    def __str__(self) -> str:
        more = "" if self.settled else "\norder-dependent control flow: search covers the recorded one only"
        return f"blocks {', '.join(map(str, self.blocks))}: {self.outcome}{more}"


def search_launch(launch: Launch, blocks: Iterable[int] | None = None, bound: int = BOUND) -> list[Searched]:
    """Search the skeletons of a launch's blocks (default: all), each distinct one once.

    They are recorded while the launch is emulated, late and then early, for its control flow may depend on data; its
    arrays then hold what they held before. Raises `EmulationError` where the emulator finds something itself,
    ValueError for blocks in clusters: a skeleton is of one block.
    """
    if launch.program.cluster > 1:
        raise ValueError(f"launch is of clusters of {launch.program.cluster} blocks; blocks by themselves are wanted")
    chosen = list(range(launch.grid) if blocks is None else blocks)
    late, early = (record(launch, order, chosen) for order in ("late", "early"))
    same: dict[tuple[Skeleton, bool], list[int]] = {}
    for index, one, other in zip(chosen, late, early):
        same.setdefault((one, one == other), []).append(index)
    return [
        Searched(tuple(each), skeleton, search(skeleton, bound), settled) for (skeleton, settled), each in same.items()
    ]


def record(launch: Launch, order: str, blocks: Iterable[int]) -> list[Skeleton]:
    """The skeletons of blocks of a launch as emulated in this order ("late", "early"), which leaves arrays alone."""
    mapped = [argument.view for argument in launch.arguments.values() if isinstance(argument, TensorMap)]
    arrays = [array for view in (*mapped, *launch.views) if (array := view.numpy()).flags.writeable]
    held = [array.copy() for array in arrays]
    recorders: list[Recorder] = []

    def observe(block: Block) -> None:
        block.recorder = Recorder(block)
        recorders.append(block.recorder)

    try:
        run(launch, order, blocks=blocks, observe=observe)
    finally:
        for array, before in zip(arrays, held):
            array[...] = before
    return [recorder.skeleton() for recorder in recorders]
