"""The mbarrier: arrivals and bytes that a phase waits for (PTX ISA, "Parallel Synchronization: mbarrier")."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kingpost.emulate import Action, Block, EmulationError, Finding, Wait, Warp
from kingpost.emulate.memory import OBJECT, UNWRITTEN
from kingpost.emulate.order import FENCED, Knowledge, covers, joined
from kingpost.program import Source
from kingpost.targets.nvidia.units.planes import INITIALISED


@dataclass
class _Waiter:
    """Who waits, or has waited, for a phase: its column, and the event at which it went on."""

    name: str
    source: Source | None
    column: int
    passed: int | None = None


@dataclass
class State:
    """One barrier object. `phase` counts completed phases; `bytes` are expected minus completed ones."""

    count: int
    pending: int
    made: tuple[int, int, str, Source | None]  # the initialising warp's column, the event, its name, its line
    bytes: int = 0
    phase: int = 0
    gathered: Knowledge | None = None  # what the arrivals of the current phase know
    completed: Knowledge | None = None  # what those of all completed phases did
    waiters: dict[int, list[_Waiter]] = field(default_factory=dict)  # by the phase they wait for


class Mbarriers:
    """A block's mbarrier objects, by shared address."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.states: dict[int, State] = {}

    def initialise(self, warp: Warp, address: int, count: int) -> None:
        if (lanes := int(warp.active.sum())) != 1:
            warp.fail("mbarrier", f"{lanes} lanes initialise {self.name(address)}; one is wanted")
        if address % 8:
            warp.fail("misaligned", f"initialises an mbarrier at {address}; a multiple of 8 is wanted")
        if address in self.states:
            warp.fail("mbarrier", f"initialises {self.name(address)} again while it is in use")
        bytes = np.arange(address, address + 8)
        event = self.block.shared.note_write(bytes, warp)
        self.states[address] = State(count, count, (warp.clock.column, event, warp.name, warp.source))
        self.block.shared.mark(bytes, OBJECT, warp)
        if self.block.recorder:
            self.block.recorder.initialise(warp, address, count)

    def invalidate(self, warp: Warp, address: int) -> None:
        """Make the barrier ordinary memory again."""
        if (lanes := int(warp.active.sum())) != 1:
            warp.fail("mbarrier", f"{lanes} lanes invalidate {self.name(address)}; one is wanted")
        self.state(warp, address)
        del self.states[address]
        bytes = np.arange(address, address + 8)
        if self.block.recorder:
            self.block.recorder.invalidate(warp, address)
        start = address - self.block.shared.base
        self.block.shared.bytes.state[start : start + 8] = UNWRITTEN
        self.block.shared.note_write(bytes, warp)

    def name(self, address: int) -> str:
        return f"mbarrier {self.block.shared.describe(address)}"

    def state(self, agent: Warp | Action, address: int) -> State:
        """The barrier at an address, which must be there, and known to be there by who uses it."""
        if address not in self.states:
            agent.fail("mbarrier", f"uses {self.name(address)}, which was never initialised")
        state = self.states[address]
        column, event, name, source = state.made
        if not covers(agent.clock.knowledge(), column, event):
            agent.fail("mbarrier", f"uses {self.name(address)}, which {name} at {source} initialises: nothing orders "
                       "the two")  # fmt: skip
        return state

    def engine_state(self, agent: Warp | Action, address: int) -> State:
        """As `state`, for an asynchronous engine's use: the initialisation must have been fenced."""
        state = self.state(agent, address)
        column, event, name, source = state.made
        knows = agent.clock.knowledge()
        if not any(covers(knows, column, event, plane) for plane in (INITIALISED, FENCED)):
            agent.fail("mbarrier", f"has an engine arrive at {self.name(address)}, which {name} at {source} "
                       "initialises without a fence.mbarrier_init after it")  # fmt: skip
        return state

    def arrive(self, agent: Warp | Action, address: int, arrivals: int, expect: int = 0) -> None:
        """`arrivals` arrivals, after expecting `expect` more bytes in the current phase."""
        state = self.state(agent, address)
        if self.block.recorder:
            self.block.recorder.arrive(agent, address, arrivals, expect)
        state.bytes += expect
        if arrivals > state.pending:
            agent.fail(
                "mbarrier", f"arrives {arrivals} times at {self.name(address)}, whose phase lacks {state.pending}"
            )
        state.pending -= arrivals
        self._settle(agent, address, state)

    def complete(self, action: Action, address: int, bytes: int) -> None:
        state = self.engine_state(action, address)
        if self.block.recorder:
            self.block.recorder.complete(action, address, bytes)
        state.bytes -= bytes
        self._settle(action, address, state)

    def wait(self, warp: Warp, address: int, parity: int) -> Wait:
        """Until the phase of the given parity has completed; on a fresh barrier parity 1 passes at once."""
        state = self.state(warp, address)
        if self.block.recorder:
            self.block.recorder.wait(warp, address, parity)
        waiter = _Waiter(warp.name, warp.source, warp.clock.column)
        awaited = state.phase if state.phase & 1 == parity else state.phase - 1
        state.waiters.setdefault(awaited, []).append(waiter)

        def passed() -> None:
            if state.completed is not None:
                warp.clock.acquire(state.completed)
            waiter.passed = self.block.order.mark(warp)

        return Wait(
            lambda: state.phase & 1 != parity,
            lambda: (
                f"{self.name(address)} (phase parity {parity}): {state.pending} of {state.count} arrivals and "
                f"{state.bytes} bytes missing"
            ),
            passed,
        )

    def finish(self) -> None:
        """At the block's end no bytes may be expected, or have come unexpected."""
        for address, state in self.states.items():
            if state.bytes:
                _, _, name, source = state.made
                what = f"{state.bytes} bytes are missing" if state.bytes > 0 else f"{-state.bytes} bytes too many came"
                message = f"the block ends with {self.name(address)} in phase {state.phase}, for which {what}"
                raise EmulationError(Finding("mbarrier", message, name, source))

    def _settle(self, agent: Warp | Action, address: int, state: State) -> None:
        """Note what the agent knows; complete the phase if nothing is missing."""
        knows = agent.clock.release()
        state.gathered = knows if state.gathered is None else joined(state.gathered, knows)
        if state.pending == 0 and state.bytes == 0:
            self._refuse_left_behind(agent, address, state)
            state.completed = state.gathered if state.completed is None else joined(state.completed, state.gathered)
            state.gathered = None
            state.phase += 1
            state.pending = state.count

    def _refuse_left_behind(self, agent: Warp | Action, address: int, state: State) -> None:
        """A wait by parity cannot tell phases two apart: who waits for one must have gone on before the next completes.

        So the completion must come after its going on, in every order: by what the arrivals know.
        """
        assert state.gathered is not None
        for waiter in state.waiters.pop(state.phase - 1, ()):
            if waiter.passed is None or not covers(state.gathered, waiter.column, waiter.passed):
                agent.fail(
                    "mbarrier",
                    f"completes phase {state.phase} of {self.name(address)}, while {waiter.name} at {waiter.source} "
                    f"may still wait for phase {state.phase - 1}: no arrival comes after its going on",
                )
