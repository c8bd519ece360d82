"""From accumulators to global memory: convert, lay out in shared memory, and store by bulk copies or by rows."""

from __future__ import annotations

from collections.abc import Callable

from kingpost.formats import BF16, F16, F32, Format
from kingpost.program import Builder, Operand, Parameter, Register, Registers, swizzle, u32, u64
from kingpost.targets.nvidia.isa.common import (
    bulk_commit,
    bulk_reduce_add_3d,
    bulk_store_3d,
    bulk_wait_read,
    fence_proxy_async,
    named_barrier,
    pack_f16,
    stmatrix,
    store_shared_pair,
)
from kingpost.targets.nvidia.parts.block_tile import ROWS, WARPS, BlockTile

THREADS = 32 * WARPS
CHUNK = 16  # bytes


class Staging:
    """Shared memory for 64-row accumulators on their way out, as bfloat16, float16 or float32: `buffers` for each
    warpgroup, cut into slabs of 64 rows as long as the swizzle."""

    def __init__(self, k: Builder, tile: BlockTile, format: Format, buffers: int) -> None:
        if format not in (BF16, F16, F32):
            raise ValueError(f"format is {format.name}; bfloat16, float16 or float32 is wanted")
        self.k, self.columns, self.format, self.buffers = k, tile.columns, format, buffers
        if self.columns % 16:
            raise ValueError(f"columns is {self.columns}; a multiple of 16 is wanted")
        row = self.columns * format.itemsize
        self.span = next(span for span in (128, 64, 32) if row % span == 0)
        self.slabs = row // self.span
        self.width = self.span // format.itemsize  # elements of a slab's row
        shape = (tile.warpgroups * buffers, self.slabs, ROWS, self.width)
        self.shared = k.shared("d_staging", shape, format, self.span)

    def barrier(self, warpgroup: Register) -> None:
        """Wait for the warpgroup's threads (barrier 0 is the whole block's)."""
        named_barrier(self.k, warpgroup + 1, threads=THREADS)

    def lay(self, total: Registers, base: Register) -> None:
        """Convert an accumulator and lay it out at `base`."""
        if self.format is F32:
            self._lay_words(total, base)
        else:
            self._lay_halves(total, base)

    def _lay_halves(self, total: Registers, base: Register) -> None:
        """Lane l addresses row l mod 16, 16-byte chunk l/16 of each 16 columns."""
        k = self.k
        line = base + ((k.warp % WARPS) * 16 + k.lane % 16) * self.span
        if self.format is BF16:
            packed = k.pack_bf16(total[0::2], total[1::2])
        else:
            packed = k.array(u32, len(total) // 2)
            pack_f16(k, total[0::2], total[1::2], into=packed)
        chunks = self._chunks(swizzle(line, self.span) ^ (k.lane // 16 * 16))
        for step in range(self.columns // 16):
            address, offset = chunks(2 * step)
            stmatrix(k, address, packed[4 * step : 4 * step + 4], offset=offset)

    def _lay_words(self, total: Registers, base: Register) -> None:
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
        within = [first, *(first ^ (CHUNK * chunk) for chunk in range(2, self.span // CHUNK, 2))]

        def chunk(index: int) -> tuple[Register, int]:
            slab, place = divmod(index, self.span // CHUNK)
            return within[place // 2], slab * ROWS * self.span

        return chunk


class TileStore:
    """Stores accumulators by bulk copies, clipped at the edges of d's planes, or adds them to what is there.

    warp: the caller's index within its role of math warps. Rows up to a plane's last are written, whatever `end` says.
    """

    def __init__(self, k: Builder, staging: Staging, add: bool = False) -> None:
        self.k, self.staging, self.copy = k, staging, bulk_reduce_add_3d if add else bulk_store_3d
        self.map: Parameter = k.tensor_map("d", staging.format, (1, ROWS, staging.width), staging.span)

    def store(
        self,
        warp: Register,
        total: Registers,
        plane: Operand,
        row: Register,
        end: Register,
        column: Register,
        buffer: int,
    ) -> None:
        """Store one accumulator at (plane, row, column) of the result, through buffer `buffer` of the warpgroup."""
        k, staging = self.k, self.staging
        warpgroup, one_thread = warp // WARPS, _first_thread(k, warp)
        base = staging.shared.at(warpgroup * staging.buffers + buffer)
        with k.mask(one_thread):
            bulk_wait_read(k, groups=staging.buffers - 1)
        staging.barrier(warpgroup)
        staging.lay(total, base)
        fence_proxy_async(k)
        staging.barrier(warpgroup)
        with k.mask(one_thread):
            for slab in range(staging.slabs):
                at, source = column + slab * staging.width, base + slab * ROWS * staging.span
                self.copy(k, self.map.register, plane, row, at, source, type=self.map.type)
            bulk_commit(k)

    def drain(self, warp: Register) -> None:
        """Wait until this warpgroup's stores have left shared memory."""
        with self.k.mask(_first_thread(self.k, warp)):
            bulk_wait_read(self.k, groups=0)


class RowStore:
    """Stores accumulators by rows of 16-byte chunks, so that an item's last row may be any.

    Parameters: d, its address (a multiple of 16), and its strides in bytes from plane to plane and row to row.
    """

    def __init__(self, k: Builder, staging: Staging, columns: Register) -> None:
        self.k, self.staging, self.columns = k, staging, columns
        self.d, self.plane_stride, self.stride = (
            k.parameter("d", u64),
            k.parameter("d_plane_stride"),
            k.parameter("d_stride"),
        )

    def store(
        self,
        warp: Register,
        total: Registers,
        plane: Operand,
        row: Register,
        end: Register,
        column: Register,
        buffer: int,
    ) -> None:
        """Store the rows below `end` of an accumulator, the first one at (plane, row, column) of the result."""
        k, staging = self.k, self.staging
        warpgroup = warp // WARPS
        base = staging.shared.at(warpgroup * staging.buffers + buffer)
        staging.barrier(warpgroup)  # what was laid out before has been read
        staging.lay(total, base)
        staging.barrier(warpgroup)
        chunks = staging.span // CHUNK  # in a slab's row
        thread = warp % WARPS * 32 + k.lane
        own_row, own_chunk = thread // chunks, thread % chunks
        line = base + own_row * staging.span
        source = swizzle(line, staging.span) ^ (own_chunk * CHUNK)
        plane_at = self.d if isinstance(plane, int) else k.address(self.d, plane, self.plane_stride)
        for first in range(0, ROWS, THREADS // chunks):  # rows; the swizzle repeats every 8
            to_row = row + own_row + first
            to = k.address(k.address(plane_at, to_row, self.stride), column, staging.format.itemsize)
            for slab in range(staging.slabs):
                inside = to_row < end
                at = own_chunk * (CHUNK // staging.format.itemsize) + slab * staging.width
                with k.mask(inside & (column + at < self.columns)):
                    values = k.load_vector(u32, source, 4, offset=slab * ROWS * staging.span + first * staging.span)
                    k.store_vector(k.address(to, at, staging.format.itemsize), values)

    def drain(self, warp: Register) -> None:
        """Nothing is in flight."""


Store = TileStore | RowStore


def _first_thread(k: Builder, warp: Register) -> Register:
    """Holds in one thread of a warpgroup, always the same one."""
    return (warp % WARPS == 0) & (k.lane == 0)
