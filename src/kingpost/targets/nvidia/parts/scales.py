"""The scales of a K block on their way into the slots of a ring, and the promotion of partial sums with them.

`total = fma(partial, rn32(scale_a * scale_b), total)`, K ascending: one rounding for the scales' product, one for the
sum.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from kingpost.formats import F32
from kingpost.program import Builder, Operand, Register, Registers, f32, u32, u64
from kingpost.targets.nvidia.isa.common import copy_async_4, copy_async_arrive, mbarrier_arrive
from kingpost.targets.nvidia.parts.block_tile import WARPS, BlockTile
from kingpost.targets.nvidia.parts.work import Item

LANES = 32
SCALED_COLUMNS = 128  # of b that share a scale in "128x128"
STEPS = 4  # of 32 in a K block of 128


@dataclass(frozen=True)
class Scales:
    """How a and b are scaled. Read at any strides, "row" and "tensor" are one scale for every K block.

    by_column: each of b's columns has its scale ("1x128", "row"), or 128 share one ("128x128", "tensor"), which a tile
    of a divisor of 128 columns has one of. steps: scales are ue8m0, one for 32 of K ("1x32:ue8m0").
    """

    by_column: bool
    steps: bool = False

    def check(self, tile: BlockTile) -> None:
        if not self.by_column and SCALED_COLUMNS % tile.columns:
            raise ValueError(f"columns is {tile.columns}; a divisor of {SCALED_COLUMNS} is wanted, for one scale of b")
        if tile.subtiles > 1 and self.by_column:
            raise ValueError(f"{tile.subtiles} subtiles; one is wanted for scales by column, for want of registers")
        if self.steps and not self.by_column:
            raise ValueError("scales by steps and by blocks of columns; by column is wanted")

    def stage(self, k: Builder, stages: int, tile: BlockTile) -> StagedScales:
        """Declare shared memory and parameters."""
        rows = SlotScales(k, "scale_a", stages, tile.rows, self.steps)
        columns = SlotScales(k, "scale_b", stages, tile.columns if self.by_column else 1, self.steps)
        return StagedScales(self, k, tile, rows, columns)


class SlotScales:
    """One operand's scales in the slots of a ring, float32, `count` for each of a K block's parts along K.

    Parameters: `name`, the address of the first scale, and its strides in bytes, from plane to plane, row to row (of b:
    column, or block of columns), and along K.
    """

    def __init__(self, k: Builder, name: str, stages: int, count: int, steps: bool) -> None:
        self.k, self.count, self.steps = k, count, steps
        self.shared = k.shared(f"{name}s", (stages, STEPS * count if steps else max(count, 4)), F32)
        self.address = k.parameter(name, u64)
        self.plane_stride, self.stride = k.parameter(f"{name}_plane_stride"), k.parameter(f"{name}_stride")
        self.block_stride = k.parameter(f"{name}_block_stride")
        if steps:
            self.blocks = k.parameter(f"{name}_blocks")


class Copies:
    """The copying side, a lane's part: scale `lane` of a slot and every 32nd after it.

    float32 scales are copied asynchronously, 4 bytes at a time, so that they may lie at any strides. ue8m0 codes are
    loaded and stored as float32.
    """

    def __init__(self, scales: SlotScales) -> None:
        k = self.k = scales.k
        self.scales = scales
        self.base = k.new(u64, name="scales")
        self.offsets = k.array(u32, -(-scales.count // LANES), "scale_offset")
        self.block = k.new(u32, name="scale_block")

    def start(self, plane: Operand, first: Register, last: Register, block: Operand) -> None:
        """Point at K block `block` of rows `first`, first + 1, ...; rows past `last` get its scales."""
        k, scales = self.k, self.scales
        k.set(self.base, scales.address)
        if not isinstance(plane, int):
            k.set(self.base, k.address(scales.address, plane, scales.plane_stride))
        for i, offset in enumerate(self.offsets):
            place = k.minimum(first + (k.lane + LANES * i), last) if scales.count > 1 else first
            k.set(offset, place * scales.stride)
            if not isinstance(block, int):
                offset += block * scales.block_stride
        k.set(self.block, 0)

    def copy(self, slot: Register) -> None:
        """Copy a K block's scales to a slot; point at the next K block."""
        if self.scales.steps:
            self._convert(slot)
        else:
            self._copy(slot)

    def _copy(self, slot: Register) -> None:
        k, scales = self.k, self.scales
        to = scales.shared.at(slot)
        if scales.count == 1:
            with k.mask(k.lane == 0):
                copy_async_4(k, to, k.address(self.base, self.offsets[0]))
        else:
            to = to + k.lane * 4
            for i, offset in enumerate(self.offsets):
                left = scales.count - LANES * i
                with k.mask(k.lane < left) if left < LANES else nullcontext():
                    copy_async_4(k, to + 4 * LANES * i if i else to, k.address(self.base, offset))
        self.offsets += scales.block_stride

    def _convert(self, slot: Register) -> None:
        """Behind the last scale along K, where operands are zero, it is read again."""
        k, scales = self.k, self.scales
        codes = []
        for step in range(STEPS):
            along = k.minimum(self.block + step, scales.blocks - 1) * scales.block_stride
            codes.append([k.load_narrow(8, k.address(self.base, offset + along)) for offset in self.offsets])
        to = scales.shared.at(slot) + k.lane * 4
        for step, row in enumerate(codes):
            for i, code in enumerate(row):
                bits = k.select(code == 0, 1 << 22, k.select(code == 0xFF, 0x7FFFFFFF, code << 23))
                with k.mask(k.lane + LANES * i < scales.count):
                    k.store(to, bits, offset=4 * (step * scales.count + LANES * i))
        self.block += STEPS


