"""What happens before what: vector clocks over the agents of a block, and a ledger of what they did.

Every access to memory is an event, numbered in the order of emulation. An agent (a warp, or an asynchronous engine's
action) has a *column*, and knows, for each column, up to which event everything there has happened before it. What
synchronises (a barrier, a wait, the issue of an action) hands knowledge on. Two accesses to the same bytes, one of
them a write, race unless the later agent knows of the earlier event; so a race is found in whatever order they ran.

Knowledge has several planes, which travel together. `KNOWN` is happens-before. `FENCED` is what has also been made
visible to asynchronous engines by a proxy fence of the thread that did it. The others are for a target's units.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kingpost.program import Source

if TYPE_CHECKING:
    from kingpost.emulate.memory import Agent
    from kingpost.emulate.warp import Warp

KNOWN, FENCED = 0, 1
PLANES = 4
GENERIC, ASYNC = 0, 1  # proxies: how an access reaches memory
ALWAYS = 1 << 62
_FIRST_COLUMNS = 64

Knowledge = np.ndarray  # int64 [PLANES, columns]: the last event known in each column


@dataclass(frozen=True)
class Event:
    """One access: who, at which Python line."""

    agent: str
    source: Source | None
    block: int

    def __str__(self) -> str:
        return f"{self.agent} at {self.source}" if self.source else self.agent


class Ledger:
    """All events of a launch, numbered from 1."""

    def __init__(self) -> None:
        self.now = 0
        self.events: list[Event | None] = [None]
        self.columns = np.zeros(1 << 12, np.int32)
        self.proxies = np.zeros(1 << 12, np.uint8)
        self.adds = np.zeros(1 << 12, bool)

    def record(self, event: Event, column: int, proxy: int, adds: bool = False) -> int:
        self.now += 1
        if self.now == len(self.columns):
            self.columns, self.proxies, self.adds = (
                np.concatenate([each, np.zeros_like(each)]) for each in (self.columns, self.proxies, self.adds)
            )
        self.events.append(event)
        self.columns[self.now], self.proxies[self.now], self.adds[self.now] = column, proxy, adds
        return self.now


def joined(x: Knowledge, y: Knowledge) -> Knowledge:
    """What somebody knows who is told both."""
    if x.shape != y.shape:
        width = max(x.shape[1], y.shape[1])
        x, y = (np.pad(each, ((0, 0), (0, width - each.shape[1]))) for each in (x, y))
    return np.maximum(x, y)


def covers(knows: Knowledge, column: int, event: int, plane: int = KNOWN) -> bool:
    """Whether somebody who `knows` so much knows of an event in a column; of columns made later, nothing."""
    return event == 0 or (column < knows.shape[1] and bool(knows[plane, column] >= event))


class Clock:
    """What one agent knows, here an asynchronous engine's action. Of its own column it knows everything."""

    def __init__(self, order: Order, column: int, knows: Knowledge) -> None:
        self.order, self.knows = order, knows
        self._column = column
        knows[KNOWN, column] = ALWAYS

    @property
    def column(self) -> int:
        """The column of the agent's present accesses."""
        return self._column

    def knowledge(self) -> Knowledge:
        return self.knows

    def release(self) -> Knowledge:
        """What whoever synchronises with the agent now gets to know."""
        knows = self.knows.copy()
        knows[KNOWN, self._column] = self.order.ledger.now
        return knows

    def acquire(self, knows: Knowledge) -> None:
        self.knows = joined(self.knows, knows)


