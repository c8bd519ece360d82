"""x [M, K] to the target's e4m3 with a float32 scale for every 128 x 128, as `kingpost.quantize` does for weights.

A block of threads takes a block of numbers and keeps it in registers between its largest magnitude and its codes.
"""

from __future__ import annotations

from typing import Any

from kingpost.arrays import View
from kingpost.formats import BF16, F32, Format
from kingpost.portable.block_scale import Divisor, Rounding, scale_of
from kingpost.portable.rows import WIDTH, read, row_address, write_codes
from kingpost.portable.scaled_rows import largest
from kingpost.portable.views import aligned, check, check_rows, stride
from kingpost.program import Builder, Launch, Register, Target, f32, kernel, u64
from kingpost.scaling import BLOCK

THREADS = 256
CHUNKS = BLOCK // WIDTH  # of a row of a block


def launch(target: Target, x: View, data: View, scales: View, **rounding: Any) -> Launch:
    """x: bfloat16 or float32 [M, K], elements of a row adjacent; data: the target's e4m3 [M, K], likewise; scales:
    float32 [ceil(M/128), ceil(K/128)], any strides. rounding: the options of `Rounding.of`. Of NaN and infinity as
    `cast`."""
    rows, columns = x.shape
    down, across = -(-rows // BLOCK), -(-columns // BLOCK)
    check_rows("x", x, (BF16, F32), (None, None))
    check_rows("data", data, [target.float8], (rows, columns))
    check("scales", scales, [F32], (down, across))
    whole = columns % WIDTH == 0 and aligned(x, 16) and aligned(data, 8)
    program = block_cast(target=target, source=x.format, whole=whole, rounding=Rounding.of(target.float8, **rounding))
    strides = {"x_stride": stride(x, 0), "data_stride": stride(data, 0)}
    strides |= {"row_stride": stride(scales, 0), "block_stride": stride(scales, 1)}
    sizes = {"rows": rows, "columns": columns, "eps": rounding.get("eps", 1e-10)}
    return Launch.of(program, down * across, x=x, data=data, scales=scales, **sizes, **strides)


@kernel()
def block_cast(k: Builder, *, source: Format, whole: bool, rounding: Rounding) -> None:
    """source: the format of x. whole: rows are read and written 8 elements at a time."""
    warps = THREADS // k.lanes
    k.warps(warps)
    rows, columns, eps = k.parameter("rows"), k.parameter("columns"), k.parameter("eps", f32)
    x, data, scales = k.parameter("x", u64), k.parameter("data", u64), k.parameter("scales", u64)
    x_stride, data_stride = k.parameter("x_stride"), k.parameter("data_stride")
    across = k.ceil_div(columns, BLOCK)
    down, right = k.block // across, k.block % across
    column = right * BLOCK + k.thread % CHUNKS * WIDTH
    own_rows = [down * BLOCK + (k.thread // CHUNKS + start) for start in range(0, BLOCK, THREADS // CHUNKS)]

    values, most = [], k.new(f32, 0.0, "largest")
    for row in own_rows:
        line = row_address(k, x, k.minimum(row, rows - 1), x_stride)
        (numbers,) = read(k, source, line, [column], columns, whole)
        values.append(numbers)
        k.select((row < rows) & (column < columns), k.maximum(most, largest(k, numbers)), most, into=most)
    scale = scale_of(k, _of_block(k, most, warps), eps, rounding)
    divisor = Divisor(k, scale, rounding)
    for row, numbers in zip(own_rows, values):
        quotient = divisor.divide(numbers)
        codes = k.pack_float8(*(quotient[[i, i + 4]] for i in range(4)))
        with k.mask(row < rows):
            write_codes(k, row_address(k, data, row, data_stride), column, columns, codes, whole)
    with k.mask(k.thread == 0):
        at = row_address(k, row_address(k, scales, down, k.parameter("row_stride")), right, k.parameter("block_stride"))
        k.store(at, scale)


def _of_block(k: Builder, value: Register, warps: int) -> Register:
    """The largest `value` of all threads of the block, in every one."""
    of_warps = k.shared("largest_of_warps", (warps,), F32)
    mine = k.reduce("max", value)
    with k.mask(k.lane == 0):
        k.store(of_warps.at(k.warp), mine)
    k.barrier()
    found = k.load(f32, of_warps.at(0))
    for warp in range(1, warps):
        found = k.maximum(found, k.load(f32, of_warps.at(warp)))
    return found
