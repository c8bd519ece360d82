"""d = c + x[0] + x[1] + ..., in that order, each sum rounded to float32: the end of a sum that was taken in slices."""

from __future__ import annotations

from kingpost.arrays import View
from kingpost.formats import BF16, F16, F32, Format
from kingpost.portable.rows import WIDTH, read, row_address, write
from kingpost.portable.views import aligned, check_rows, stride
from kingpost.program import Builder, Launch, Target, f32, kernel, u64

WARPS = 4
AT_ONCE = 8  # slices whose loads are in flight together


def launch(target: Target, x: View, *more: View) -> Launch:
    """x: float32 [S, M, N]; then c, if there is one, of d's format, and d, bfloat16, float16 or float32: [M, N].
    Elements of a row adjacent in all of them."""
    *given, d = more
    slices, rows, columns = x.shape
    check_rows("x", x, [F32], (None, None, None))
    check_rows("d", d, (BF16, F16, F32), (rows, columns))
    for c in given:
        check_rows("c", c, [d.format], (rows, columns))
    whole = columns % WIDTH == 0 and all(aligned(each, 16) for each in (x, *more))
    strides = {"x_plane": stride(x, 0), "x_stride": stride(x, 1), "d_stride": stride(d, 0)}
    views = {"x": x, "d": d}
    if given:
        strides["c_stride"], views["c"] = stride(given[0], 0), given[0]
    program = add_slices(target=target, out=d.format, with_c=bool(given), whole=whole)
    grid = -(-rows * -(-columns // (target.lanes * WIDTH)) // WARPS)
    return Launch.of(program, grid, slices=slices, rows=rows, columns=columns, **strides, **views)


@kernel()
def add_slices(k: Builder, *, out: Format, with_c: bool, whole: bool) -> None:
    """A warp for each row and 8 elements a lane, which are neighbours."""
    k.warps(WARPS)
    slices, rows, columns = k.parameter("slices"), k.parameter("rows"), k.parameter("columns")
    x, plane, x_stride = k.parameter("x", u64), k.parameter("x_plane"), k.parameter("x_stride")
    d, d_stride = k.parameter("d", u64), k.parameter("d_stride")
    spans = k.ceil_div(columns, k.lanes * WIDTH)
    place = k.block * WARPS + k.warp
    row, column = place // spans, place % spans * (k.lanes * WIDTH) + k.lane * WIDTH
    with k.when(row < rows):
        total = k.array(f32, WIDTH, "total")
        if with_c:
            line = row_address(k, k.parameter("c", u64), row, k.parameter("c_stride"))
            k.set(total, read(k, out, line, [column], columns, whole)[0])
        else:
            line = row_address(k, x, row, x_stride)
            k.set(total, read(k, F32, line, [column], columns, whole)[0])
        begin = 0 if with_c else 1
        together = (slices - begin) // AT_ONCE * AT_ONCE + begin
        for count, start, stop in ((AT_ONCE, begin, together), (1, together, slices)):
            with k.loop(stop, start=start, step=count) as index:
                lines = [row_address(k, row_address(k, x, index + i, plane), row, x_stride) for i in range(count)]
                for numbers in [read(k, F32, line, [column], columns, whole)[0] for line in lines]:
                    k.emit_portable("add", total, numbers, into=total)
        with k.mask(column < columns):
            write(k, out, row_address(k, d, row, d_stride), column, columns, total, whole)
