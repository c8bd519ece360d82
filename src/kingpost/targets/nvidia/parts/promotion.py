"""Promotion: adding a tensor core's partial sum to the float32 total with its scales, K ascending.

`total = fma(partial, rn32(scale_a * scale_b), total)`: one rounding for the scales' product, one for the sum.
"""

from __future__ import annotations

from kingpost.program import Builder, Register, Registers, f32, u32
from kingpost.targets.nvidia.isa.common import load_constant_f32
from kingpost.targets.nvidia.units.wgmma_queue import WARPS


class RowScales:
    """The scales of a thread's accumulator rows, loaded one K block ahead at any strides.

    A thread holds rows lane/4 and lane/4 + 8 of each 64-row subtile of its warp; `values` are their scales for the K
    block last fetched, [subtile][half]. Strides are bytes; rows past the last read the last row's scales.
    """

    def __init__(self, k: Builder, base: Register, row_stride: Register, block_stride: Register, subtiles: int) -> None:
        self.k, self.base, self.row_stride, self.block_stride = k, base, row_stride, block_stride
        self.offsets = k.array(u32, 2 * subtiles, "row_offset")
        self.values = k.array(f32, 2 * subtiles, "scale_a")

    def start(self, warp: Register, first_row: Register, rows: Register) -> None:
        """Point at the rows of the subtiles that start at `first_row`; `rows` is how many rows exist."""
        k = self.k
        own = first_row + (warp % WARPS) * 16 + k.lane // 4
        for half in range(len(self.offsets)):
            row = k.minimum(own + (half // 2 * 64 + half % 2 * 8), rows - 1)
            self.k.set(self.offsets[half], row * self.row_stride)

    def fetch(self, block: Register) -> None:
        """Load the scales of K block `block`."""
        at = self.k.address(self.base, block * self.block_stride)
        for offset, value in zip(self.offsets, self.values):
            load_constant_f32(self.k, self.k.address(at, offset), into=value)


class BlockScales:
    """The one scale of a tile's 128 columns for a K block, loaded one K block ahead at any strides (bytes)."""

    def __init__(self, k: Builder, base: Register, column_stride: Register, block_stride: Register) -> None:
        self.k, self.base, self.column_stride, self.block_stride = k, base, column_stride, block_stride
        self.offset = k.new(u32, name="column_offset")
        self.value = k.new(f32, name="scale_b")

    def start(self, block_column: Register) -> None:
        self.k.set(self.offset, block_column * self.column_stride)

    def fetch(self, block: Register) -> None:
        at = self.offset + block * self.block_stride
        load_constant_f32(self.k, self.k.address(self.base, at), into=self.value)


def promote(k: Builder, total: Registers, partial: Registers, low: Register, high: Register) -> None:
    """total += partial * scale: `low` for the rows lane/4, `high` for the rows lane/4 + 8 of a 64-row subtile.

    low and high are registers of one array, so that the whole subtile is one instruction.
    """
    pattern = [low.indices[0], low.indices[0], high.indices[0], high.indices[0]] * (len(total) // 4)
    scales = Registers(low.storage, tuple(pattern))
    k.fused_multiply_add(partial, scales, total, into=total)
