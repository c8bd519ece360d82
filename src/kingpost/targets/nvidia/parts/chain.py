"""The math warps' part of bfloat16: one chain of products over all of K for each accumulator, K ascending."""

from __future__ import annotations

from collections.abc import Sequence

from kingpost.formats import BF16
from kingpost.program import Builder, Operand, Register, Registers, f32, u32
from kingpost.targets.nvidia.isa.hopper import wgmma, wgmma_commit, wgmma_fence, wgmma_wait
from kingpost.targets.nvidia.parts.block_tile import ROWS, WARPS, BlockTile
from kingpost.targets.nvidia.parts.operand_tiles import BLOCK_K, ROW_BYTES, STEP_K, OperandTiles
from kingpost.targets.nvidia.parts.ring import Consumer


class Chain:
    """One warpgroup's totals, and the products that are added to them, of its rows of a and all columns of b."""

    def __init__(
        self, k: Builder, tile: BlockTile, a: OperandTiles, b: OperandTiles, slots: Consumer, warp: Register
    ) -> None:
        self.k, self.tile, self.a, self.b, self.slots = k, tile, a, b, slots
        self.own_rows = warp // WARPS * (ROWS * tile.subtiles)
        self.totals = [k.array(f32, tile.columns // 2, "total") for _ in range(tile.subtiles)]
        self.read = k.new(u32, 0, "read")  # where to leave the slot that was read last

    def add_blocks(self, blocks: Register) -> None:
        """Add the products of the next `blocks` slots. Those of one are in flight while the next is waited for, and a
        slot is left when those of the one after it have been issued and its own are done."""
        k = self.k
        with k.loop(blocks) as block:
            self.slots.wait()
            self._add(*self._tiles(), range(BLOCK_K // STEP_K))
            wgmma_wait(k, groups=1)
            with k.when(block > 0):
                self.slots.leave(self.read)
            k.set(self.read, self.slots.turn())
        wgmma_wait(k, groups=0)
        with k.when(blocks > 0):
            self.slots.leave(self.read)

    def add_steps(self, steps: Operand) -> None:
        """Add the products of the first `steps` steps of the next slot."""
        k, (a_tile, b_tile) = self.k, self._tiles()
        self.slots.wait()
        with k.loop(steps) as step:
            self._add(a_tile + step * self.a.step_bytes, b_tile + step * self.b.step_bytes, [0])
            wgmma_wait(k, groups=0)
        self.slots.leave(self.slots.turn())

    def _tiles(self) -> tuple[Register, Register]:
        """Where this warpgroup's rows of a and the columns of b begin in the present slot."""
        slot = self.slots.slot
        return self.a.shared.at(slot) + self.own_rows * ROW_BYTES, self.b.shared.at(slot)

    def _add(self, a_tile: Register, b_tile: Register, steps: Sequence[int]) -> None:
        """Issue the products of some steps as one group."""
        k, n, majors = self.k, self.tile.columns, {"a_major": self.a.major, "b_major": self.b.major}
        wgmma_fence(k)
        for t, total in enumerate(self.totals):
            for step in steps:
                left = self.a.descriptor(a_tile, t * ROWS * ROW_BYTES + step * self.a.step_bytes)
                right = self.b.descriptor(b_tile, step * self.b.step_bytes)
                wgmma(k, left, right, into=total, n=n, accumulate=True, a_format=BF16, b_format=BF16, **majors)
        wgmma_commit(k)

    def parts(self, columns: int) -> list[tuple[int, int, Registers]]:
        """The totals in parts of `columns` columns: the first row (of the warpgroup's) and column of each."""
        return [
            (t * ROWS, first, total[first // 2 : (first + columns) // 2])
            for t, total in enumerate(self.totals)
            for first in range(0, self.tile.columns, columns)
        ]
