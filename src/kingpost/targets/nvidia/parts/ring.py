"""A ring of stages in shared memory between threads that load and warpgroups that multiply."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kingpost.program import Builder, Register, SharedArray, u32
from kingpost.targets.nvidia.isa.common import mbarrier_arrive, mbarrier_arrive_expect, mbarrier_init, mbarrier_wait


class Ring:
    """`stages` slots, each with a `full` and an `empty` mbarrier.

    A slot is full when `writers` threads have arrived and the bytes they expect are there; it is empty when every warp
    that reads it has left it (`readers` warps).
    """

    def __init__(self, k: Builder, stages: int, writers: int, readers: int, of: str = "") -> None:
        self.k, self.stages, self.writers, self.readers = k, stages, writers, readers
        self.full = k.shared_barriers(f"full{of}", stages)
        self.empty = k.shared_barriers(f"empty{of}", stages)

    def initialise(self) -> None:
        """Initialise the barriers; one thread, once."""
        for slot in range(self.stages):
            mbarrier_init(self.k, self.full.at(slot), count=self.writers)
            mbarrier_init(self.k, self.empty.at(slot), count=self.readers)

    def producer(self) -> Producer:
        return Producer(self)

    def consumer(self) -> Consumer:
        return Consumer(self)


class _Cursor:
    """Where one role stands in the ring: a slot and the parity of the turn, in registers."""

    def __init__(self, ring: Ring, parity: int) -> None:
        self.ring = ring
        self.slot = ring.k.new(u32, 0, "slot")
        self.parity = ring.k.new(u32, parity, "parity")

    def barrier(self, barriers: SharedArray) -> Register:
        return barriers.at(self.slot)

    def advance(self) -> None:
        k = self.ring.k
        self.slot += 1
        wrapped = self.slot == self.ring.stages
        self.parity ^= k.select(wrapped, 1, 0, into=k.new(u32))
        k.select(wrapped, 0, self.slot, into=self.slot)


class Producer(_Cursor):
    """The loading side."""

    def __init__(self, ring: Ring) -> None:
        super().__init__(ring, parity=1)  # on a fresh barrier the phase before the first has completed

    @contextmanager
    def fill(self, bytes: int = 0) -> Iterator[tuple[Register, Register]]:
        """Wait for an empty slot; yields it and the barrier to arrive at. With `bytes`, arrives too, expecting them."""
        k, full = self.ring.k, self.barrier(self.ring.full)
        mbarrier_wait(k, self.barrier(self.ring.empty), self.parity)
        if bytes:
            mbarrier_arrive_expect(k, full, bytes=bytes)
        yield self.slot, full
        self.advance()


class Consumer(_Cursor):
    """The multiplying side; used by whole warps."""

    def __init__(self, ring: Ring) -> None:
        super().__init__(ring, parity=0)

    def wait(self) -> None:
        """Wait for the current slot to be full."""
        mbarrier_wait(self.ring.k, self.barrier(self.ring.full), self.parity)

    def turn(self) -> Register:
        """Turn to the next slot; returns the barrier at which to `leave` the slot until now."""
        left = self.barrier(self.ring.empty)
        self.advance()
        return left

    def leave(self, barrier: Register) -> None:
        """Be done with a slot: one arrival for this warp."""
        k = self.ring.k
        with k.mask(k.lane == 0):
            mbarrier_arrive(k, barrier)
