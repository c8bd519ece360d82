"""d [M, K] = code times the scale of its block: the target's e4m3 scaled "1x128" or "128x128" to float32 or bfloat16.

A block of threads takes a row, each thread 8 neighbouring elements at a time.
"""

from __future__ import annotations

from kingpost.arrays import View
from kingpost.formats import BF16, F32, Format
from kingpost.portable.rows import WIDTH, read_codes, row_address, write
from kingpost.portable.views import aligned, check, check_rows, stride
from kingpost.program import Builder, Launch, Target, f32, kernel, u64
from kingpost.scaling import BLOCK

WARPS = 4


def launch(target: Target, data: View, scales: View, d: View, *, rows_per_scale: int = 1) -> Launch:
    """data: the target's e4m3 [M, K], scales: float32 [ceil(M / rows_per_scale), ceil(K/128)], any strides; d: float32,
    or bfloat16 by way of float32, [M, K]; rows of data and d contiguous. rows_per_scale: 1, or 128 for "128x128"."""
    check_rows("data", data, [target.float8], (None, None))
    rows, columns = data.shape
    if rows_per_scale not in (1, BLOCK):
        raise ValueError(f"rows_per_scale is {rows_per_scale}; 1 or {BLOCK} is wanted")
    check("scales", scales, [F32], (-(-rows // rows_per_scale), -(-columns // BLOCK)))
    check_rows("d", d, [F32, BF16], (rows, columns))
    whole = columns % WIDTH == 0 and aligned(data, WIDTH) and aligned(d, 16)
    program = dequantise(target=target, out=d.format, whole=whole, rows_per_scale=rows_per_scale)
    strides = {"data_stride": stride(data, 0), "d_stride": stride(d, 0)}
    strides |= {"row_stride": stride(scales, 0), "block_stride": stride(scales, 1)}
    return Launch.of(program, rows, data=data, scales=scales, d=d, columns=columns, **strides)


@kernel()
def dequantise(k: Builder, *, out: Format, whole: bool, rows_per_scale: int) -> None:
    """whole: K is a multiple of 8, and rows start at multiples of 8 (data) and 16 bytes (d)."""
    k.warps(WARPS)
    columns, scales, block_stride = k.parameter("columns"), k.parameter("scales", u64), k.parameter("block_stride")
    codes_row = row_address(k, k.parameter("data", u64), k.block, k.parameter("data_stride"))
    d_row = row_address(k, k.parameter("d", u64), k.block, k.parameter("d_stride"))
    scales_row = row_address(k, scales, k.block // rows_per_scale, k.parameter("row_stride"))
    span = k.lanes * WIDTH
    with k.loop(columns, start=k.warp * span, step=WARPS * span) as start:
        column = start + k.lane * WIDTH
        with k.mask(column < columns):
            scale = k.load(f32, row_address(k, scales_row, column // BLOCK, block_stride))
            values = read_codes(k, codes_row, column, columns, whole) * scale
            write(k, out, d_row, column, columns, values, whole)
