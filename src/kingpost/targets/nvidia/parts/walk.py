"""Walks over products whose sizes the host knows: every role of a block works out its items by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kingpost.arrays import View
from kingpost.program import Builder
from kingpost.registry import Operands
from kingpost.targets.nvidia.parts.work import Item, TileOrder, Walk

__all__ = ["Batched", "BatchedWork", "Dense", "DenseWork", "Item", "Walk"]


@dataclass(frozen=True)
class Dense:
    """One product, in the order of `TileOrder`."""

    group: int
    partial = False
    tails = False
    shared_bytes = 0

    def over(self, k: Builder, rows: int, columns: int, readers: int, block_k: int) -> DenseWork:
        return DenseWork(self, k, rows, columns, block_k)

    def tiles(self, operands: Operands, rows: int, columns: int) -> int:
        *planes, m, n = operands["d"].shape
        return (planes[0] if planes else 1) * -(-m // rows) * -(-n // columns)

    def arguments(self, operands: Operands) -> dict[str, View | int | float]:
        *_, m, n = operands["d"].shape
        return {"m": m, "n": n, "k": operands["a"].shape[-1]}


@dataclass(frozen=True)
class Batched(Dense):
    """A product for each plane, one plane after another."""

    def over(self, k: Builder, rows: int, columns: int, readers: int, block_k: int) -> DenseWork:
        return BatchedWork(self, k, rows, columns, block_k)

    def arguments(self, operands: Operands) -> dict[str, View | int | float]:
        return {**super().arguments(operands), "planes": operands["d"].shape[0]}


class DenseWork:
    """The walk over one plane. Parameters: m, n and k, in elements."""

    scheduled = False

    def __init__(self, walk: Dense, k: Builder, rows: int, columns: int, block_k: int) -> None:
        self.k, self.tile_rows, self.tile_columns = k, rows, columns
        self.m, self.n, depth = k.parameter("m"), k.parameter("n"), k.parameter("k")
        self.blocks = k.ceil_div(depth, block_k)
        self.order = TileOrder(k, k.ceil_div(self.m, rows), k.ceil_div(self.n, columns), walk.group)
        self.count = self.order.count

    def initialise(self) -> None:
        """There are none."""

    def prepare(self) -> None:
        """Nothing."""

    def schedule(self) -> None:
        """Nothing: `scheduled` is false."""

    @contextmanager
    def items(self, one_thread: bool = False) -> Iterator[Item]:
        k = self.k
        with k.loop(self.count, start=k.block, step=k.grid) as tile:
            row, column = self.order.place(tile)
            yield Item(0, 0, 0, row * self.tile_rows, self.m, column * self.tile_columns, self.blocks)


class BatchedWork(DenseWork):
    """The walk over several planes. Parameter: planes, their number."""

    def __init__(self, walk: Dense, k: Builder, rows: int, columns: int, block_k: int) -> None:
        super().__init__(walk, k, rows, columns, block_k)
        self.planes = k.parameter("planes")

    @contextmanager
    def items(self, one_thread: bool = False) -> Iterator[Item]:
        k = self.k
        with k.loop(self.count * self.planes, start=k.block, step=k.grid) as tile:
            plane = tile // self.count
            row, column = self.order.place(tile % self.count)
            row, column = row * self.tile_rows, column * self.tile_columns
            yield Item(plane, plane, plane, row, self.m, column, self.blocks)
