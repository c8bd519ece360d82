"""Copies of a few bytes by each thread, asynchronously (PTX ISA, "cp.async" and "cp.async.mbarrier.arrive")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kingpost.emulate import GENERIC, Action, Block, Warp
from kingpost.emulate.memory import IN_FLIGHT
from kingpost.targets.nvidia.units.mbarrier import Mbarriers


class ThreadCopies:
    """A block's cp.async copies. Those of a warp happen in order, an arrival after the copies before it."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def copy(self, warp: Warp, destination: np.ndarray, source: np.ndarray, size: int) -> None:
        """`size` bytes a lane, from global address `source` to shared address `destination`."""
        lanes = warp.active
        for what, addresses in (("shared", destination), ("global", source)):
            if (addresses[lanes] % size).any():
                warp.fail("misaligned", f"cp.async of {size} bytes at a {what} address that is no multiple of it")
        offsets = np.arange(size)
        to = destination[lanes].astype(np.int64)[:, None] + offsets
        since = source[lanes].astype(np.int64)[:, None] + offsets
        self.block.shared.mark(to, IN_FLIGHT, warp)

        def perform(action: Action) -> None:
            self.block.shared.write(to, self.block.memory.read(since, action), action, GENERIC)

        action = self._submit(warp, perform)
        warp.clock.speaks_for(action.clock.column)

    def arrive(self, warp: Warp, address: int) -> None:
        """One arrival a lane at an mbarrier, once the lane's copies so far are done."""
        arrivals = int(warp.active.sum())
        self._submit(warp, lambda action: self.block.unit(Mbarriers).arrive(action, address, arrivals))

    def _submit(self, warp: Warp, perform: Callable[[Action], None]) -> Action:
        return self.block.submit(f"cp.async of {warp.name}", ("cp.async", warp.index), warp.source, perform)
