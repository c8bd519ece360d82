"""The walk over sums of products: d's plane s is the sum of the products of consecutive planes of a and b."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kingpost.arrays import View
from kingpost.program import Builder, Operand, Register
from kingpost.registry import Operands
from kingpost.targets.nvidia.parts.walk import Dense, DenseWork
from kingpost.targets.nvidia.parts.work import Item

MOST_SLICES = 32


def planes_per_slice(planes: int) -> int:
    """Of how many products each slice is the sum, but for the last, which may have fewer."""
    return -(-planes // min(planes, MOST_SLICES)) if planes else 1


def slices(planes: int) -> int:
    """How many slices there are: at most MOST_SLICES, none of them empty."""
    return -(-planes // planes_per_slice(planes))


@dataclass(frozen=True)
class Summed(Dense):
    """A sum for each plane of d, one plane after another; along it K ascends, in one product after another."""

    def over(self, k: Builder, rows: int, columns: int, readers: int, block_k: int) -> SummedWork:
        return SummedWork(self, k, rows, columns, block_k)

    def arguments(self, operands: Operands) -> dict[str, View | int | float]:
        planes = operands["a"].shape[0]
        return {**super().arguments(operands), "planes": planes, "planes_per_slice": planes_per_slice(planes)}


class SummedWork(DenseWork):
    """Parameters: planes, the number of products, and planes_per_slice."""

    def __init__(self, walk: Dense, k: Builder, rows: int, columns: int, block_k: int) -> None:
        super().__init__(walk, k, rows, columns, block_k)
        self.block_k = block_k
        self.planes, self.each = k.parameter("planes"), k.parameter("planes_per_slice")
        self.slices = (self.planes + (self.each - 1)) // self.each

    @contextmanager
    def items(self, one_thread: bool = False) -> Iterator[Item]:
        k = self.k
        with k.loop(self.count * self.slices, start=k.block, step=k.grid) as tile:
            slice = tile // self.count
            row, column = self.order.place(tile % self.count)
            first = slice * self.each
            blocks = k.minimum(self.each, self.planes - first) * self.blocks
            row, column = row * self.tile_rows, column * self.tile_columns
            yield Item(first, first, slice, row, self.m, column, blocks)

    def source(self, item: Item, block: Register) -> tuple[Operand, Operand, Register]:
        """Where an item's K block lies: the planes of a and b, and its first element of K in them."""
        product = block // self.blocks
        plane = item.plane_a + product
        return plane, plane, (block - product * self.blocks) * self.block_k
