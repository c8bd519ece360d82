"""Tensor memory: 128 lanes x 512 columns x 32 bits a block, allocated by columns (PTX ISA, "Tensor Memory").

An address is lane << 16 | column. Warps load and store the 32 lanes that belong to their place in their warpgroup,
asynchronously: a load's registers are locked until the warp's `tcgen05.wait::ld`, a store's until its `wait::st`. The
tensor core reads and writes it at any time until a commit's arrival (see `kingpost.targets.nvidia.units.tcgen05`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from kingpost.emulate import ASYNC, GENERIC, Action, Block, EmulationError, Finding, Wait, Warp
from kingpost.emulate.memory import UNWRITTEN, WRITTEN, Agent, Provenance
from kingpost.program import Registers, Source

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
    registers: Registers | None = None
    done: bool = False


@dataclass(eq=False)
class Allocation:
    columns: range
    warp: str
    source: Source | None


@dataclass
class Fences:
    """When a warp last executed tcgen05.fence, for the checks of races between threads."""

    before_thread_sync: list[int] = field(default_factory=list)
    after_thread_sync: list[int] = field(default_factory=list)


class TensorMemory:
    """A block's tensor memory."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.cells = Provenance(LANES * COLUMNS, block.tick)
        self.cells.data = np.zeros(LANES * COLUMNS, np.uint32)
        self.allocations: dict[int, Allocation] = {}
        self.relinquished: str | None = None
        self.flights: list[Flight] = []
        self.fences: dict[int, Fences] = {}

    # Allocation

    def allocate(self, warp: Warp, slot: int, columns: int) -> Wait:
        """Wait for `columns` free columns, then write their address to shared memory at `slot`."""
        if self.relinquished:
            warp.fail("tensor memory", f"allocates after {self.relinquished} gave up the right to")
        source = warp.instruction.source if warp.instruction else None
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
        del self.allocations[address]
        self.cells.state[place.cells] = UNWRITTEN

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
        agent: Agent,
        name: str,
        queue: Hashable,
        place: Place,
        writes: bool,
        registers: Registers | None = None,
    ) -> Flight:
        """Start an access; refused if it meets one in flight, in another queue, at the same cells, and one writes."""
        for other in self.flights:
            if other.queue != queue and (writes or other.writes) and other.place.overlaps(place):
                agent.fail("tensor memory", f"{name} of {place}, while {other.name} there has not been waited for")
        flight = Flight(name, queue, place, writes, registers)
        self.flights.append(flight)
        return flight

    def land(self, flights: list[Flight]) -> None:
        """These accesses have been waited for."""
        self.flights = [flight for flight in self.flights if flight not in flights]

    def read(self, agent: Agent, place: Place) -> np.ndarray:
        """The cells of a place, uint32 [lanes, columns]; all must have been written."""
        if (self.cells.state[place.cells] == UNWRITTEN).any():
            agent.fail("uninitialised", f"reads {place} of tensor memory, where some cells were never written")
        return self.cells.data[place.cells]

    def write(self, agent: Agent, place: Place, values: np.ndarray) -> None:
        self.cells.write(place.cells, values, agent, ASYNC)

    # Loads and stores by warps

    def load(self, warp: Warp, address: int, split: int | None, target: Registers) -> None:
        """Start a load of one register a column: lane t from lane t of the warp's 32; or, with `split`, 16 lanes, of
        which lanes 16 to 31 get those columns that lie `split` columns on."""
        places = self._warp_places(warp, address, split, len(target))
        flights = [self.fly(warp, "a tcgen05.ld", ("ld", warp.index), place, False, target) for place in places]
        self._hold(warp, target, "writes", "a tcgen05.ld without its tcgen05.wait::ld")

        def perform(action: Action) -> None:
            cells = np.concatenate([place.cells for place in places]).T  # [registers, 32]
            _set(warp, target, self.cells.data[cells], self.cells.state[cells] == WRITTEN)
            for flight in flights:
                flight.done = True

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
                self.write(action, place, np.ascontiguousarray(values).view(np.uint32)[:, part].T)
                lanes, flight.done = part.stop, True

        self._submit(warp, "tcgen05.st", perform)

    def wait(self, warp: Warp, kind: str) -> Wait:
        """Until all of this warp's loads ("ld") or stores ("st") are done."""
        waited = [flight for flight in self.flights if flight.queue == (kind, warp.index)]

        def ready() -> bool:
            if not all(flight.done for flight in waited):
                return False
            self.land(waited)
            for flight in waited:
                if flight.registers is not None:
                    warp.unlock(flight.registers)
            return True

        return Wait(ready, lambda: f"tcgen05.{kind}: {sum(not f.done for f in waited)} in flight")

    def fence(self, warp: Warp, side: str) -> None:
        """Record a tcgen05.fence::"before_thread_sync" or "after_thread_sync"."""
        getattr(self.fences.setdefault(warp.index, Fences()), side).append(self.block.tick())

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
        source = warp.instruction.source if warp.instruction else None
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
