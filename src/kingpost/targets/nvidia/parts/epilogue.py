"""From accumulators to global memory: convert, lay out in shared memory, fence, bulk-store."""

from __future__ import annotations

from collections.abc import Callable

from kingpost.formats import BF16, F32, Format
from kingpost.program import Builder, Parameter, Register, Registers, swizzle
from kingpost.targets.nvidia.isa.common import (
    bulk_commit,
    bulk_store_2d,
    bulk_wait_read,
    fence_proxy_async,
    named_barrier,
    stmatrix,
    store_shared_pair,
)
from kingpost.targets.nvidia.units.wgmma_queue import WARPS

ROWS = 64  # of a warpgroup's accumulator


class TileStore:
    """Stores 64-row accumulators of `columns` columns as `format` (bfloat16 or float32), edges clipped by the copy.

    Shared memory holds `buffers` accumulators for each warpgroup, cut into slabs of 64 rows as long as the swizzle.
    """

    def __init__(self, k: Builder, columns: int, format: Format, warpgroups: int, buffers: int) -> None:
        if format not in (BF16, F32):
            raise ValueError(f"format is {format.name}; bfloat16 or float32 is wanted")
        self.k, self.columns, self.format, self.buffers = k, columns, format, buffers
        self.span = min(128, columns * format.itemsize)
        self.slabs, left = divmod(columns * format.itemsize, self.span)
        if left or columns % 16:
            raise ValueError(f"columns is {columns}; a multiple of 16 that fills whole slabs of 128 bytes is wanted")
        width = self.span // format.itemsize
        self.map: Parameter = k.tensor_map("d", format, (ROWS, width), self.span)
        self.staging = k.shared("d_staging", (warpgroups * buffers, self.slabs, ROWS, width), format, self.span)

    def drain(self, first_thread: Register) -> None:
        """Wait until this warpgroup's stores have left shared memory."""
        with self.k.mask(first_thread):
            bulk_wait_read(self.k, groups=0)

    def store(
        self,
        warpgroup: Register,
        first_thread: Register,
        total: Registers,
        row: Register,
        column: Register,
        buffer: int,
    ) -> None:
        """Store one accumulator at (row, column) of the result, through buffer `buffer` of the warpgroup.

        first_thread: holds in one thread of the warpgroup, the same at every call.
        """
        k, barrier = self.k, warpgroup + 1  # barrier 0 is the whole block's
        base = self.staging.at(warpgroup * self.buffers + buffer)
        with k.mask(first_thread):
            bulk_wait_read(k, groups=self.buffers - 1)
        named_barrier(k, barrier, threads=32 * WARPS)
        if self.format is BF16:
            self._lay_bf16(total, base)
        else:
            self._lay_f32(total, base)
        fence_proxy_async(k)
        named_barrier(k, barrier, threads=32 * WARPS)
        with k.mask(first_thread):
            for slab in range(self.slabs):
                at = column + slab * (self.span // self.format.itemsize)
                bulk_store_2d(k, self.map.register, row, at, base + slab * ROWS * self.span, type=self.map.type)
            bulk_commit(k)

    def _lay_bf16(self, total: Registers, base: Register) -> None:
        """Lane l addresses row l mod 16, 16-byte chunk l/16 of each 16 columns."""
        k = self.k
        line = base + ((k.warp % WARPS) * 16 + k.lane % 16) * self.span
        packed = k.pack_bf16(total[0::2], total[1::2])
        chunks = self._chunks(swizzle(line, self.span) ^ (k.lane // 16 * 16))
        for step in range(self.columns // 16):
            address, offset = chunks(2 * step)
            stmatrix(k, address, packed[4 * step : 4 * step + 4], offset=offset)

    def _lay_f32(self, total: Registers, base: Register) -> None:
        """Lane l holds columns 2 (l mod 4) and the next of each 8, in rows l/4 and l/4 + 8."""
        k = self.k
        line = base + ((k.warp % WARPS) * 16 + k.lane // 4) * self.span
        chunks = self._chunks((swizzle(line, self.span) ^ (k.lane % 4 // 2 * 16)) + k.lane % 2 * 8)
        for group in range(self.columns // 8):
            address, offset = chunks(2 * group)
            for half in range(2):  # 8 rows on, the swizzle repeats
                pair = 4 * group + 2 * half
                store_shared_pair(k, address, total[pair], total[pair + 1], offset=offset + half * 8 * self.span)

    def _chunks(self, first: Register) -> Callable[[int], tuple[Register, int]]:
        """Where a row's 16-byte chunks lie, its chunk 0 being, swizzled, at `first`: an address and an offset to it."""
        within = [first, *(first ^ (16 * chunk) for chunk in range(2, self.span // 16, 2))]

        def chunk(index: int) -> tuple[Register, int]:
            slab, place = divmod(index, self.span // 16)
            return within[place // 2], slab * ROWS * self.span

        return chunk
