"""A block: its warps, its shared memory, its units, and the asynchronous actions they have pending."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from kingpost.emulate.memory import GlobalMemory, SharedMemory
from kingpost.emulate.order import KNOWN, Clock, Knowledge, Order, covers, joined
from kingpost.emulate.report import DeadlockError, EmulationError, Finding, Report
from kingpost.emulate.schedule import Schedule
from kingpost.emulate.warp import Wait, Warp
from kingpost.program import Instruction, Program, Source, TensorMap
from kingpost.program.launch import Argument

if TYPE_CHECKING:
    from kingpost.emulate.skeleton import Recorder

Unit = TypeVar("Unit")


@dataclass(eq=False)
class Action:
    """Something an asynchronous engine does once, at a time that the schedule picks.

    Actions of one `queue` happen in the order of submission; those of the queue None in any. The action is the agent in
    whose name memory is touched.
    """

    name: str
    queue: Hashable
    source: Source | None
    perform: Callable[[Action], None] = field(repr=False)
    block: Block = field(repr=False)
    clock: Clock
    shared: bool = True  # whether it touches the block's shared memory, which goes when the block ends

    def fail(self, kind: str, message: str) -> NoReturn:
        raise EmulationError(Finding(kind, message, self.name, self.source))


@dataclass
class _Barrier:
    arrived: list[Warp] = field(default_factory=list)
    wanted: int = 0
    generation: int = 0
    gathered: Knowledge | None = None  # what this generation's arrivals know
    completed: Knowledge = field(init=False)  # what the last generation's did
    completion: tuple[int, int] = (0, 0)  # of the last generation: the last arrival's column and event


class Block:
    """One block of a launch, from its first instruction to its last."""

    def __init__(
        self,
        program: Program,
        index: int,
        grid: int,
        arguments: dict[str, Argument],
        memory: GlobalMemory,
        schedule: Schedule,
        report: Report,
        order: Order | None = None,
    ) -> None:
        self.program, self.index, self.grid, self.arguments = program, index, grid, arguments
        self.memory, self.schedule, self.report, self.executed = memory, schedule, report, report.executed
        self.order = memory.order = order or Order(memory.ledger, index)
        self.peers: Sequence[Block] = [self]  # the blocks of its cluster, by rank
        self.running: Warp | Action  # the agent whose turn it is
        self.shared = SharedMemory(self, program.shared_bytes)
        self.units: dict[type, Any] = {}
        self.pending: list[Action] = []
        self.barriers: dict[int, _Barrier] = {}
        self.watchers: list[Callable[[Warp, Instruction], None]] = []  # units told of each instruction before it runs
        self.recorder: Recorder | None = None  # told of what agents do to synchronise
        self.warps = [Warp(self, i) for i in range(program.warps)]
        self.started = self.warps[0].clock.column, self.order.mark(self.warps[0])
        self.visits: dict[int, tuple[int, Action | Warp, Source | None]] = {}  # by column: engines' and other blocks'
        self.left = False

    def argument(self, name: str) -> int | float:
        """A scalar argument; for a tensor map, its stand-in address: its place among the parameters."""
        value = self.arguments[name]
        return list(self.arguments).index(name) if isinstance(value, TensorMap) else value

    def tensor_map(self, address: int) -> Any:
        return list(self.arguments.values())[address]

    def unit(self, kind: type[Unit]) -> Unit:
        """This block's unit of a kind (a target's class, made from the block when first asked for)."""
        if kind not in self.units:
            self.units[kind] = kind(self)  # type: ignore[call-arg]
        return self.units[kind]

    def submit(
        self,
        name: str,
        queue: Hashable,
        source: Source | None,
        perform: Callable[[Action], None],
        shared: bool = True,
        issuer: Knowledge | None = None,
    ) -> Action:
        """Have an asynchronous engine perform an action, when the schedule says so.

        issuer: what the action knows to have happened before it; None: what the agent does whose turn it is.
        """
        knows = self.running.clock.release() if issuer is None else issuer
        clock = self.order.action(queue if queue is None else (self.index, queue), knows)
        action = Action(name, queue, source, perform, self, clock, shared)
        self.pending.append(action)
        if self.recorder:
            self.recorder.submit(action)
        if self.schedule.immediate:
            self.happen(self.eligible()[0])
        return action

    def barrier(self, warp: Warp, identifier: int, warps: int) -> Wait:
        """Arrive at a named barrier and wait until `warps` warps have."""
        if self.recorder:
            self.recorder.meet(warp, identifier, warps)
        barrier = self.barriers.setdefault(identifier, _Barrier())
        if barrier.arrived and barrier.wanted != warps:
            warp.fail("barrier count", f"barrier {identifier} is waited at for {barrier.wanted} warps and for {warps}")
        self._refuse_stranger(warp, identifier, barrier)
        barrier.arrived.append(warp)
        barrier.wanted, generation = warps, barrier.generation
        knows = warp.clock.release()
        barrier.gathered = knows if barrier.gathered is None else joined(barrier.gathered, knows)
        if len(barrier.arrived) == warps:
            barrier.arrived, barrier.generation = [], generation + 1
            barrier.completion = warp.clock.column, self.order.mark(warp)
            barrier.gathered = joined(barrier.gathered, self.order.nothing())
            barrier.gathered[KNOWN, warp.clock.column] = self.order.ledger.now
            barrier.completed, barrier.gathered = barrier.gathered, None
        return Wait(
            lambda: barrier.generation > generation,
            lambda: f"barrier {identifier}, where {len(barrier.arrived)} of {warps} warps have arrived",
            lambda: warp.clock.acquire(barrier.completed),
        )

    def _refuse_stranger(self, warp: Warp, identifier: int, barrier: _Barrier) -> None:
        """A warp that does not know of the barrier's last use might as well have come before it."""
        column, event = barrier.completion
        if not covers(warp.clock.knowledge(), column, event):
            warp.fail("barrier shared", f"comes to barrier {identifier}, whose last use by others may not be over")

    def visit(self, agent: Warp | Action) -> None:
        """An agent of another block of the cluster is about to reach this one's shared memory."""
        column, event = self.started
        if not covers(agent.clock.knowledge(), column, event):
            agent.fail("cluster", f"reaches shared memory of block {self.index}, which may not have started: nothing "
                       "orders the two")  # fmt: skip
        if self.left:
            agent.fail("cluster", f"reaches shared memory of block {self.index}, which has exited")
        self.visits[agent.clock.column] = self.order.mark(agent), agent, agent.source

    def leave(self) -> None:
        """All warps have ended: nobody may still be about to touch the block's shared memory."""
        self.left = True
        for action in self.pending:
            if action.shared:
                self._refuse_visitor(action, action.source)
        knows = self.order.nothing()
        for warp in self.warps:
            knows = joined(knows, warp.clock.altogether())
        for column, (event, agent, source) in self.visits.items():
            if not covers(knows, column, event):
                self._refuse_visitor(agent, source)

    def _refuse_visitor(self, agent: Warp | Action, source: Source | None) -> NoReturn:
        message = "the block ends while this may still touch its shared memory: no warp has waited for it"
        raise EmulationError(Finding("in flight at exit", message, agent.name, source))

    def run(self) -> None:
        run_together([self])

    def eligible(self) -> list[Action]:
        """The first pending action of each queue, and all that are in none."""
        first: dict[Hashable, Action] = {}
        for action in self.pending:
            first.setdefault(action if action.queue is None else action.queue, action)
        return list(first.values())

    def happen(self, action: Action) -> None:
        self.pending.remove(action)
        before, self.running = self.running, action
        action.perform(action)
        if action.shared:
            self.visits[action.clock.column] = self.order.last[action.clock.column], action, action.source
        self.order.done(action.clock, action.queue)
        self.running = before

    def step(self, warp: Warp) -> None:
        self.running = warp
        warp.step()
        if not self.left and all(each.finished for each in self.warps):
            self.leave()

    def finish(self) -> None:
        """Units may refuse what a block must not leave behind."""
        for unit in self.units.values():
            getattr(unit, "finish", lambda: None)()


def run_together(blocks: Sequence[Block]) -> None:
    """Run the blocks of a cluster to their ends."""
    schedule = blocks[0].schedule
    while True:
        warps = [w for b in blocks for w in b.warps if not w.finished and (w.waiting is None or w.waiting.ready())]
        actions = [action for block in blocks for action in block.eligible()]
        if not warps and not actions:
            break
        chosen = schedule.pick(warps, actions)
        if isinstance(chosen, Warp):
            chosen.block.step(chosen)
        else:
            chosen.block.happen(chosen)
    _refuse_deadlock(blocks)
    for block in blocks:
        block.finish()


def _refuse_deadlock(blocks: Sequence[Block]) -> None:
    stuck = [warp for block in blocks for warp in block.warps if not warp.finished]
    if stuck:
        waits = [
            f"{w.name} at {w.source or '?'} waits for {w.waiting.describe() if w.waiting else 'nothing'}" for w in stuck
        ]
        message = "nobody can go on:\n  " + "\n  ".join(waits)
        raise DeadlockError(Finding("deadlock", message, f"block {stuck[0].block.index}", None))
