"""What the agents of a block do to synchronise, without data: lists of events, recorded while a block is emulated.

An agent is a warp, or a queue of an asynchronous engine, whose actions happen in order, each at any time after its
start. Loops are unrolled as executed. Left out: actions that signal nothing, waits for them (each ends by itself), and
what is waited for in other ways (free tensor memory, flags in global memory).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from kingpost.emulate.block import Action, Block
from kingpost.emulate.warp import Warp
from kingpost.program import Instruction, Source


@dataclass(frozen=True)
class Event:
    """One step of an agent. `source` is the line it comes from; events are equal without it."""

    source: Source | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True)
class Init(Event):
    """Initialise an mbarrier for `count` arrivals a phase."""

    barrier: str
    count: int

    def __str__(self) -> str:
        return f"initialise {self.barrier} for {self.count}"


@dataclass(frozen=True)
class Invalidate(Event):
    """Be done with an mbarrier."""

    barrier: str

    def __str__(self) -> str:
        return f"invalidate {self.barrier}"


@dataclass(frozen=True)
class PhaseWait(Event):
    """Wait until the phase of this parity has completed; on a fresh barrier parity 1 passes at once."""

    barrier: str
    parity: int

    def __str__(self) -> str:
        return f"wait {self.barrier} parity {self.parity}"


@dataclass(frozen=True)
class Arrive(Event):
    """Expect bytes in the current phase, then arrive `count` times."""

    barrier: str
    count: int = 1
    expect: int = 0

    def __str__(self) -> str:
        times = f" {self.count} times" if self.count != 1 else ""
        return f"arrive{times} {self.barrier}" + (f" expecting {self.expect} bytes" if self.expect else "")


@dataclass(frozen=True)
class Complete(Event):
    """Bytes that the current phase expects are there."""

    barrier: str
    bytes: int

    def __str__(self) -> str:
        return f"complete {self.bytes} bytes {self.barrier}"


@dataclass(frozen=True)
class Start(Event):
    """Start an asynchronous action, or one agent's part of it."""

    action: Hashable

    def __str__(self) -> str:
        return f"start {self.action}"


@dataclass(frozen=True)
class AwaitStarts(Event):
    """Wait until `starts` parts of an action have been started: how an engine begins, and what a wait for an action
    that signals nothing comes down to."""

    action: Hashable
    starts: int = 1

    def __str__(self) -> str:
        return f"await {self.action}" + (f", started by {self.starts}" if self.starts != 1 else "")


@dataclass(frozen=True)
class MeetArrive(Event):
    """Come to a named barrier, which lets `warps` agents go at once. participants: which agents they must be, by
    their places in the skeleton, if known."""

    barrier: str
    warps: int
    participants: frozenset[int] | None = None

    def __str__(self) -> str:
        return f"come to {self.barrier} for {self.warps}"


@dataclass(frozen=True)
class MeetWait(Event):
    """Wait until the named barrier lets go those it had when this agent last came to it."""

    barrier: str

    def __str__(self) -> str:
        return f"meet at {self.barrier}"


@dataclass(frozen=True)
class Agent:
    """A warp; or a queue of an engine, which is idle until its next action is started."""

    name: str
    events: tuple[Event, ...]
    engine: bool = False


@dataclass(frozen=True)
class Skeleton:
    """The agents of a block. Its mbarriers are there once an agent has initialised them."""

    agents: tuple[Agent, ...]


