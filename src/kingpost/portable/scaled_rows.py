"""The end of every cast: a matrix written as the target's e4m3, one float32 scale for each 128 elements of a row.

A block of threads writes a row. Eight lanes share a block of 128 elements, each lane two chunks of 8 that lie 64 apart,
so that neighbouring lanes load neighbouring 16 bytes; the largest magnitude goes round by three shuffles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kingpost.arrays import View
from kingpost.formats import F32
from kingpost.portable.block_scale import Divisor, Rounding, scale_of
from kingpost.portable.rows import WIDTH, row_address, write_codes
from kingpost.portable.views import aligned, check, check_rows, stride
from kingpost.program import Builder, Register, Registers, Target, f32, u64
from kingpost.scaling import BLOCK

LANES = 8  # that share a block
CHUNKS = BLOCK // (LANES * WIDTH)  # of a lane
MOST_WARPS = 8


@dataclass(frozen=True)
class ScaledRows:
    """What of it a program fixes. whole: K is a multiple of 8, rows of data start at multiples of 8 bytes and those of
    the source at multiples of 16."""

    warps: int
    whole: bool
    rounding: Rounding

    @staticmethod
    def of(target: Target, source: View, data: View, scales: View, **rounding: Any) -> ScaledRows:
        """The choice for these arrays; raises if they are not what is wanted. data [..., M, K], scales [..., M,
        ceil(K/128)]. rounding: the options of `Rounding.of`."""
        rows, columns = source.shape[:-1], data.shape[-1]
        check_rows("data", data, [target.float8], (*rows, None))
        check("scales", scales, [F32], (*rows, -(-columns // BLOCK)))
        spans = max(1, -(-columns // (target.lanes // LANES * BLOCK)))
        warps = -(-spans // -(-spans // MOST_WARPS))  # as many as share a row's spans evenly
        whole = columns % WIDTH == 0 and aligned(source, 16) and aligned(data, 8)
        return ScaledRows(warps, whole, Rounding.of(target.float8, **rounding))

    @staticmethod
    def arguments(data: View, scales: View, eps: float = 1e-10, **rounding: Any) -> dict[str, Any]:
        strides = {"data_stride": stride(data, -2), "row_stride": stride(scales, -2)}
        strides["block_stride"] = stride(scales, -1)
        return {"data": data, "scales": scales, "eps": eps, "columns": data.shape[-1], **strides}

    def over(self, k: Builder) -> RowWriter:
        """Declare its parameters, and how many warps a block has."""
        return RowWriter(k, self)


class RowWriter:
    """Writes rows of data and of scales."""

    def __init__(self, k: Builder, rows: ScaledRows) -> None:
        k.warps(rows.warps)
        self.k, self.rows = k, rows
        self.data, self.scales, self.eps = k.parameter("data", u64), k.parameter("scales", u64), k.parameter("eps", f32)
        self.columns, self.data_stride = k.parameter("columns"), k.parameter("data_stride")
        self.row_stride, self.block_stride = k.parameter("row_stride"), k.parameter("block_stride")

    def write(
        self,
        row: Register,
        read: Callable[[list[Register], Register], list[Registers]],
        planes: tuple[Register, Register] | None = None,
    ) -> None:
        """Write a row. read(places, columns): float32 [8] for each place, the row's elements from there on. planes: the
        addresses (u64) of the plane's data and scales, if not the first."""
        k, columns = self.k, self.columns
        data, scales = planes or (self.data, self.scales)
        codes_row = row_address(k, data, row, self.data_stride)
        scales_row = row_address(k, scales, row, self.row_stride)
        span, lane = k.lanes // LANES * BLOCK, k.lane % LANES

        with k.loop(columns, start=k.warp * span, step=self.rows.warps * span) as start:
            block_start = start + k.lane // LANES * BLOCK
            places = [block_start + lane * WIDTH + chunk * LANES * WIDTH for chunk in range(CHUNKS)]
            chunks = read(places, columns)
            low, high = (k.select(p < columns, largest(k, values), 0.0) for p, values in zip(places, chunks))
            scale = scale_of(k, k.reduce("max", k.maximum(low, high), LANES), self.eps, self.rows.rounding)
            divisor = Divisor(k, scale, self.rows.rounding)
            for place, values in zip(places, chunks):
                quotient = divisor.divide(values)
                codes = k.pack_float8(*(quotient[[i, i + 4]] for i in range(4)))
                write_codes(k, codes_row, place, columns, codes, self.rows.whole)
            with k.mask((lane == 0) & (block_start < columns)):
                k.store(row_address(k, scales_row, block_start // BLOCK, self.block_stride), scale)


def largest(k: Builder, values: Registers) -> Register:
    """The largest magnitude of 2^n values, NaN left out."""
    magnitudes = k.emit_portable("abs", values)
    while len(magnitudes) > 1:
        half = len(magnitudes) // 2
        magnitudes = k.maximum(magnitudes[:half], magnitudes[half:])
    return magnitudes[0]
