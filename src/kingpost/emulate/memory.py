"""Memory with provenance: for every byte, its state and the last accesses to it, checked against who knows of them."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn, Protocol

import numpy as np

from kingpost.arrays import View
from kingpost.emulate.banks import conflicts
from kingpost.emulate.order import ASYNC, GENERIC, KNOWN, Clock, Ledger, Order, WarpClock
from kingpost.program import Source

if TYPE_CHECKING:
    from kingpost.emulate.block import Block
    from kingpost.emulate.warp import Warp

UNWRITTEN, WRITTEN, IN_FLIGHT, OBJECT = 0, 1, 2, 3
STATES = {UNWRITTEN: "never written", IN_FLIGHT: "still being written", OBJECT: "a barrier object"}

SHARED_BASE = 1024  # where shared memory starts in the shared window; what the system reserves lies below
_SEVERAL = -1  # in place of a block's number


class Agent(Protocol):
    """Whoever touches memory: a warp or an asynchronous engine's action."""

    @property
    def clock(self) -> Clock | WarpClock: ...

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> Source | None: ...

    def fail(self, kind: str, message: str) -> NoReturn: ...


class Provenance:
    """Bytes and, for each, its state, the event that last wrote it and, by column, the event that last read it.

    describe(offset): a byte's name in messages. `at` below: its offsets, an integer array of any shape.
    """

    def __init__(self, data: np.ndarray, describe: Callable[[int], str]) -> None:
        self.data, self.describe = data, describe
        self.state = np.full(len(data), UNWRITTEN, np.uint8)
        self.written = np.zeros(len(data), np.int64)
        self.reads: dict[int, np.ndarray] = {}

    def note_read(self, order: Order, at: np.ndarray, agent: Agent, proxy: int) -> int:
        """Check and record a read; returns the event."""
        self._check(order, at, self.written[at], agent, proxy, "reads", "wrote")
        event = order.record(agent, proxy)
        column = agent.clock.column
        if column not in self.reads:
            self.reads[column] = np.zeros(len(self.data), np.int64)
        self.reads[column][at] = event
        return event

    def note_write(self, order: Order, at: np.ndarray, agent: Agent, proxy: int, adds: bool = False) -> int:
        """Check and record a write; returns the event. Sums added by engines do not race with each other."""
        written = self.written[at]
        if adds:
            written = np.where(order.ledger.adds[written], 0, written)
        self._check(order, at, written, agent, proxy, "writes", "wrote")
        knows = agent.clock.knowledge()
        for column, read in self.reads.items():
            events = read[at]
            latest = int(events.max(initial=0))
            known = int(knows[KNOWN, column]) if column < knows.shape[1] else 0
            if latest > known or (proxy == ASYNC and latest and order.ledger.proxies[latest] == GENERIC):
                self._check(order, at, events, agent, proxy, "overwrites", "may still read")
        event = order.record(agent, proxy, adds)
        self.written[at] = event
        return event

    def _check(
        self, order: Order, at: np.ndarray, events: np.ndarray, agent: Agent, proxy: int, verb: str, did: str
    ) -> None:
        knows = agent.clock.knowledge()
        bad = order.unknown(events, knows, fenced=proxy == ASYNC)
        if bad is None:
            return
        first = int(np.flatnonzero(bad)[0])
        event, place = int(events.ravel()[first]), self.describe(int(at.ravel()[first]))
        other = order.ledger.events[event]
        if order.unknown(np.array([event]), knows) is None:
            missing = "that thread's proxy fence between its access and what orders the two is missing"
            agent.fail("proxy", f"{verb} {place}, through the asynchronous proxy, which {other} {did}: {missing}")
        agent.fail("race", f"{verb} {place}, which {other} {did}: nothing orders the two")


