"""Promotion: adding a tensor core's partial sum to the float32 total with its scales, K ascending.

`total = fma(partial, rn32(scale_a * scale_b), total)`: one rounding for the scales' product, one for the sum.
"""

from __future__ import annotations

from kingpost.formats import F32
from kingpost.program import Builder, Register, Registers, f32, u32
from kingpost.targets.nvidia.isa.common import copy_async_4, copy_async_arrive
from kingpost.targets.nvidia.parts.ring import Ring
from kingpost.targets.nvidia.units.wgmma_queue import WARPS


class ScaleRing:
    """The scales of K blocks on their way to the promotion: those of a tile's `rows` rows, and one of its columns.

    One warp copies them, 4 bytes a lane, so that scales may lie at any strides (bytes) in global memory.
    """

    def __init__(self, k: Builder, stages: int, rows: int, readers: int) -> None:
        self.k, self.rows = k, rows
        self.ring = Ring(k, "scales", stages, writers=32, readers=readers)
        self.row_scales = k.shared("row_scales", (stages, rows), F32)
        self.column_scale = k.shared("column_scale", (stages, 4), F32)


class ScaleLoader:
    """The loading side, for a whole warp: from one place in global memory for each row of a tile, and one for columns."""

    def __init__(self, scales: ScaleRing) -> None:
        k = self.k = scales.k
        self.scales, self.producer = scales, scales.ring.producer()
        self.row_offsets = k.array(u32, scales.rows // 32, "row_offset")
        self.column_offset = k.new(u32, name="column_offset")

    def start(self, first_row: Register, last_row: Register, row_stride: Register, column_block: Register,
              column_stride: Register) -> None:  # fmt: skip
        """Point at the first K block of a tile; rows past `last_row` get its scales."""
        k = self.k
        for i, offset in enumerate(self.row_offsets):
            k.set(offset, k.minimum(first_row + k.lane + 32 * i, last_row) * row_stride)
        k.set(self.column_offset, column_block * column_stride)

    def copy(self, row_base: Register, row_block_stride: Register, column_base: Register, column_block_stride: Register) -> None:  # fmt: skip
        """Copy the scales of a K block into the next slot, and point at the following block."""
        k = self.k
        with self.producer.fill() as (slot, full):
            to = k.fused_multiply_add(k.lane, 4, self.scales.row_scales.at(slot))
            for i, offset in enumerate(self.row_offsets):
                copy_async_4(k, to + 128 * i, k.address(row_base, offset))
                offset += row_block_stride
            with k.mask(k.lane == 0):
                copy_async_4(k, self.scales.column_scale.at(slot), k.address(column_base, self.column_offset))
            self.column_offset += column_block_stride
            copy_async_arrive(k, full)


class ScaleReader:
    """The promoting side: a thread's rows are lane/4 and lane/4 + 8 of its warp's 16, in each 64-row subtile."""

    def __init__(self, scales: ScaleRing, warp: Register, subtiles: int) -> None:
        k = self.k = scales.k
        self.scales, self.consumer = scales, scales.ring.consumer()
        self.own = (warp // WARPS * (64 * subtiles) + warp % WARPS * 16 + k.lane // 4) * 4
        self.raw, self.column = k.array(f32, 2 * subtiles, "row_scale"), k.new(f32, name="column_scale")
        self.products = k.array(f32, 2 * subtiles, "scale")

    def read(self) -> None:
        """Wait for the scales of a K block and multiply them: rn32(scale_a * scale_b), in `products`."""
        k = self.k
        slot = self.consumer.wait()
        at = self.scales.row_scales.at(slot) + self.own
        for half, value in enumerate(self.raw):
            k.load(f32, at, offset=4 * (half // 2 * 64 + half % 2 * 8), into=value)
        k.load(f32, self.scales.column_scale.at(slot), into=self.column)
        k.emit_portable("mul", self.raw, self.column, into=self.products)

    def promote(self, total: Registers, partial: Registers, subtile: int) -> None:
        """total += partial * scale, one subtile as one instruction."""
        low, high = 2 * subtile, 2 * subtile + 1
        scales = self.products[[low, low, high, high] * (len(total) // 4)]
        self.k.fused_multiply_add(partial, scales, total, into=total)