class WarpClock:
    """A warp's clock. Its lanes can part: what some of them learn, the others know once all have converged; and what
    some of them hand on covers their own accesses, and those of the others up to where all last converged.

    So the accesses of each set of lanes have a column of their own.
    """

    def __init__(self, order: Order, warp: Warp) -> None:
        self.order, self.warp = order, warp
        self.knows = order.nothing()
        self.columns: dict[bytes, int] = {}  # by set of lanes
        self.parted: dict[bytes, tuple[np.ndarray, Knowledge]] = {}  # what some lanes know beyond `knows`
        self.converged = 0  # the last event before all lanes last converged
        self.fenced = np.zeros(len(warp.lanes), np.int64)  # the last event before each lane's last proxy fence
        self.engines: set[int] = set()  # columns of engines that write through the generic proxy in this warp's name

    @property
    def column(self) -> int:
        """The column of the active lanes' accesses."""
        key = self.warp.active.tobytes()
        if key not in self.columns:
            self.columns[key] = self.order.column()
            self.knows = joined(self.knows, self.order.nothing())
            self.knows[KNOWN, self.columns[key]] = ALWAYS
        return self.columns[key]

    def knowledge(self) -> Knowledge:
        knows = self.knows
        for lanes, more in self.parted.values():
            if not (self.warp.active & ~lanes).any():
                knows = joined(knows, more)
        return knows

    def release(self) -> Knowledge:
        """What whoever synchronises with the active lanes now gets to know."""
        knows = self.knowledge().copy()
        for column in self.columns.values():
            knows[KNOWN, column] = self.converged
        for column in self._own():
            knows[KNOWN, column] = self.order.ledger.now
        return knows

    def acquire(self, knows: Knowledge, whole: bool = False) -> None:
        """Learn, in the active lanes, or as a `whole`, where the waves of a target wait as one."""
        active = self.warp.active
        if whole or active.all():
            self.knows = joined(self.knows, knows)
        else:
            before = self.parted.get(active.tobytes())
            known = knows if before is None else joined(before[1], knows)
            self.parted[active.tobytes()] = active.copy(), known

    def altogether(self) -> Knowledge:
        """What the lanes know between them."""
        knows = self.knows
        for _, more in self.parted.values():
            knows = joined(knows, more)
        return knows

    def converge(self) -> None:
        """All lanes have come together."""
        self.knows = self.altogether()
        self.parted.clear()
        self.converged = self.order.ledger.now

    def vouch(self, plane: int) -> None:
        """Everything that the active lanes have done so far is known in a plane."""
        for column in self._own():
            self.knows[plane, column] = self.order.ledger.now

    def speaks_for(self, column: int) -> None:
        """An engine writes through the generic proxy in this warp's name: what the warp knows of, its fences cover."""
        self.engines.add(column)

    def fence(self) -> None:
        """The active lanes' accesses so far are fenced; those of a set of lanes, as far as each of them has fenced."""
        self.fenced[self.warp.active] = self.order.ledger.now
        for lanes, column in self.columns.items():
            self.knows[FENCED, column] = self.fenced[np.frombuffer(lanes, bool)].min()
        known = joined(self.knowledge(), self.order.nothing())[KNOWN]
        self.knows = joined(self.knows, self.order.nothing())
        for column in self.engines:
            self.knows[FENCED, column] = known[column]

    def _own(self) -> list[int]:
        """The columns of the active lanes, and of sets of some of them."""
        active = self.warp.active
        return [column for lanes, column in self.columns.items() if not (np.frombuffer(lanes, bool) & ~active).any()]


class Order:
    """The columns of one block, and the checks of its accesses against what agents know."""

    def __init__(self, ledger: Ledger, block: int) -> None:
        self.ledger, self.block = ledger, block
        self.began = ledger.now
        self.last: list[int] = []  # the last event in each column
        self.busy: list[bool] = []
        self.queues: dict[Hashable, Clock] = {}  # of engines that do one thing after another

    def action(self, queue: Hashable, issuer: Knowledge) -> Clock:
        """A clock for an action issued by somebody who knows `issuer`. Actions of one queue share a column; an action
        of its own (queue None) takes one whose last event the issuer knows: whoever knows of it knows of that too."""
        before = self.queues.get(queue) if queue is not None else None
        if before is not None:
            clock = Clock(self, before.column, joined(before.knows, issuer))
        else:
            clock = Clock(self, self.column(issuer if queue is None else None), joined(self.nothing(), issuer))
        if queue is not None:
            self.queues[queue] = clock
        return clock

    def done(self, clock: Clock, queue: Hashable) -> None:
        """An action has happened."""
        if queue is None:
            self.busy[clock.column] = False

    def nothing(self) -> Knowledge:
        return np.zeros((PLANES, max(_FIRST_COLUMNS, 1 << (len(self.last) - 1).bit_length())), np.int64)

    def column(self, issuer: Knowledge | None = None) -> int:
        if issuer is not None:
            for column, (last, busy) in enumerate(zip(self.last, self.busy)):
                if not busy and covers(issuer, column, last):
                    self.busy[column] = True
                    return column
        self.last.append(0)
        self.busy.append(True)
        return len(self.last) - 1

    def record(self, agent: Agent, proxy: int, adds: bool = False) -> int:
        """The number of a new event: an access by an agent."""
        clock = agent.clock
        event = self.ledger.record(Event(agent.name, agent.source, self.block), clock.column, proxy, adds)
        self.last[clock.column] = event
        return event

    def mark(self, agent: Agent) -> int:
        """The number of a new event that touches no memory, for others to know of or not."""
        return self.record(agent, ASYNC)

    def unknown(
        self, events: np.ndarray, knows: Knowledge, fenced: bool = False, plane: int = KNOWN
    ) -> np.ndarray | None:
        """Which of the `events` of this block (0: none) somebody who `knows` so much does not know of, in a plane; None
        if they are all known.

        fenced: for an asynchronous engine, so that accesses through the generic proxy must be fenced too.
        """
        high = int(events.max(initial=0))
        if high == 0:
            return None
        low = int(events.min())
        if high - low < events.size:  # few events: look each up once
            bad = self._unknown(np.arange(low, high + 1), knows, fenced, plane)
            if not bad.any():
                return None
            bad = bad[events - low]
        else:
            bad = self._unknown(events, knows, fenced, plane)
        return bad if bad.any() else None

    def _unknown(self, events: np.ndarray, knows: Knowledge, fenced: bool, plane: int) -> np.ndarray:
        columns = self.ledger.columns[events]
        if knows.shape[1] < len(self.last):
            knows = joined(knows, self.nothing())
        bad = knows[plane][columns] < events
        if fenced:
            bad |= (self.ledger.proxies[events] == GENERIC) & (knows[FENCED][columns] < events)
        return bad
