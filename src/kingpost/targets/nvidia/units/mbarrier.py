"""The mbarrier: arrivals and bytes that a phase waits for (PTX ISA, "Parallel Synchronization: mbarrier")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kingpost.emulate import Action, Block, Wait, Warp
from kingpost.emulate.memory import OBJECT, UNWRITTEN


@dataclass
class State:
    """One barrier object. `phase` counts completed phases; `bytes` are expected minus completed ones."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0


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
        self.states[address] = State(count, count)
        self.block.shared.mark(np.arange(address, address + 8), OBJECT, warp)
        if self.block.recorder:
            self.block.recorder.initialise(warp, address, count)

    def invalidate(self, warp: Warp, address: int) -> None:
        """Make the barrier ordinary memory again."""
        self.state(warp, address)
        del self.states[address]
        if self.block.recorder:
            self.block.recorder.invalidate(warp, address)
        start = address - self.block.shared.base
        self.block.shared.bytes.state[start : start + 8] = UNWRITTEN

    def name(self, address: int) -> str:
        return f"mbarrier {self.block.shared.describe(address)}"

    def state(self, agent: Warp | Action, address: int) -> State:
        if address not in self.states:
            agent.fail("mbarrier", f"uses {self.name(address)}, which was never initialised")
        return self.states[address]

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
        self._settle(state)

    def complete(self, action: Action, address: int, bytes: int) -> None:
        state = self.state(action, address)
        if self.block.recorder:
            self.block.recorder.complete(action, address, bytes)
        state.bytes -= bytes
        self._settle(state)

    def wait(self, warp: Warp, address: int, parity: int) -> Wait:
        """Until the phase of the given parity has completed; on a fresh barrier parity 1 passes at once."""
        state = self.state(warp, address)
        if self.block.recorder:
            self.block.recorder.wait(warp, address, parity)
        return Wait(
            lambda: state.phase & 1 != parity,
            lambda: (
                f"{self.name(address)} (phase parity {parity}): {state.pending} of {state.count} arrivals and "
                f"{state.bytes} bytes missing"
            ),
        )

    @staticmethod
    def _settle(state: State) -> None:
        if state.pending == 0 and state.bytes == 0:
            state.phase += 1
            state.pending = state.count
