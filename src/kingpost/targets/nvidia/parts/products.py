"""The math warps' part of a K block of 128 fp8 elements: multiply from zero, promote into float32 totals.

While the last products of a K block are in flight, scales are read and the next slot is looked for: its wait costs
nothing then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kingpost.formats import Format
from kingpost.program import Builder, Register, Registers, SharedArray, f32, u32
from kingpost.targets.nvidia.isa.hopper import matrix_descriptor, wgmma, wgmma_commit, wgmma_fence, wgmma_wait
from kingpost.targets.nvidia.parts.block_tile import ROWS, WARPS, BlockTile
from kingpost.targets.nvidia.parts.ring import Consumer
from kingpost.targets.nvidia.parts.scales import STEPS, Promotion

BLOCK_K = 128  # elements and bytes: one swizzled row
STEP_K = 32  # of one wgmma


@dataclass(frozen=True)
class Operands:
    """One warpgroup's part of the tiles a [stages, rows, 128] and b [stages, columns, 128] in the slots of a ring."""

    k: Builder
    tile: BlockTile
    a: SharedArray
    b: SharedArray
    formats: tuple[Format, Format]
    slots: Consumer
    warp: Register

    def accumulators(self, count: int, name: str) -> list[Registers]:
        return [self.k.array(f32, self.tile.columns // 2, name) for _ in range(count)]

    def located(self) -> tuple[Register, Register]:
        """Where this warpgroup's rows of a and the columns of b begin in the present slot."""
        own_rows = self.warp // WARPS * (ROWS * self.tile.subtiles)
        return self.a.at(self.slots.slot) + own_rows * BLOCK_K, self.b.at(self.slots.slot)

    def present(self) -> Register:
        """The present slot, to be read when the next has been turned to."""
        return self.k.new(u32, self.slots.slot, "slot")

    def multiply(self, tiles: tuple[Register, Register], into: Registers, subtile: int, steps: Sequence[int]) -> None:
        """Issue the products of some steps of K, from zero, as one group."""
        k, (a_format, b_format) = self.k, self.formats
        wgmma_fence(k)
        for step in steps:
            left = matrix_descriptor(k, tiles[0], offset=subtile * ROWS * BLOCK_K + step * STEP_K)
            right = matrix_descriptor(k, tiles[1], offset=step * STEP_K)
            more, n = step > steps[0], self.tile.columns
            wgmma(k, left, right, into=into, n=n, accumulate=more, a_format=a_format, b_format=b_format)
        wgmma_commit(k)

    def turn(self, more: Register) -> Register:
        """Turn to the next slot and, if there is more, wait for it; returns the barrier of the slot to be left."""
        read = self.slots.turn()
        with self.k.when(more):
            self.slots.wait()
        return read


class BlockProducts:
    """A scale for 128 of K: for each subtile, four products into one accumulator, then its promotion."""

    def __init__(self, operands: Operands, promotion: Promotion) -> None:
        self.operands, self.promotion = operands, promotion
        (self.partial,) = operands.accumulators(1, "partial")

    def add(self, totals: Sequence[Registers], more: Register) -> None:
        """Add the present slot's K block to the totals of all subtiles; leave the slot. more: there is a next one."""
        operands, tiles, slot = self.operands, self.operands.located(), self.operands.present()
        for t, total in enumerate(totals):
            operands.multiply(tiles, self.partial, t, range(STEPS))
            if t == len(totals) - 1:
                read = operands.turn(more)
            if t == 0:  # behind a branch if there is one, lest the assembler put the reads among the products
                self.promotion.read(slot)
            wgmma_wait(operands.k, groups=0)
            if t == len(totals) - 1:
                operands.slots.leave(read)
            self.promotion.add(total, self.partial, t)


class StepProducts:
    """A scale for 32 of K: each product is promoted by itself, while the next is in flight in the other accumulator."""

    def __init__(self, operands: Operands, promotion: Promotion) -> None:
        self.operands, self.promotion = operands, promotion
        self.partials = operands.accumulators(2, "partial")

    def add(self, totals: Sequence[Registers], more: Register) -> None:
        """As BlockProducts.add; one subtile."""
        (total,), operands, promotion = totals, self.operands, self.promotion
        tiles, slot = operands.located(), operands.present()
        operands.multiply(tiles, self.partials[0], 0, [0])
        for step in range(STEPS):
            if step + 1 < STEPS:
                operands.multiply(tiles, self.partials[(step + 1) % 2], 0, [step + 1])
            else:
                read = operands.turn(more)
            promotion.read(slot, step)
            wgmma_wait(operands.k, groups=1 if step + 1 < STEPS else 0)
            promotion.add(total, self.partials[step % 2], 0)
        operands.slots.leave(read)
