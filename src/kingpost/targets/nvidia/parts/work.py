"""What a walk over the pieces of work of a kernel is: items, the loop over them, and the order of tiles.

All kernels see a as [planes, M, K], b as [planes, N, K] and d as [planes, M, N].
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

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


class Work(Protocol):
    """A walk in one program. Every role of a block runs over the same items in the same order."""

    n: Register  # columns of d

    @property
    def scheduled(self) -> bool:
        """Whether a warp of its own runs `schedule`."""

    def initialise(self) -> None:
        """Initialise barriers, in one thread."""

    def prepare(self) -> None:
        """What all warps do before the block's barrier."""

    def schedule(self) -> None:
        """What the scheduling warp does."""

    def items(self, one_thread: bool = False) -> AbstractContextManager[Item]:
        """A loop over this block's items, by whole warps or by one thread."""


class Walk(Protocol):
    """How the items of a kind of product are walked over; hashable, a part of a kernel's configuration."""

    @property
    def partial(self) -> bool:
        """Whether items may end within a tile."""

    @property
    def tails(self) -> bool:
        """Whether an item's part of K may end within a block while its operands go on."""

    @property
    def shared_bytes(self) -> int:
        """How much shared memory the work takes."""

    def over(self, k: Builder, rows: int, columns: int, readers: int, block_k: int) -> Work:
        """The walk over tiles of these sizes; declares its parameters. readers: warps and single threads that read."""

    def tiles(self, operands: Operands, rows: int, columns: int) -> int:
        """How many items there are, at most."""

    def arguments(self, operands: Operands) -> dict[str, View | int | float]:
        """Its parameters."""


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
