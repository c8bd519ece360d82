"""The walk of a persistent block over the tiles of a result, in an order that keeps operands in the L2 cache."""

from __future__ import annotations

from dataclasses import dataclass

from kingpost.program import Builder, Register


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
