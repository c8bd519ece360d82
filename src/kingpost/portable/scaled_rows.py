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
    def of(target: Target, source: View, data: View, scales: View, eps: float, power_of_two: bool) -> ScaledRows:
        """The choice for these arrays; raises if they are not what is wanted. data [M, K], scales [M, ceil(K/128)]."""
        (rows, _), columns = source.shape, data.shape[-1]
        check_rows("data", data, [target.float8], (rows, None))
        check("scales", scales, [F32], (rows, -(-columns // BLOCK)))
        spans = max(1, -(-columns // (target.lanes // LANES * BLOCK)))
        warps = -(-spans // -(-spans // MOST_WARPS))  # as many as share a row's spans evenly
        whole = columns % WIDTH == 0 and aligned(source, 16) and aligned(data, 8)
        return ScaledRows(warps, whole, Rounding.of(eps, power_of_two, target.float8))

    @staticmethod
    def arguments(data: View, scales: View, eps: float) -> dict[str, Any]:
        strides = {"data_stride": stride(data, 0), "row_stride": stride(scales, 0), "block_stride": stride(scales, 1)}
        return {"data": data, "scales": scales, "eps": eps, "columns": data.shape[1], **strides}

    def write(self, k: Builder, read: Callable[[list[Register], Register], list[Registers]]) -> None:
        """Write row `k.block`. read(places, columns): float32 [8] for each place, the row's elements from there on."""
        k.warps(self.warps)
        data, scales, eps = k.parameter("data", u64), k.parameter("scales", u64), k.parameter("eps", f32)
        columns, data_stride = k.parameter("columns"), k.parameter("data_stride")
        row_stride, block_stride = k.parameter("row_stride"), k.parameter("block_stride")
        codes_row = row_address(k, data, k.block, data_stride)
        scales_row = row_address(k, scales, k.block, row_stride)
        span, lane = k.lanes // LANES * BLOCK, k.lane % LANES

        with k.loop(columns, start=k.warp * span, step=self.warps * span) as start:
            block_start = start + k.lane // LANES * BLOCK
            places = [block_start + lane * WIDTH + chunk * LANES * WIDTH for chunk in range(CHUNKS)]
            chunks = read(places, columns)
            low, high = (k.select(p < columns, _largest(k, values), 0.0) for p, values in zip(places, chunks))
            scale = scale_of(k, k.reduce("max", k.maximum(low, high), LANES), eps, self.rounding)
            divisor = Divisor(k, scale, self.rounding)
            for place, values in zip(places, chunks):
                quotient = divisor.divide(values)
                codes = k.pack_float8(*(quotient[[i, i + 4]] for i in range(4)))
                write_codes(k, codes_row, place, columns, codes, self.whole)
            with k.mask((lane == 0) & (block_start < columns)):
                k.store(row_address(k, scales_row, block_start // BLOCK, block_stride), scale)


def _largest(k: Builder, values: Registers) -> Register:
    """The largest magnitude of 2^n values, NaN left out."""
    magnitudes = k.emit_portable("abs", values)
    while len(magnitudes) > 1:
        half = len(magnitudes) // 2
        magnitudes = k.maximum(magnitudes[:half], magnitudes[half:])
    return magnitudes[0]
