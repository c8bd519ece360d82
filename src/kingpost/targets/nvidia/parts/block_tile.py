"""The tile of a result that a block of a Hopper kernel computes, and who computes which part of it."""

from __future__ import annotations

from dataclasses import dataclass

from kingpost.program import Builder, SharedArray, u32
from kingpost.targets.nvidia.isa.common import fence_proxy_async

ROWS = 64  # of a warpgroup's accumulator
WARPS = 4  # of a warpgroup


@dataclass(frozen=True)
class BlockTile:
    """`warpgroups` warpgroups, each with `subtiles` accumulators of 64 rows and `columns` columns.

    loaded_rows: how many rows of a are loaded, where a product has fewer than an accumulator: 64 or less.
    """

    warpgroups: int
    subtiles: int
    columns: int
    loaded_rows: int = 0

    def __post_init__(self) -> None:
        if not self.loaded_rows:
            object.__setattr__(self, "loaded_rows", self.rows)
        if self.loaded_rows != self.rows and (self.rows != ROWS or self.loaded_rows % 8):
            raise ValueError(
                f"loaded_rows is {self.loaded_rows} of {self.rows}; all, or a multiple of 8 of 64, is wanted"
            )

    @property
    def rows(self) -> int:
        return ROWS * self.subtiles * self.warpgroups

    @property
    def whole(self) -> bool:
        """Whether all rows are loaded."""
        return self.loaded_rows == self.rows

    @property
    def warps(self) -> int:
        return WARPS * self.warpgroups

    def __str__(self) -> str:
        return f"{self.loaded_rows}x{self.columns}"


def clear_rows(k: Builder, tiles: SharedArray, first: int, threads: int) -> None:
    """Zero the rows from `first` on of every tile in `tiles` [stages, ..., rows, 128 bytes], which copies leave alone.

    By the block's first `threads` threads, before its barrier; a whole number of 1,024-byte patterns, so that the
    swizzle does not matter.
    """
    stages, rows = tiles.shape[0], tiles.shape[-2]
    chunks = (rows - first) * 8  # of 16 bytes, in a stage
    zeros = k.array(u32, 4, "zeros")
    k.set(zeros, 0)
    with k.loop(stages) as stage:
        own = tiles.at(stage, first * 128) + k.thread * 16
        for start in range(0, chunks, threads):
            with k.mask(k.thread + start < min(chunks, start + threads)):
                k.store_vector(own, zeros, offset=start * 16)
    fence_proxy_async(k)
