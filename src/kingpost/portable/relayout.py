"""Float32 scales [M, B] from any strides to any strides, bits untouched: lanes take rows, warps columns."""

from __future__ import annotations

from kingpost.arrays import View
from kingpost.formats import F32
from kingpost.portable.rows import row_address
from kingpost.portable.views import check, stride
from kingpost.program import Builder, Launch, Target, kernel, u32, u64

WARPS = 8


def launch(target: Target, source: View, destination: View) -> Launch:
    """source, destination: float32 [M, B], any strides; what lies between their elements is not touched."""
    check("source", source, [F32], (None, None))
    check("destination", destination, [F32], source.shape)
    arrays = {"source": source, "destination": destination}
    strides = {f"{name}_stride{i}": stride(array, i) for name, array in arrays.items() for i in (0, 1)}
    rows, columns = source.shape
    grid = -(-rows // target.lanes)
    return Launch.of(relayout(target=target), grid, rows=rows, columns=columns, **arrays, **strides)


@kernel()
def relayout(k: Builder) -> None:
    k.warps(WARPS)
    rows, columns = k.parameter("rows"), k.parameter("columns")
    row = k.block * k.lanes + k.lane
    starts, steps = [], []
    for name in ("source", "destination"):
        starts.append(row_address(k, k.parameter(name, u64), row, k.parameter(f"{name}_stride0")))
        steps.append(k.parameter(f"{name}_stride1"))
    with k.mask(row < rows), k.loop(columns, start=k.warp, step=WARPS) as column:
        source, destination = (row_address(k, start, column, step) for start, step in zip(starts, steps))
        k.store(destination, k.load(u32, source))
