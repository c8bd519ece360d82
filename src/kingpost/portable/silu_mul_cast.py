"""silu(gate) * up in float32, then the cast: x [M, 2 K], gate | up side by side, to e4m3 [M, K] scaled "1x128"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kingpost.arrays import View
from kingpost.formats import BF16, F32, Format
from kingpost.portable.exponential import silu
from kingpost.portable.rows import read, row_address
from kingpost.portable.scaled_rows import ScaledRows
from kingpost.portable.views import check_rows, stride
from kingpost.program import Builder, Launch, Register, Registers, Target, kernel, u64


def launch(target: Target, x: View, data: View, scales: View, **rounding: Any) -> Launch:
    """x: bfloat16 or float32 [M, 2 K], elements of a row adjacent; data, scales and rounding, and what becomes of NaN
    and infinity: as for the cast of silu(gate) * up (`exponential.silu`, times up rounded once)."""
    check_rows("x", x, (BF16, F32), (None, 2 * data.shape[-1]))
    rows = ScaledRows.of(target, x, data, scales, **rounding)
    program = silu_mul_cast(target=target, source=x.format, rows=rows)
    up_offset = data.shape[1] * x.format.itemsize
    given = rows.arguments(data, scales, **rounding)
    return Launch.of(program, x.shape[0], x=x, x_stride=stride(x, 0), up_offset=up_offset, **given)


@kernel()
def silu_mul_cast(k: Builder, *, source: Format, rows: ScaledRows) -> None:
    """source: the format of x."""
    gate = row_address(k, k.parameter("x", u64), k.block, k.parameter("x_stride"))
    up = k.address(gate, k.parameter("up_offset"))
    rows.over(k).write(k.block, gated(k, source, gate, up, rows.whole))


def gated(
    k: Builder, source: Format, gate: Register, up: Register, whole: bool
) -> Callable[[list[Register], Register], list[Registers]]:
    """Reads silu(gate) * up from the addresses of a row's two halves."""

    def product(places: list[Register], columns: Register) -> list[Registers]:
        gates, ups = (read(k, source, row, places, columns, whole) for row in (gate, up))
        return [silu(k, g) * u for g, u in zip(gates, ups)]

    return product