@dataclass(frozen=True)
class StagedScales:
    """The scales of a tile's rows and columns, filled into the slots of a ring by the lanes of one warp."""

    scales: Scales
    k: Builder
    tile: BlockTile
    rows: SlotScales
    columns: SlotScales
    writers = LANES

    def filler(self, last_column: Register) -> Filler:
        return Filler(self, last_column)

    def promotion(self, warp: Register) -> Promotion:
        return ColumnPromotion(self, warp) if self.scales.by_column else BlockPromotion(self, warp)


class Filler:
    """The copying side: one warp, item after item."""

    def __init__(self, staged: StagedScales, last_column: Register) -> None:
        self.staged, self.last_column = staged, last_column
        self.rows, self.columns = Copies(staged.rows), Copies(staged.columns)

    def start(self, item: Item) -> None:
        """Point at an item's first K block."""
        self.rows.start(item.plane_a, item.row, item.end - 1, item.block)
        column = item.column if self.staged.scales.by_column else item.column // SCALED_COLUMNS
        self.columns.start(item.plane_b, column, self.last_column, item.block)

    def copy(self, slot: Register, full: Register) -> None:
        """Copy a K block's scales to a slot, and arrive at its barrier when they are there."""
        self.rows.copy(slot)
        self.columns.copy(slot)
        (mbarrier_arrive if self.staged.scales.steps else copy_async_arrive)(self.staged.k, full)


class Promotion:
    """The promoting side: a thread's rows are lane/4 and lane/4 + 8 of its warp's 16, in each 64-row subtile."""

    def __init__(self, staged: StagedScales, warp: Register) -> None:
        k = self.k = staged.k
        self.rows, self.columns = staged.rows, staged.columns
        self.own = (warp // WARPS * (64 * staged.tile.subtiles) + warp % WARPS * 16 + k.lane // 4) * 4
        self.of_rows = k.array(f32, 2 * staged.tile.subtiles, "row_scale")

    def read(self, slot: Register, step: int = 0) -> None:
        """Read the scales of a K block, or of one step of it."""
        at = self.rows.shared.at(slot) + self.own
        for half, value in enumerate(self.of_rows):
            offset = 4 * (step * self.rows.count + half // 2 * 64 + half % 2 * 8)
            self.k.load(f32, at, offset=offset, into=value)

    def add(self, total: Registers, partial: Registers, subtile: int) -> None:
        """total += partial * scales."""
        self.k.fused_multiply_add(partial, self.products(subtile, len(total)), total, into=total)

    def products(self, subtile: int, size: int) -> Registers:
        """rn32(scale_a * scale_b) for each value of an accumulator: rows low, low, high, high of every 8 columns."""
        raise NotImplementedError


class BlockPromotion(Promotion):
    """One scale for all columns: a product of scales for each row."""

    def __init__(self, staged: StagedScales, warp: Register) -> None:
        super().__init__(staged, warp)
        self.of_column = self.k.new(f32, name="column_scale")
        self.multiplied = self.k.array(f32, len(self.of_rows), "scale")

    def read(self, slot: Register, step: int = 0) -> None:
        super().read(slot, step)
        k = self.k
        k.load(f32, self.columns.shared.at(slot), into=self.of_column)
        k.emit_portable("mul", self.of_rows, self.of_column, into=self.multiplied)

    def products(self, subtile: int, size: int) -> Registers:
        low, high = 2 * subtile, 2 * subtile + 1
        return self.multiplied[[low, low, high, high] * (size // 4)]


class ColumnPromotion(Promotion):
    """A scale for each column: a thread has columns 2 (lane mod 4) and the next of each 8. The products of scales are
    made when these are read, while the products of the operands are in flight."""

    def __init__(self, staged: StagedScales, warp: Register) -> None:
        super().__init__(staged, warp)
        self.own_columns = self.k.lane % 4 * 8
        self.multiplied = self.k.array(f32, staged.tile.columns // 2, "scale")

    def read(self, slot: Register, step: int = 0) -> None:
        super().read(slot, step)
        k = self.k
        at, first = self.columns.shared.at(slot) + self.own_columns, 4 * step * self.columns.count
        for group in range(self.columns.count // 8):
            pair = k.load_vector(f32, at, 2, offset=first + 32 * group)
            for half in (0, 1):
                into = self.multiplied[4 * group + 2 * half : 4 * group + 2 * half + 2]
                k.emit_portable("mul", self.of_rows[half], pair, into=into)

    def products(self, subtile: int, size: int) -> Registers:
        return self.multiplied
