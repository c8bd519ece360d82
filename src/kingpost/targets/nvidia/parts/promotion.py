"""Promotion: adding a tensor core's partial sum to the float32 total with its scales, K ascending.

`total = fma(partial, rn32(scale_a * scale_b), total)`: one rounding for the scales' product, one for the sum.
"""

from __future__ import annotations

from kingpost.formats import F32
from kingpost.program import Builder, Register, Registers, f32, u32
from kingpost.targets.nvidia.isa.common import copy_async_4, copy_async_arrive
from kingpost.targets.nvidia.units.wgmma_queue import WARPS


class StagedScales:
    """The scales of a K block in each slot of a ring: one of each of a tile's `rows` rows, and one of its columns."""

    def __init__(self, k: Builder, stages: int, rows: int) -> None:
        self.k, self.rows = k, rows
        self.of_rows = k.shared("row_scales", (stages, rows), F32)
        self.of_columns = k.shared("column_scale", (stages, 4), F32)


class ScaleCopy:
    """Copies of scales by threads, 4 bytes each, so that scales may lie at any strides (bytes) in global memory.

    base: address of the scale of row (or column block) 0 in K block 0. Used by `lanes` lanes, row i lane, i + 32, ...
    """

    def __init__(self, k: Builder, rows: int, base: Register, row_stride: Register, block_stride: Register) -> None:
        self.k, self.base, self.row_stride, self.block_stride = k, base, row_stride, block_stride
        self.offsets = k.array(u32, max(rows // 32, 1), "scale_offset")

    def start(self, row: Register, last_row: Register | None = None) -> None:
        """Point at K block 0 of `row` and of every 32nd row after it; rows past `last_row` get its scales."""
        k = self.k
        for i, offset in enumerate(self.offsets):
            place = row + 32 * i if i else row
            k.set(offset, (place if last_row is None else k.minimum(place, last_row)) * self.row_stride)

    def copy(self, to: Register, full: Register) -> None:
        """Copy a K block's scales to `to` and every 128 bytes after it, arrive at `full`, point at the next K block."""
        k = self.k
        for i, offset in enumerate(self.offsets):
            copy_async_4(k, to + 128 * i if i else to, k.address(self.base, offset))
            offset += self.block_stride
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
