"""How a persistent block of a kernel walks over its pieces of work, for every kind of product.

Every role of a block runs over the same items in the same order. All kernels see a as [planes, M, K], b as [planes, N,
K] and d as [planes, M, N].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kingpost.arrays import View
from kingpost.program import Builder, Operand, Register
from kingpost.registry import Operands


@dataclass(frozen=True)
class Item:
    """A tile of d and its share of K; of a register each, or a number where it is the same for all items.

    plane_a, plane_b, plane_d: indices of planes. row, column: the tile's first row and column in them. end: rows from
    there on are not this item's. blocks: of K. depth: its first element of K. block: the first K block's scales. tail:
    elements of K in the last block.
    """

    plane_a: Operand
    plane_b: Operand
    plane_d: Operand
    row: Register
    end: Register
    column: Register
    blocks: Register
    depth: Operand = 0
    block: Operand = 0
    tail: Operand = 0


@dataclass(frozen=True)
class Dense:
    """One product: tiles numbered down groups of `group` tile rows, row first within a group, then the next column.

    partial: items may end within a tile. tails: K blocks may end within a block. shared_bytes: of shared memory used.
    """

    group: int
    partial = False
    tails = False
    shared_bytes = 0

    def over(self, k: Builder, rows: int, columns: int, readers: int, block_k: int) -> DenseWork:
        return DenseWork(self, k, rows, columns, block_k)

    def tiles(self, operands: Operands, rows: int, columns: int) -> int:
        """How many items there are, at most."""
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


Walk = Dense | Batched


@dataclass(frozen=True)
class TileOrder:
    """Tiles numbered down groups of `group` tile rows: row first within a group, then the next tile column."""

    k: Builder
    rows: Register
    columns: Register
    group: int

    @property
    def count(self) -> Register:
        return self.rows * self.columns

    def place(self, tile: Register) -> tuple[Register, Register]:
        """The tile's row and column. Tiles past the last give places outside the result."""
        k, per_group = self.k, self.columns * self.group
        first = tile // per_group * self.group
        within = tile % per_group
        height = k.maximum(k.minimum(self.rows - k.minimum(first, self.rows), self.group), 1)
        return first + within % height, within // height


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
        """Initialise barriers, in one thread."""

    def prepare(self) -> None:
        """What all warps do before the block's barrier."""

    def schedule(self) -> None:
        """What a warp of its own does, if `scheduled`."""

    @contextmanager
    def items(self, one_thread: bool = False) -> Iterator[Item]:
        """A loop over this block's items, by whole warps or by one thread."""
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
