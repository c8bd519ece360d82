"""From checked operands to a problem, and from there to a run on a device: what every product ends with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kingpost import arrays, plan
from kingpost.arrays import View, view
from kingpost.formats import U8, Format
from kingpost.ops.operands import Operand
from kingpost.registry import Device, Elementwise, Operands, Problem

TRANSPOSE = Elementwise("transpose", (("source", U8), ("destination", U8)))


def problem(
    op: str,
    a: Operand,
    b: Operand,
    out_format: Format,
    more: dict[str, View],
    alpha: float | None,
    order: str,
    by: str | None = None,
    groups: int = 1,
) -> Problem:
    """The problem of a and b, and of c and bias if they are among `more`."""
    return Problem(
        op,
        b.data.shape[-2],
        a.data.shape[-1],
        a.data.format,
        b.data.format,
        a.scaling,
        b.scaling,
        out_format,
        order,
        by,
        groups,
        a.major,
        b.major,
        "c" in more,
        more["bias"].format if "bias" in more else None,
        alpha is not None,
    )


def gathered(a: Operand, b: Operand, more: dict[str, View], d: View, rows: int, alpha: float | None) -> Operands:
    """The operands of a call, in their order."""
    numbers = (("alpha", alpha),) if alpha is not None else ()
    return Operands({**a.views, **b.views, **more, "d": d}, ("d",), rows, numbers)


def solve(asked: Problem, operands: Operands, device: Device, stream: int) -> None:
    """Run a problem. With order "fast" a device may have another order of sums; the ascending one serves where it has
    none."""
    if asked.order == "fast" and not plan.supported(asked, device):
        asked = replace(asked, order="ascending")
    plan.run(asked, operands, device, stream)


def k_major(x: Operand, device: Device, stream: int, given_stream: Any) -> Operand:
    """x, if its codes of 8 bits lie with M or N contiguous, with a copy of them that has K contiguous: memory from the
    caller's allocator, written by a pass of the device's own. bfloat16 stays as it is."""
    if x.scaling is None or x.major == "k":
        return x
    with arrays.on_stream(x.array, given_stream):
        copy = arrays.empty(x.data.shape, x.data.format, like=x.array)
    moved = view(copy)
    for source, destination in zip(_planes(x.data), _planes(moved)):
        lines = replace(source.T, format=U8)
        views = {"source": lines, "destination": replace(destination, format=U8)}
        plan.run(TRANSPOSE, Operands(views, ("destination",), lines.shape[0]), device, stream)
    return replace(x, array=copy, data=moved, major="k")


def _planes(x: View) -> list[View]:
    """The matrices of two or three dimensions."""
    if len(x.shape) == 2:
        return [x]
    return [
        replace(x, pointer=x.pointer + plane * x.strides[0], shape=x.shape[1:], strides=x.strides[1:])
        for plane in range(x.shape[0])
    ]
