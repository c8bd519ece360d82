"""The last K block of a group: what lies behind the group's end belongs to the next and must count as zero."""

from __future__ import annotations

from kingpost.program import Builder, Operand, Register, swizzle, u32
from kingpost.targets.nvidia.isa.common import fence_proxy_async, named_barrier
from kingpost.targets.nvidia.parts.block_tile import BlockTile

ROW, CHUNK = 128, 16  # bytes
BARRIER = 15  # of the math warps


def clear_tail(k: Builder, tiles: list[Register], tile: BlockTile, tail: Operand, more: Register) -> None:
    """In the last K block (there is no `more`), zero the bytes from `tail` on of every 128-byte row of two swizzled
    K-major tiles, of tile.rows and tile.columns rows. By all math warps, between the wait for the tiles and their
    products."""
    threads = 32 * tile.warps
    with k.when(k.select(more, ROW, tail) < ROW):
        zeros = k.array(u32, CHUNK // 4, "zeros")
        k.set(zeros, 0)
        for base, rows in zip(tiles, (tile.rows, tile.columns)):
            for first in range(0, rows, threads):
                row = k.thread + first
                line = swizzle(base + row * ROW, ROW)
                for chunk in range(1, ROW // CHUNK):
                    with k.mask((row < rows) & (tail <= chunk * CHUNK)):
                        k.store_vector(line ^ (chunk * CHUNK), zeros)
        fence_proxy_async(k)
        named_barrier(k, BARRIER, threads=threads)
