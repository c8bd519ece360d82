"""Promotion: adding a tensor core's partial sum to the float32 total with its scales, K ascending.

`total = fma(partial, rn32(scale_a * scale_b), total)`: one rounding for the scales' product, one for the sum.
"""

from __future__ import annotations

from kingpost.formats import F32
from kingpost.program import Builder, Register, Registers, f32, u32
from kingpost.targets.nvidia.isa.common import copy_async_4, copy_async_arrive
from kingpost.targets.nvidia.parts.ring import Ring
from kingpost.targets.nvidia.units.wgmma_queue import WARPS


class StagedScales:
    """The scales of a K block in each slot of a ring: one of each of a tile's `rows` rows, and one of its columns."""

    WRITERS = 32  # threads that arrive for them at a slot's full barrier

    def __init__(self, k: Builder, stages: int, rows: int) -> None:
        self.k, self.rows = k, rows
        self.of_rows = k.shared("row_scales", (stages, rows), F32)
        self.of_columns = k.shared("column_scale", (stages, 4), F32)


class ScaleLoader:
    """The loading side, for a whole warp: 4 bytes a lane, so that scales may lie at any strides (bytes)."""

    def __init__(self, scales: StagedScales, ring: Ring) -> None:
        k = self.k = scales.k
        self.scales, self.producer = scales, ring.producer()
        self.row_offsets = k.array(u32, scales.rows // 32, "row_offset")
        self.column_offset = k.new(u32, name="column_offset")

    def start(
        self, first_row: Register, last_row: Register, row_stride: Register, column: Register, column_stride: Register
    ) -> None:
        """Point at the first K block of a tile; rows past `last_row` get its scales. column: in blocks of 128."""
        k = self.k
        for i, offset in enumerate(self.row_offsets):
            k.set(offset, k.minimum(first_row + k.lane + 32 * i, last_row) * row_stride)
        k.set(self.column_offset, column * column_stride)

    def copy(self, rows: Register, row_block_stride: Register, columns: Register, column_block_stride: Register) -> None:
        """Copy the scales of a K block from the arrays at `rows` and `columns`, and point at the following block."""
        k = self.k
        with self.producer.fill() as (slot, full):
            to = k.fused_multiply_add(k.lane, 4, self.scales.of_rows.at(slot))
            for i, offset in enumerate(self.row_offsets):
                copy_async_4(k, to + 128 * i, k.address(rows, offset))
                offset += row_block_stride
            with k.mask(k.lane == 0):
                copy_async_4(k, self.scales.of_columns.at(slot), k.address(columns, self.column_offset))
            self.column_offset += column_block_stride
            copy_async_arrive(k, full)


class Promotion:
    """The promoting side: a thread's rows are lane/4 and lane/4 + 8 of its warp's 16, in each 64-row subtile."""

    def __init__(self, scales: StagedScales, warp: Register, subtiles: int) -> None:
        k = self.k = scales.k
        self.scales = scales
        self.own = (warp // WARPS * (64 * subtiles) + warp % WARPS * 16 + k.lane // 4) * 4
        self.raw, self.column = k.array(f32, 2 * subtiles, "row_scale"), k.new(f32, name="column_scale")
        self.products = k.array(f32, 2 * subtiles, "scale")

    def read(self, slot: Register) -> None:
        """Read the scales of a K block and multiply them: rn32(scale_a * scale_b)."""
        k = self.k
        at = self.scales.of_rows.at(slot) + self.own
        for half, value in enumerate(self.raw):
            k.load(f32, at, offset=4 * (half // 2 * 64 + half % 2 * 8), into=value)
        k.load(f32, self.scales.of_columns.at(slot), into=self.column)
        k.emit_portable("mul", self.raw, self.column, into=self.products)

    def add(self, total: Registers, partial: Registers, subtile: int) -> None:
        """total += partial * scale, one subtile as one instruction."""
        low, high = 2 * subtile, 2 * subtile + 1
        scales = self.products[[low, low, high, high] * (len(total) // 4)]
        self.k.fused_multiply_add(partial, scales, total, into=total)
