"""What the blocks of a cluster share: a barrier, and addresses in each other's shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kingpost.emulate import Action, Block, Wait, Warp
from kingpost.emulate.order import Knowledge, joined

_RANK_BIT = 24  # where a mapped address holds the block's rank + 1; the hardware's encoding is its own


def mapped(address: np.ndarray, rank: np.ndarray) -> np.ndarray:
    return address | (rank.astype(np.uint32) + np.uint32(1)) << np.uint32(_RANK_BIT)


def located(agent: Warp, address: int) -> tuple[Block, int]:
    """The block that an address lies in, and the address there; visits it if it is another."""
    rank = (address >> _RANK_BIT) - 1
    return (agent.block if rank < 0 else peer(agent, agent.block, rank)), address & (1 << _RANK_BIT) - 1


def peer(agent: Warp | Action, block: Block, rank: int) -> Block:
    """The block of a rank in the cluster; one other than its own is visited."""
    if rank >= len(block.peers):
        agent.fail("cluster", f"reaches for block {rank} of a cluster of {len(block.peers)}")
    found = block.peers[rank]
    if found is not block:
        found.visit(agent)
    return found


@dataclass
class _Generation:
    arrived: int = 0
    gathered: Knowledge | None = None


class ClusterBarrier:
    """barrier.cluster: every warp of the cluster arrives, then waits, in turns. Held by the cluster's first block."""

    def __init__(self, block: Block) -> None:
        self.wanted = sum(len(each.warps) for each in block.peers)
        self.generations: list[_Generation] = [_Generation()]
        self.turns: dict[Any, int] = {}  # by warp that has arrived and not waited: the generation

    def arrive(self, warp: Warp) -> None:
        if warp in self.turns:
            warp.fail("cluster", "arrives at the cluster's barrier again before it has waited")
        self.turns[warp] = len(self.generations) - 1
        generation = self.generations[-1]
        generation.arrived += 1
        warp.block.order.mark(warp)
        knows = warp.clock.release()
        generation.gathered = knows if generation.gathered is None else joined(generation.gathered, knows)
        if generation.arrived == self.wanted:
            self.generations.append(_Generation())

    def wait(self, warp: Warp) -> Wait:
        if warp not in self.turns:
            warp.fail("cluster", "waits at the cluster's barrier without having arrived")
        generation = self.generations[self.turns.pop(warp)]

        def passed() -> None:
            assert generation.gathered is not None
            warp.clock.acquire(generation.gathered)

        return Wait(
            lambda: generation.arrived == self.wanted,
            lambda: f"the cluster's barrier, where {generation.arrived} of {self.wanted} warps have arrived",
            passed,
        )
