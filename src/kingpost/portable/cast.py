"""x [M, K] to the target's e4m3 with a float32 scale for every 128 elements of a row, as `kingpost.quantize` does."""

from __future__ import annotations

from typing import Any

from kingpost.arrays import View
from kingpost.formats import BF16, F32, Format
from kingpost.portable import block_cast
from kingpost.portable.rows import read, row_address
from kingpost.portable.scaled_rows import ScaledRows
from kingpost.portable.views import check_rows, stride
from kingpost.program import Builder, Launch, Target, kernel, u64


def launch(target: Target, x: View, data: View, scales: View, *, scaling: str = "1x128", **rounding: Any) -> Launch:
    """x: bfloat16 or float32 [M, K], elements of a row adjacent; data: the target's e4m3 [M, K], likewise; scales:
    float32 [M, ceil(K/128)], any strides, or of scaling "128x128" [ceil(M/128), ceil(K/128)]. A scale is max(largest
    magnitude, eps) over e4m3's largest number. rounding: the options of `Rounding.of`.

    A NaN becomes a NaN code, and the others of its block are scaled without it. An infinity makes the scale of its
    block infinite (2^127 with power_of_two).
    """
    if scaling == "128x128":
        return block_cast.launch(target, x, data, scales, **rounding)
    check_rows("x", x, (BF16, F32), (None, data.shape[-1]))
    rows = ScaledRows.of(target, x, data, scales, **rounding)
    program = cast(target=target, source=x.format, rows=rows)
    return Launch.of(program, x.shape[0], x=x, x_stride=stride(x, 0), **rows.arguments(data, scales, **rounding))


@kernel()
def cast(k: Builder, *, source: Format, rows: ScaledRows) -> None:
    """source: the format of x."""
    x = row_address(k, k.parameter("x", u64), k.block, k.parameter("x_stride"))
    rows.over(k).write(k.block, lambda places, columns: read(k, source, x, places, columns, rows.whole))
