"""A wave's memory operations in flight, and the counters that `s_waitcnt` waits for.

vmcnt counts loads from and stores to global memory, lgkmcnt those of LDS; each falls in the order of issue
(CDNA3 ISA, "s_waitcnt"). What an operation reads or writes in memory happens at any time between its issue and the
wait that covers it, in order; the registers that a load fills are locked from issue to that wait. (Scalar loads, which
also count in lgkmcnt, are not modelled here.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kingpost.emulate import GENERIC, Action, Block, Wait, Warp
from kingpost.emulate.memory import GlobalMemory, SharedMemory
from kingpost.emulate.order import Knowledge
from kingpost.program import Registers

VECTOR, LDS = "vmcnt", "lgkmcnt"
LARGEST = {VECTOR: 63, LDS: 15}  # what s_waitcnt can name


@dataclass(eq=False)
class InFlight:
    """One operation that a wave has not waited for. done: what a wait for it teaches, once it has happened."""

    target: Registers | None = None
    done: Knowledge | None = None


class WaitCounters:
    """The memory operations in flight of a block's waves."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.queues: dict[tuple[int, str], list[InFlight]] = {}  # by wave and counter

    def load(self, warp: Warp, counter: str, addresses: np.ndarray, inside: np.ndarray | None = None) -> None:
        """Load the registers that the current instruction writes from `addresses` [lanes], a dword for each.

        inside: bool [registers, lanes], which dwords are within bounds; the others read as zero.
        """
        assert warp.instruction is not None
        (target,) = warp.instruction.writes
        self._refuse_held(warp, target)
        active, size = warp.active.copy(), 4 * len(target)
        within = np.ones((len(target), len(addresses)), bool) if inside is None else inside

        def perform(action: Action) -> None:
            bytes = np.zeros((len(addresses), size), np.uint8)
            wanted = np.repeat((within & active).T, 4, axis=1)
            if wanted.any():
                places = addresses.astype(np.int64)[:, None] + np.arange(size)
                bytes[wanted] = self._memory(counter).read(places[wanted], action)
            warp.deliver(target, bytes.view(target.type.dtype).T, active)

        self._issue(warp, counter, addresses, size, target, perform)
        warp.lock(target, f"a {warp.instruction.operation.name} that no s_waitcnt {counter} has waited for")

    def store(self, warp: Warp, counter: str, addresses: np.ndarray, values: np.ndarray) -> None:
        """Store `values` [registers, lanes], as they are now, to `addresses` [lanes]."""
        values = values.reshape(-1, len(addresses))
        bytes, size = np.ascontiguousarray(values[:, warp.active].T).view(np.uint8), 4 * len(values)
        places = _bytes(warp, addresses, size)

        def perform(action: Action) -> None:
            if places.size:
                self._memory(counter).write(places, bytes, action, GENERIC)

        self._issue(warp, counter, addresses, size, None, perform)

    def wait(self, warp: Warp, left: dict[str, int]) -> Wait:
        """Until at most `left[counter]` of this wave's newest operations are in flight, for each counter given."""
        covered: list[InFlight] = []
        for counter, number in left.items():
            queue = self.queues.get((warp.index, counter), [])
            covered += queue[: max(len(queue) - number, 0)]

        def passed() -> None:
            for queue in self.queues.values():
                queue[:] = [entry for entry in queue if entry not in covered]
            for entry in covered:
                if entry.target is not None:
                    warp.unlock(entry.target)
                assert entry.done is not None
                warp.clock.acquire(entry.done, whole=True)

        return Wait(
            lambda: all(entry.done is not None for entry in covered),
            lambda: f"{sum(entry.done is None for entry in covered)} memory operations in flight",
            passed,
        )

    def _issue(
        self,
        warp: Warp,
        counter: str,
        addresses: np.ndarray,
        size: int,
        target: Registers | None,
        perform: Callable[[Action], None],
    ) -> None:
        assert warp.instruction is not None
        active = addresses[warp.active].astype(np.int64)
        alignment = size if counter == LDS else 4
        if (active % alignment).any():
            address = int(active[active % alignment != 0][0])
            warp.fail("misaligned", f"accesses {size} bytes at {address:#x}; a multiple of {alignment} is wanted")
        self._memory(counter).count_conflicts(warp, active, size)
        entry = InFlight(target)
        self.queues.setdefault((warp.index, counter), []).append(entry)

        def happen(action: Action) -> None:
            perform(action)
            entry.done = action.clock.release()

        name = f"{warp.instruction.operation.name} of {warp.name}"
        self.block.submit(name, (counter, warp.index), warp.instruction.source, happen, shared=False)

    def _memory(self, counter: str) -> SharedMemory | GlobalMemory:
        return self.block.shared if counter == LDS else self.block.memory

    def _refuse_held(self, warp: Warp, target: Registers) -> None:
        held = warp.locked.get(target.storage, {})
        for index in target.indices:
            if index in held:
                warp.fail("register in flight", f"loads into {target!r}, which {held[index]} still holds")


def _bytes(warp: Warp, addresses: np.ndarray, size: int) -> np.ndarray:
    """The bytes [active lanes, size] at each active lane's address."""
    return addresses[warp.active].astype(np.int64)[:, None] + np.arange(size)
