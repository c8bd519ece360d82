"""Tensor memory: 128 lanes x 512 columns x 32 bits a block, allocated by columns (PTX ISA, "Tensor Memory").

An address is lane << 16 | column. Warps load and store the 32 lanes that belong to their place in their warpgroup,
asynchronously: a load's registers are locked until the warp's `tcgen05.wait::ld`, a store's until its `wait::st`. The
tensor core reads and writes it at any time until a commit's arrival (see `kingpost.targets.nvidia.units.tcgen05`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from kingpost.emulate import GENERIC, Action, Block, EmulationError, Finding, Wait, Warp
from kingpost.emulate.memory import UNWRITTEN, WRITTEN, Agent, Provenance
from kingpost.emulate.order import ALWAYS, KNOWN, Knowledge, joined
from kingpost.program import Registers, Source
from kingpost.targets.nvidia.units.planes import TENSOR

LANES, COLUMNS = 128, 512
SMALLEST_ALLOCATION = 32
ALL_LANES = np.arange(LANES)


@dataclass(frozen=True, eq=False)
class Place:
    """Cells of tensor memory: lanes [n] by columns [m], as flat indices [n, m]."""

    lanes: np.ndarray
    columns: np.ndarray

    @property
    def cells(self) -> np.ndarray:
        return self.lanes[:, None] * COLUMNS + self.columns

    def overlaps(self, other: Place) -> bool:
        return bool(np.isin(self.columns, other.columns).any() and np.isin(self.lanes, other.lanes).any())

    def __str__(self) -> str:
        return f"columns {self.columns.min()} to {self.columns.max()}"


@dataclass(eq=False)
class Flight:
    """An asynchronous access that nobody has waited for yet. Those of one queue happen in order."""

    name: str
    queue: Hashable
    place: Place
    writes: bool
    knows: Knowledge  # of its issuer
    registers: Registers | None = None
    done: Action | None = None


@dataclass(eq=False)
class Allocation:
    columns: range
    warp: str
    source: Source | None


class TensorMemory:
    """A block's tensor memory.

    Threads see each other's accesses by tcgen05.fence::before_thread_sync of the one, something that synchronises them,
    and tcgen05.fence::after_thread_sync of the other. The plane TENSOR is what the former have handed on; `seen` is
    what a warp may rely on: what it has waited for, and what was handed on to it before its last fence of the latter.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self.cells = Provenance(np.zeros(LANES * COLUMNS, np.uint32), str)
        self.allocations: dict[int, Allocation] = {}
        self.relinquished: str | None = None
        self.flights: list[Flight] = []
        self.seen: dict[int, Knowledge] = {}  # by warp; the plane TENSOR counts

    # Allocation

    def allocate(self, warp: Warp, slot: int, columns: int) -> Wait:
        """Wait for `columns` free columns, then write their address to shared memory at `slot`."""
        if self.relinquished:
            warp.fail("tensor memory", f"allocates after {self.relinquished} gave up the right to")
        source = warp.source
        got: list[int] = []

        def ready() -> bool:
            start = self._free_columns(columns) if not got else None
            if start is not None:
                got.append(start)
                self.allocations[start] = Allocation(range(start, start + columns), warp.name, source)
                address = np.array([start], "<u4").view(np.uint8)
                self.block.shared.write(np.arange(slot, slot + 4), address, warp, GENERIC)
            return bool(got)

        return Wait(ready, lambda: f"{columns} columns of tensor memory; allocated: {self._allocated()}")

    def _free_columns(self, columns: int) -> int | None:
        """The last place with room: a kernel that takes the address for 0 then goes wrong."""
        taken = {column for each in self.allocations.values() for column in each.columns}
        starts = range(COLUMNS - columns, -1, -columns)
        return next((s for s in starts if taken.isdisjoint(range(s, s + columns))), None)

    def free(self, warp: Warp, address: int, columns: int) -> None:
        allocation = self.allocations.get(address)
        if allocation is None or len(allocation.columns) != columns:
            warp.fail("tensor memory", f"frees {columns} columns at {address}; allocated: {self._allocated()}")
        place = Place(ALL_LANES, np.array(allocation.columns))
        for flight in self.flights:
            if flight.place.overlaps(place):
                warp.fail("tensor memory", f"frees {place}, which {flight.name} may still touch")
        self._refuse_unseen(warp, "frees", place, joined(self.seen_by(warp), warp.clock.knowledge()), writes=True)
        del self.allocations[address]
        self.cells.state[place.cells] = UNWRITTEN
        self.cells.written[place.cells] = 0
        for read in self.cells.reads.values():
            read[place.cells] = 0

    def relinquish(self, warp: Warp) -> None:
        self.relinquished = warp.name

    def finish(self) -> None:
        """What a block must not leave behind."""
        for each in self.allocations.values():
            message = f"the block ends with columns {each.columns[0]} to {each.columns[-1]} of tensor memory allocated"
            raise EmulationError(Finding("tensor memory", message, each.warp, each.source))

    def _allocated(self) -> str:
        return ", ".join(f"{a.columns[0]} to {a.columns[-1]}" for a in self.allocations.values()) or "nothing"

    # Accesses

    def place(self, agent: Agent, address: int, lanes: np.ndarray, columns: np.ndarray | int) -> Place:
        """Lanes and columns counted from an address; the columns must lie in one allocation."""
        offsets = np.arange(columns) if isinstance(columns, int) else columns
        place = Place(lanes + (address >> 16), offsets + (address & 0xFFFF))
        low, high = int(place.columns.min()), int(place.columns.max())
        if not any(low in each.columns and high in each.columns for each in self.allocations.values()):
            agent.fail("tensor memory", f"touches {place}; allocated: {self._allocated()}")
        if place.lanes.max() >= LANES:
            agent.fail("tensor memory", f"touches lane {int(place.lanes.max())} of {LANES}")
        return place

    def fly(
        self,
        warp: Warp,
        name: str,
        queue: Hashable,
        place: Place,
        writes: bool,
        registers: Registers | None = None,
    ) -> Flight:
        """Start an access; refused if it meets one in flight, in another queue, at the same cells, and one writes."""
        for other in self.flights:
            if other.queue != queue and (writes or other.writes) and other.place.overlaps(place):
                warp.fail("tensor memory", f"{name} of {place}, while {other.name} there has not been waited for")
        flight = Flight(name, queue, place, writes, self.seen_by(warp).copy(), registers)
        self.flights.append(flight)
        return flight

    def land(self, flights: list[Flight]) -> None:
        """These accesses have been waited for."""
        self.flights = [flight for flight in self.flights if flight not in flights]

    def read(self, action: Action, flight: Flight) -> np.ndarray:
        """The cells of an access that reads, uint32 [lanes, columns]; all must have been written."""
        cells = flight.place.cells
        if (self.cells.state[cells] == UNWRITTEN).any():
            action.fail("uninitialised", f"reads {flight.place} of tensor memory, where some cells were never written")
        self.note_read(action, flight)
        return self.cells.data[cells]

    def note_read(self, action: Action, flight: Flight) -> None:
        self._refuse_unseen(action, "reads", flight.place, flight.knows, writes=False)
        column, cells = action.clock.column, flight.place.cells
        event = self.block.order.mark(action)
        self.cells.reads.setdefault(column, np.zeros(LANES * COLUMNS, np.int64))[cells] = event

    def write(self, action: Action, flight: Flight, values: np.ndarray) -> None:
        self._refuse_unseen(action, "writes", flight.place, flight.knows, writes=True)
        cells = flight.place.cells
        self.cells.written[cells] = self.block.order.mark(action)
        self.cells.data[cells], self.cells.state[cells] = values, WRITTEN

    def seen_by(self, warp: Warp) -> Knowledge:
        return self.seen.get(warp.index, self.block.order.nothing())

    def _refuse_unseen(self, agent: Agent, verb: str, place: Place, knows: Knowledge, writes: bool) -> None:
        """An access, by somebody who has seen so much, to cells that others have accessed."""
        order, cells = self.block.order, place.cells
        knows = joined(knows, order.nothing())
        knows[TENSOR, agent.clock.column] = ALWAYS  # an engine's queue is performed in order
        before = [(self.cells.written, "wrote"), *((read, "read") for read in self.cells.reads.values() if writes)]
        for events, did in before:
            late = order.unknown(events[cells], knows, plane=TENSOR)
            if late is None:
                continue
            event = int(events[cells][late][0])
            missing = "something that synchronises the two threads"
            if order.unknown(np.array([event]), agent.clock.knowledge()) is None:
                missing = "a tcgen05.fence, before_thread_sync there or after_thread_sync here,"
            agent.fail(
                "tensor memory", f"{verb} {place}, which {order.ledger.events[event]} {did}: {missing} is missing"
            )

    # Loads and stores by warps

    def load(self, warp: Warp, address: int, split: int | None, target: Registers) -> None:
        """Start a load of one register a column: lane t from lane t of the warp's 32; or, with `split`, 16 lanes, of
        which lanes 16 to 31 get those columns that lie `split` columns on."""
        places = self._warp_places(warp, address, split, len(target))
        flights = [self.fly(warp, "a tcgen05.ld", ("ld", warp.index), place, False, target) for place in places]
        self._hold(warp, target, "writes", "a tcgen05.ld without its tcgen05.wait::ld")

        def perform(action: Action) -> None:
            for flight in flights:
                self.note_read(action, flight)
            cells = np.concatenate([place.cells for place in places]).T  # [registers, 32]
            _set(warp, target, self.cells.data[cells], self.cells.state[cells] == WRITTEN)
            for flight in flights:
                flight.done = action

        self._submit(warp, "tcgen05.ld", perform)

    def store(self, warp: Warp, address: int, split: int | None, source: Registers, values: np.ndarray) -> None:
        """Start a store of registers [n, 32], placed as `load` has them."""
        places = self._warp_places(warp, address, split, len(source))
        flights = [self.fly(warp, "a tcgen05.st", ("st", warp.index), place, True, source) for place in places]
        self._hold(warp, source, "reads", "a tcgen05.st without its tcgen05.wait::st")

        def perform(action: Action) -> None:
            lanes = 0
            for place, flight in zip(places, flights):
                part = slice(lanes, lanes + len(place.lanes))
                self.write(action, flight, np.ascontiguousarray(values).view(np.uint32)[:, part].T)
                lanes, flight.done = part.stop, action

        self._submit(warp, "tcgen05.st", perform)

    def wait(self, warp: Warp, kind: str) -> Wait:
        """Until all of this warp's loads ("ld") or stores ("st") are done."""
        waited = [flight for flight in self.flights if flight.queue == (kind, warp.index)]

        def passed() -> None:
            self.land(waited)
            for flight in waited:
                if flight.registers is not None:
                    warp.unlock(flight.registers)
                assert flight.done is not None
                knows = flight.done.clock.release()
                warp.clock.acquire(knows)
                knows[TENSOR, flight.done.clock.column] = knows[KNOWN, flight.done.clock.column]
                self.seen[warp.index] = joined(self.seen_by(warp), knows)

        return Wait(
            lambda: all(flight.done is not None for flight in waited),
            lambda: f"tcgen05.{kind}: {sum(flight.done is None for flight in waited)} in flight",
            passed,
        )

    def fence_before(self, warp: Warp) -> None:
        """tcgen05.fence::before_thread_sync: hand on what the warp has seen."""
        handed = self.block.order.nothing()
        handed[TENSOR, : self.seen_by(warp).shape[1]] = self.seen_by(warp)[TENSOR]
        warp.clock.acquire(handed)

    def hand_on(self, action: Action, seen: Knowledge) -> None:
        """An action hands on what its issuer had seen, and what its queue has done."""
        knows = joined(action.clock.knows, self.block.order.nothing())
        knows[TENSOR, : seen.shape[1]] = np.maximum(knows[TENSOR, : seen.shape[1]], seen[TENSOR])
        knows[TENSOR, action.clock.column] = self.block.order.ledger.now
        action.clock.knows = knows

    def fence_after(self, warp: Warp) -> None:
        """tcgen05.fence::after_thread_sync: see what was handed on to the warp."""
        self.seen[warp.index] = joined(self.seen_by(warp), warp.clock.knowledge())

    def _warp_places(self, warp: Warp, address: int, split: int | None, columns: int) -> list[Place]:
        own, first = 32 * (warp.index % 4), address >> 16
        allowed = (own,) if split is None else (own, own + 16)
        if first not in allowed:
            wanted = " or ".join(map(str, allowed))
            warp.fail("tensor memory", f"accesses lanes from {first}; this warp may from {wanted}")
        if split is None:
            return [self.place(warp, address, np.arange(32), columns)]
        halves = (np.arange(columns), split + np.arange(columns))
        return [self.place(warp, address, np.arange(16), half) for half in halves]

    def _hold(self, warp: Warp, registers: Registers, verb: str, holder: str) -> None:
        held = warp.locked.get(registers.storage, {})
        for index in registers.indices:
            if index in held:
                warp.fail("register in flight", f"{verb} {registers!r}, which {held[index]} still holds")
        warp.lock(registers, holder)

    def _submit(self, warp: Warp, name: str, perform: Callable[[Action], None]) -> None:
        source = warp.source
        self.block.submit(f"{name} of warp {warp.index}", (name, warp.index), source, perform)


def _set(warp: Warp, target: Registers, bits: np.ndarray, written: np.ndarray) -> None:
    """Give a warp's registers bits [registers, 32]; where the cells held nothing, the registers hold nothing."""
    storage, rows = target.storage, list(target.indices)
    if storage not in warp.values:
        warp.values[storage] = np.zeros((storage.size, 32), storage.type.dtype)
        warp.undefined[storage] = np.ones((storage.size, 32), bool)
    undefined = warp.undefined.setdefault(storage, np.zeros((storage.size, 32), bool))
    warp.values[storage][rows], undefined[rows] = bits.view(storage.type.dtype), ~written
    if not undefined.any():
        del warp.undefined[storage]
