"""Memory with provenance: for every byte, its state, who wrote it, when and through which proxy."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from kingpost.arrays import View

if TYPE_CHECKING:
    from kingpost.emulate.block import Block
    from kingpost.emulate.warp import Warp

UNWRITTEN, WRITTEN, IN_FLIGHT, OBJECT = 0, 1, 2, 3
GENERIC, ASYNC = 0, 1
STATES = {UNWRITTEN: "never written", IN_FLIGHT: "still being written", OBJECT: "a barrier object"}

SHARED_BASE = 1024  # where shared memory starts in the shared window; what the system reserves lies below


class Agent(Protocol):
    """Whoever touches memory: a warp or an asynchronous engine's action."""

    number: int

    def fail(self, kind: str, message: str) -> NoReturn: ...


class Provenance:
    """Bytes and, for each, its state, its writer (an agent's number), the time and the proxy of the last write."""

    def __init__(self, size: int, clock: Callable[[], int]) -> None:
        self.data = np.zeros(size, np.uint8)
        self.state = np.full(size, UNWRITTEN, np.uint8)
        self.writer = np.full(size, -1, np.int32)
        self.time = np.zeros(size, np.int64)
        self.proxy = np.full(size, GENERIC, np.uint8)
        self.clock = clock

    def write(self, at: Any, values: np.ndarray, agent: Agent, proxy: int) -> None:
        self.data[at], self.state[at] = values, WRITTEN
        self.writer[at], self.time[at], self.proxy[at] = agent.number, self.clock(), proxy


class _ThreadAccess(ABC):
    """Accesses by a warp's threads, through the generic proxy, in memory that can `read` and `write` bytes."""

    @abstractmethod
    def read(self, addresses: np.ndarray, agent: Agent) -> np.ndarray: ...

    @abstractmethod
    def write(self, addresses: np.ndarray, values: np.ndarray, agent: Agent, proxy: int) -> None: ...

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
            result[:, warp.active] = self.read(lanes, warp).view(dtype).T
        return result

    def store_vector(self, warp: Warp, addresses: np.ndarray, values: np.ndarray) -> None:
        """values [count, lanes], neighbours in memory."""
        lanes = _lane_bytes(warp, addresses, len(values) * values.dtype.itemsize)
        if len(lanes):
            bytes = np.ascontiguousarray(values[:, warp.active].T).view(np.uint8)
            self.write(lanes, bytes.reshape(lanes.shape), warp, GENERIC)


class SharedMemory(_ThreadAccess):
    """A block's shared memory. Addresses are absolute bytes, as the program sees them."""

    def __init__(self, block: Block, size: int) -> None:
        self.block, self.base = block, SHARED_BASE
        self.bytes = Provenance(size, block.tick)

    def describe(self, address: int) -> str:
        """The declared array that an address falls in, as `name[index]`."""
        offset = address - self.base
        for array in self.block.program.shared:
            if array.offset <= offset < array.offset + array.bytes:
                inside = (offset - array.offset) % array.stride
                return f"{array.name}[{(offset - array.offset) // array.stride}]" + (f"+{inside}" if inside else "")
        return f"shared address {address}"

    def read(self, addresses: np.ndarray, agent: Agent) -> np.ndarray:
        """The bytes at integer addresses of any shape (uint8, same shape)."""
        at = self._offsets(addresses, agent)
        state = self.bytes.state[at]
        if not (state == WRITTEN).all():
            bad = int(np.flatnonzero(state.ravel() != WRITTEN)[0])
            address, wrong = int(np.ravel(addresses)[bad]), int(state.ravel()[bad])
            agent.fail("uninitialised", f"reads {self.describe(address)}, which is {STATES[wrong]}")
        return self.bytes.data[at]

    def write(self, addresses: np.ndarray, values: np.ndarray, agent: Agent, proxy: int) -> None:
        at = self._offsets(addresses, agent)
        self._refuse_object(at, addresses, agent)
        self.bytes.write(at, values, agent, proxy)

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


class GlobalMemory(_ThreadAccess):
    """The views a launch may touch, at their own addresses."""

    def __init__(self, views: list[View], clock: Callable[[], int]) -> None:
        self.clock = clock
        self.frozen = [v.extent()[0] for v in views if isinstance(v.owner, np.ndarray) and not v.owner.flags.writeable]
        self.regions: list[tuple[int, np.ndarray]] = []
        self.provenance: dict[int, Provenance] = {}
        for start, size in sorted({view.extent() for view in views}):
            if size:
                self.regions.append((start, _bytes_at(start, size)))
        self.starts = np.array([start for start, _ in self.regions], np.int64)
        self.owners = views  # keeps the arrays alive

    def read(self, addresses: np.ndarray, agent: Agent) -> np.ndarray:
        """The bytes at absolute addresses of any shape (uint8, same shape)."""
        _, data, at = self._locate(addresses, agent)
        return data[at]

    def write(self, addresses: np.ndarray, values: np.ndarray, agent: Agent, proxy: int) -> None:
        """Write bytes at absolute addresses of any shape."""
        start, data, at = self._locate(addresses, agent)
        if start in self.frozen:
            agent.fail("read-only", f"writes to the launch's array at {start:#x}, which is read-only")
        if start not in self.provenance:
            self.provenance[start] = Provenance(len(data), self.clock)
            self.provenance[start].data = data
        self.provenance[start].write(at, values, agent, proxy)

    def _locate(self, addresses: np.ndarray, agent: Agent) -> tuple[int, np.ndarray, np.ndarray]:
        signed = addresses.astype(np.int64)
        low, high = int(signed.min()), int(signed.max())
        region = int(np.searchsorted(self.starts, low, "right")) - 1
        while region >= 0 and high >= self.regions[region][0] + len(self.regions[region][1]):
            region -= 1  # regions may overlap: views of one array
        if region < 0:
            agent.fail("out of bounds", f"touches addresses {low:#x} to {high:#x}, in none of the launch's arrays")
        start, data = self.regions[region]
        return start, data, signed - start


def _bytes_at(start: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))


def _lane_bytes(warp: Warp, addresses: np.ndarray, size: int) -> np.ndarray:
    """The byte addresses [active lanes, size] of an access, which must be aligned to its size."""
    active = addresses[warp.active].astype(np.int64)
    if (active % size).any():
        warp.fail("misaligned", f"accesses {size} bytes at {int(active[active % size != 0][0]):#x}")
    return active[:, None] + np.arange(size)