class _ThreadAccess(ABC):
    """Accesses by a warp's threads, through the generic proxy, in memory that can `read` and `write` bytes."""

    @abstractmethod
    def read(self, addresses: np.ndarray, agent: Agent, proxy: int = GENERIC) -> np.ndarray: ...

    @abstractmethod
    def write(self, addresses: np.ndarray, values: np.ndarray, agent: Agent, proxy: int) -> None: ...

    def count_conflicts(self, warp: Warp, addresses: np.ndarray, size: int) -> None:
        """Count the bank conflicts of the current instruction, which accesses `size` bytes at each address."""
        return  # memory without banks

    def load(self, warp: Warp, addresses: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """One value of `dtype` a lane."""
        return self.load_vector(warp, addresses, dtype, 1)[0]

    def store(self, warp: Warp, addresses: np.ndarray, values: np.ndarray) -> None:
        """One value a lane."""
        self.store_vector(warp, addresses, values[None])

    def load_vector(self, warp: Warp, addresses: np.ndarray, dtype: np.dtype, count: int) -> np.ndarray:
        """`count` neighbouring values a lane: [count, lanes]."""
        result = np.zeros((count, len(warp.lanes)), dtype)
        lanes = _lane_bytes(warp, addresses, count * dtype.itemsize)
        if len(lanes):
            self.count_conflicts(warp, lanes[:, 0], lanes.shape[1])
            result[:, warp.active] = self.read(lanes, warp).view(dtype).T
        return result

    def store_vector(self, warp: Warp, addresses: np.ndarray, values: np.ndarray) -> None:
        """values [count, lanes], neighbours in memory."""
        lanes = _lane_bytes(warp, addresses, len(values) * values.dtype.itemsize)
        if len(lanes):
            self.count_conflicts(warp, lanes[:, 0], lanes.shape[1])
            bytes = np.ascontiguousarray(values[:, warp.active].T).view(np.uint8)
            self.write(lanes, bytes.reshape(lanes.shape), warp, GENERIC)


class SharedMemory(_ThreadAccess):
    """A block's shared memory. Addresses are absolute bytes, as the program sees them."""

    def __init__(self, block: Block, size: int) -> None:
        self.block, self.base = block, SHARED_BASE
        self.bytes = Provenance(np.zeros(size, np.uint8), lambda offset: self.describe(offset + self.base))

    def describe(self, address: int) -> str:
        """The declared array that an address falls in, as `name[index]`."""
        offset = address - self.base
        for array in self.block.program.shared:
            if array.offset <= offset < array.offset + array.bytes:
                inside = (offset - array.offset) % array.stride
                return f"{array.name}[{(offset - array.offset) // array.stride}]" + (f"+{inside}" if inside else "")
        return f"shared address {address}"

    def read(self, addresses: np.ndarray, agent: Agent, proxy: int = GENERIC) -> np.ndarray:
        """The bytes at integer addresses of any shape (uint8, same shape)."""
        at = self._offsets(addresses, agent)
        state = self.bytes.state[at]
        if not (state == WRITTEN).all():
            bad = int(np.flatnonzero(state.ravel() != WRITTEN)[0])
            address, wrong = int(np.ravel(addresses)[bad]), int(state.ravel()[bad])
            agent.fail("uninitialised", f"reads {self.describe(address)}, which is {STATES[wrong]}")
        self.bytes.note_read(self.block.order, at, agent, proxy)
        return self.bytes.data[at]

    def write(self, addresses: np.ndarray, values: np.ndarray, agent: Agent, proxy: int) -> None:
        at = self._offsets(addresses, agent)
        self._refuse_object(at, addresses, agent)
        self.bytes.note_write(self.block.order, at, agent, proxy)
        self.bytes.data[at], self.bytes.state[at] = values, WRITTEN

    def count_conflicts(self, warp: Warp, addresses: np.ndarray, size: int) -> None:
        assert warp.instruction is not None
        self.block.report.conflicts[warp.instruction] += conflicts(addresses, size)

    def note_write(self, addresses: np.ndarray, agent: Agent) -> int:
        """Check and record a write of whatever a unit keeps at these addresses; returns the event."""
        return self.bytes.note_write(self.block.order, self._offsets(addresses, agent), agent, GENERIC)

    def mark(self, addresses: np.ndarray, state: int, agent: Agent) -> None:
        at = self._offsets(addresses, agent)
        self._refuse_object(at, addresses, agent)
        self.bytes.state[at] = state

    def _refuse_object(self, at: np.ndarray, addresses: np.ndarray, agent: Agent) -> None:
        wrong = self.bytes.state[at] == OBJECT
        if wrong.any():
            agent.fail("barrier object", f"writes over {self.describe(int(addresses[wrong][0]))}, a barrier in use")

    def _offsets(self, addresses: np.ndarray, agent: Agent) -> np.ndarray:
        at = addresses.astype(np.int64) - self.base
        size = len(self.bytes.data)
        if at.size and (at.min() < 0 or at.max() >= size):
            agent.fail("out of bounds", f"touches shared offset {int(at.min())} to {int(at.max())} of {size} bytes")
        return at


class _Region(Provenance):
    """Bytes of a launch's arrays. Blocks run side by side, in any order: what one wrote, no other may touch."""

    def __init__(self, start: int, size: int, frozen: list[tuple[int, int]]) -> None:
        super().__init__(_bytes_at(start, size), lambda offset: f"global address {start + offset:#x}")
        self.start, self.stop = start, start + size
        self.frozen = [each for each in frozen if each[0] < self.stop and sum(each) > start]
        self.constant = (start, size) in frozen
        self.readers = np.zeros(size, np.int32)  # the block that has read a byte, counted from 1; or _SEVERAL

    def note_read(self, order: Order, at: np.ndarray, agent: Agent, proxy: int) -> int:
        if self.constant:
            return 0
        self._refuse_other_blocks(order, at, self.written[at], agent, "reads")
        readers, own = self.readers[at], order.block + 1
        self.readers[at] = np.where((readers == 0) | (readers == own), own, _SEVERAL)
        return super().note_read(order, at, agent, proxy)

    def note_write(self, order: Order, at: np.ndarray, agent: Agent, proxy: int, adds: bool = False) -> int:
        for start, size in self.frozen:
            if ((at >= start - self.start) & (at < start + size - self.start)).any():
                agent.fail("read-only", f"writes to the launch's array at {start:#x}, which is read-only")
        written = self.written[at]
        if adds:
            written = np.where(order.ledger.adds[written], 0, written)
        self._refuse_other_blocks(order, at, written, agent, "writes")
        readers = self.readers[at]
        others = (readers != 0) & (readers != order.block + 1)
        if others.any():
            place = self.describe(int(at[others][0]))
            agent.fail("race", f"writes {place}, which another block reads: nothing orders blocks of one launch")
        return super().note_write(order, at, agent, proxy, adds)

    def _refuse_other_blocks(self, order: Order, at: np.ndarray, events: np.ndarray, agent: Agent, verb: str) -> None:
        earlier = (events > 0) & (events <= order.began)
        if earlier.any():
            place = self.describe(int(at[earlier][0]))
            other = order.ledger.events[int(events[earlier][0])]
            agent.fail("race", f"{verb} {place}, which {other} wrote: nothing orders blocks of one launch")


class GlobalMemory(_ThreadAccess):
    """The views a launch may touch, at their own addresses, as one block sees them.

    order: of the block that runs now.
    """

    def __init__(self, views: list[View]) -> None:
        self.ledger = Ledger()
        self.order = Order(self.ledger, 0)
        frozen = [v.extent() for v in views if isinstance(v.owner, np.ndarray) and not v.owner.flags.writeable]
        self.regions = [_Region(start, size, frozen) for start, size in _united(v.extent() for v in views)]
        self.starts = np.array([region.start for region in self.regions], np.int64)
        self.owners = views  # keeps the arrays alive

    def read(self, addresses: np.ndarray, agent: Agent, proxy: int = GENERIC) -> np.ndarray:
        """The bytes at absolute addresses of any shape (uint8, same shape)."""
        region, at = self._locate(addresses, agent)
        region.note_read(self.order, at, agent, proxy)
        return region.data[at]

    def write(self, addresses: np.ndarray, values: np.ndarray, agent: Agent, proxy: int, adds: bool = False) -> None:
        """Write bytes at absolute addresses of any shape. adds: they are sums that an engine has made there."""
        region, at = self._locate(addresses, agent)
        region.note_write(self.order, at, agent, proxy, adds)
        region.data[at], region.state[at] = values, WRITTEN

    def peek(self, addresses: np.ndarray, agent: Agent) -> np.ndarray:
        """The bytes, for an engine that adds to them: no read that races with others' sums."""
        region, at = self._locate(addresses, agent)
        return region.data[at]

    def _locate(self, addresses: np.ndarray, agent: Agent) -> tuple[_Region, np.ndarray]:
        signed = addresses.astype(np.int64)
        low, high = int(signed.min()), int(signed.max())
        index = int(np.searchsorted(self.starts, low, "right")) - 1
        if index < 0 or high >= self.regions[index].stop:
            agent.fail("out of bounds", f"touches addresses {low:#x} to {high:#x}, in none of the launch's arrays")
        region = self.regions[index]
        return region, signed - region.start


def _united(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, size) of memory that arrays cover; arrays that share bytes count as one."""
    united: list[tuple[int, int]] = []
    for start, size in sorted(each for each in extents if each[1]):
        if united and start < sum(united[-1]):
            first = united[-1][0]
            united[-1] = first, max(sum(united[-1]), start + size) - first
        else:
            united.append((start, size))
    return united


def _bytes_at(start: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))


def _lane_bytes(warp: Warp, addresses: np.ndarray, size: int) -> np.ndarray:
    """The byte addresses [active lanes, size] of an access, which must be aligned to its size."""
    active = addresses[warp.active].astype(np.int64)
    if (active % size).any():
        warp.fail("misaligned", f"accesses {size} bytes at {int(active[active % size != 0][0]):#x}")
    return active[:, None] + np.arange(size)