class Recorder:
    """Collects the skeleton of one block while it runs: the block and its units call it."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.events: list[list[Event]] = [[] for _ in block.warps]
        self.effects: dict[Action, list[Event]] = {}  # of every action, as submitted
        self.meeting: dict[str, list[tuple[int, int]]] = {}  # who has come to a named barrier, and as which event
        self.executing: Warp = block.warps[0]
        block.watchers.append(self._execute)

    def _execute(self, warp: Warp, instruction: Instruction) -> None:
        self.executing = warp

    def initialise(self, warp: Warp, address: int, count: int) -> None:
        self._add(warp, Init(self._name(address), count))

    def invalidate(self, warp: Warp, address: int) -> None:
        self._add(warp, Invalidate(self._name(address)))

    def wait(self, warp: Warp, address: int, parity: int) -> None:
        self._add(warp, PhaseWait(self._name(address), parity))

    def arrive(self, agent: Warp | Action, address: int, arrivals: int, expect: int) -> None:
        self._add(agent, Arrive(self._name(address), arrivals, expect))

    def complete(self, action: Action, address: int, bytes: int) -> None:
        self._add(action, Complete(self._name(address), bytes))

    def meet(self, warp: Warp, identifier: int, warps: int) -> None:
        """A warp comes to a named barrier and waits there."""
        name = f"barrier {identifier}"
        here = self.meeting.setdefault(name, [])
        here.append((warp.index, len(self.events[warp.index])))
        self._add(warp, MeetArrive(name, warps))
        self._add(warp, MeetWait(name))
        if len(here) == warps:
            together = frozenset(index for index, _ in here)
            for index, place in here:
                event = self.events[index][place]
                self.events[index][place] = MeetArrive(name, warps, together, source=event.source)
            here.clear()

    def submit(self, action: Action) -> None:
        """The executing warp hands an action to an engine."""
        self.effects[action] = []
        self._add(self.executing, Start(action))

    def start_part(self, warp: Warp, entry: Hashable) -> None:
        """A warp starts its part of an action that begins when all its warps have."""
        self._add(warp, Start(entry))

    def await_parts(self, warp: Warp, entries: Iterable[Hashable], starts: int) -> None:
        """A warp waits for such actions, of `starts` warps each."""
        for entry in entries:
            self._add(warp, AwaitStarts(entry, starts))

    def skeleton(self) -> Skeleton:
        """What has been recorded; the same for blocks whose agents do the same, in whatever order."""
        names, owners = self._names()
        warps = [
            Agent(f"{warp.role} warp {warp.index}".lstrip(), tuple(_named(events, names)))
            for warp, events in zip(self.block.warps, self.events)
        ]
        queues: dict[Hashable, list[Action]] = {}
        for action, effects in self.effects.items():
            if effects:
                queues.setdefault(action if action.queue is None else action.queue, []).append(action)
        engines = []
        for actions in queues.values():
            begun = [[AwaitStarts(a, source=a.source), *self.effects[a]] for a in actions]
            name = names[actions[0]] if len(actions) == 1 else f"{_kind(actions[0])} of warp {owners[actions[0]]}"
            engines.append(Agent(name, tuple(_named([event for each in begun for event in each], names)), engine=True))
        return Skeleton((*warps, *sorted(engines, key=lambda engine: engine.name)))

    def _names(self) -> tuple[dict[Hashable, str], dict[Hashable, int]]:
        """Of the actions that matter, by warp and number, which do not depend on the order in which warps ran."""
        names: dict[Hashable, str] = {}
        owners: dict[Hashable, int] = {}
        for index, events in enumerate(self.events):
            count: Counter[str] = Counter()
            for event in events:
                if isinstance(event, Start) and event.action not in names and self._matters(event.action):
                    kind = _kind(event.action)
                    count[kind] += 1
                    names[event.action], owners[event.action] = f"{kind} {count[kind]} of warp {index}", index
        return names, owners

    def _matters(self, action: Hashable) -> bool:
        """Whether it signals something, or begins only when several warps have started it."""
        return not isinstance(action, Action) or bool(self.effects[action])

    def _name(self, address: int) -> str:
        return self.block.shared.describe(address)

    def _add(self, agent: Warp | Action, event: Event) -> None:
        if isinstance(agent, Action):
            self.effects[agent].append(replace(event, source=agent.source))
        else:
            source = agent.instruction.source if agent.instruction else None
            self.events[agent.index].append(replace(event, source=source))


def _named(events: Iterable[Event], names: dict[Hashable, str]) -> Iterator[Event]:
    """The events with actions by name, without the starts of those that have none."""
    for event in events:
        if not isinstance(event, (Start, AwaitStarts)):
            yield event
        elif event.action in names:
            yield replace(event, action=names[event.action])


def _kind(action: Hashable) -> str:
    """What an engine calls its queue, or an action that is in none: "bulk load"."""
    if not isinstance(action, Action):
        return "product"
    if action.queue is None:
        return " ".join(action.name.split()[:2])
    queue = action.queue
    return str(queue[0] if isinstance(queue, tuple) else queue)
