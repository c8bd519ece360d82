"""A block: its warps, its shared memory, its units, and the asynchronous actions they have pending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from kingpost.emulate.memory import GlobalMemory, SharedMemory
from kingpost.emulate.report import DeadlockError, EmulationError, Finding
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

    Actions of one `queue` happen in the order of submission. The action is the agent in whose name memory is touched.
    """

    name: str
    queue: Hashable
    source: Source | None
    perform: Callable[[Action], None] = field(repr=False)
    number: int = -1
    shared: bool = True  # whether it touches the block's shared memory, which goes when the block ends

    def fail(self, kind: str, message: str) -> NoReturn:
        raise EmulationError(Finding(kind, message, self.name, self.source))


@dataclass
class _Barrier:
    arrived: list[Warp] = field(default_factory=list)
    wanted: int = 0
    generation: int = 0


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
        executed: Counter[Instruction],
    ) -> None:
        self.program, self.index, self.grid, self.arguments = program, index, grid, arguments
        self.memory, self.schedule, self.executed = memory, schedule, executed
        self.time = 0
        self.agents: list[str] = []  # names by agent number, as provenance records them
        self.shared = SharedMemory(self, program.shared_bytes)
        self.units: dict[type, Any] = {}
        self.pending: list[Action] = []
        self.barriers: dict[int, _Barrier] = {}
        self.watchers: list[Callable[[Warp, Instruction], None]] = []  # units told of each instruction before it runs
        self.recorder: Recorder | None = None  # told of what agents do to synchronise
        self.warps = [Warp(self, i, self._number(f"warp {i}")) for i in range(program.warps)]

    def _number(self, name: str) -> int:
        self.agents.append(name)
        return len(self.agents) - 1

    def tick(self) -> int:
        self.time += 1
        return self.time

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
        self, name: str, queue: Hashable, source: Source | None, perform: Callable[[Action], None], shared: bool = True
    ) -> None:
        """Have an asynchronous engine perform an action, when the schedule says so."""
        self.pending.append(Action(name, queue, source, perform, self._number(name), shared))
        if self.recorder:
            self.recorder.submit(self.pending[-1])
        if self.schedule.immediate:
            self._happen(self._eligible()[0])

    def barrier(self, warp: Warp, identifier: int, warps: int) -> Wait:
        """Arrive at a named barrier and wait until `warps` warps have."""
        if self.recorder:
            self.recorder.meet(warp, identifier, warps)
        barrier = self.barriers.setdefault(identifier, _Barrier())
        if barrier.arrived and barrier.wanted != warps:
            warp.fail("barrier count", f"barrier {identifier} is waited at for {barrier.wanted} warps and for {warps}")
        barrier.arrived.append(warp)
        barrier.wanted, generation = warps, barrier.generation
        if len(barrier.arrived) == warps:
            barrier.arrived, barrier.generation = [], generation + 1
        return Wait(
            lambda: barrier.generation > generation,
            lambda: f"barrier {identifier}, where {len(barrier.arrived)} of {warps} warps have arrived",
        )

    def run(self) -> None:
        while True:
            warps = [w for w in self.warps if not w.finished and (w.waiting is None or w.waiting.ready())]
            actions = self._eligible()
            if not warps and not actions:
                break
            if not warps and all(w.finished for w in self.warps):
                self._refuse_unfinished()
            chosen = self.schedule.pick(warps, actions)
            if isinstance(chosen, Warp):
                chosen.step()
            else:
                self._happen(chosen)
        self._refuse_deadlock()
        for unit in self.units.values():
            getattr(unit, "finish", lambda: None)()  # a unit may refuse what a block must not leave behind

    def _eligible(self) -> list[Action]:
        first: dict[Hashable, Action] = {}
        for action in self.pending:
            first.setdefault(action.queue, action)
        return list(first.values())

    def _happen(self, action: Action) -> None:
        self.pending.remove(action)
        action.perform(action)

    def _refuse_unfinished(self) -> None:
        for action in self.pending:
            if action.shared:
                action.fail("in flight at exit", "the block ends while this may still touch its shared memory")

    def _refuse_deadlock(self) -> None:
        stuck = [w for w in self.warps if not w.finished]
        if stuck:
            waits = [
                f"{w.name} at {w.instruction.source if w.instruction else '?'} waits for "
                f"{w.waiting.describe() if w.waiting else 'nothing'}"
                for w in stuck
            ]
            message = "nobody can go on:\n  " + "\n  ".join(waits)
            raise DeadlockError(Finding("deadlock", message, f"block {self.index}", None))
