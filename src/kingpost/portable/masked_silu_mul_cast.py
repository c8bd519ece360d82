"""silu(gate) * up in float32, then the cast, of each group's first rows: x [G, M, 2 K] to e4m3 [G, M, K], "1x128"."""

from __future__ import annotations

from typing import Any

from kingpost.arrays import View
from kingpost.formats import BF16, F32, I32, Format
from kingpost.portable.rows import row_address
from kingpost.portable.scaled_rows import ScaledRows
from kingpost.portable.silu_mul_cast import gated
from kingpost.portable.views import check_rows, stride
from kingpost.program import Builder, Launch, Target, kernel, u32, u64

MOST_BLOCKS = 64  # that share a group's rows


def launch(target: Target, x: View, counts: View, data: View, scales: View, **rounding: Any) -> Launch:
    """x: bfloat16 or float32 [G, M, 2 K]; counts: int32 [G], of the first counts[g] rows of x[g] the cast is written,
    the others are not touched; data [G, M, K], scales [G, M, ceil(K/128)] and rounding as for `silu_mul_cast`."""
    groups, m, columns = data.shape
    check_rows("x", x, (BF16, F32), (groups, m, 2 * columns))
    check_rows("counts", counts, [I32], (groups,))
    rows = ScaledRows.of(target, x, data, scales, **rounding)
    blocks = min(m, MOST_BLOCKS)
    planes = {f"{name}_plane": stride(each, 0) for name, each in (("x", x), ("data", data), ("scales", scales))}
    program = masked_silu_mul_cast(target=target, source=x.format, rows=rows)
    sizes = {"x_stride": stride(x, 1), "most": m, "blocks": blocks, "up": columns * x.format.itemsize}
    given = {**planes, **sizes, **rows.arguments(data, scales, **rounding)}
    return Launch.of(program, groups * blocks, x=x, counts=counts, **given)


@kernel()
def masked_silu_mul_cast(k: Builder, *, source: Format, rows: ScaledRows) -> None:
    """source: the format of x. Block b of a group's `blocks` takes rows b, b + blocks, ..."""
    writer = rows.over(k)
    x, counts, x_stride = k.parameter("x", u64), k.parameter("counts", u64), k.parameter("x_stride")
    blocks, most, up_offset = k.parameter("blocks"), k.parameter("most"), k.parameter("up")
    group, first = k.block // blocks, k.block % blocks
    gates = k.address(x, group, k.parameter("x_plane"))
    planes = (
        k.address(writer.data, group, k.parameter("data_plane")),
        k.address(writer.scales, group, k.parameter("scales_plane")),
    )
    count = k.minimum(k.load(u32, k.address(counts, group, 4)), most)
    with k.loop(count, start=first, step=blocks) as row:
        gate = row_address(k, gates, row, x_stride)
        writer.write(row, gated(k, source, gate, k.address(gate, up_offset), rows.whole), planes)
