"""What users call that is neither a product nor a cast: sums, relayouts. Results are new, in the library of the first
argument and where it is; `device` names where to compute (default: there), `stream` the CUDA stream, as for
`kingpost.mm`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kingpost import arrays, formats, plan, registry, scaling
from kingpost.arrays import View, view
from kingpost.formats import BF16, E4M3, E4M3FNUZ, F32, Format
from kingpost.registry import Device, Elementwise, Operands
from kingpost.scaling import SCALINGS, ScaledTensor

FLOATS = (F32, BF16)
CODES = (E4M3, E4M3FNUZ)
BY_ROW = SCALINGS["1x128"]


def add(x: Any, y: Any, *, device: str | Device | None = None, stream: Any = None) -> Any:
    """x + y, element by element, rounded once. x, y: float32 [N], contiguous."""
    first, second = view(x, "x"), view(y, "y")
    for name, each in (("x", first), ("y", second)):
        check_shape(name, each, "[N]", 1)
        if each.format is not F32:
            raise TypeError(f"{name} is {each.format.name}; float32 is wanted")
        check_rows(name, each)
    if second.shape != first.shape:
        raise ValueError(f"y has shape {list(second.shape)}; {list(first.shape)}, that of x, is wanted")
    with arrays.on_stream(x, stream):
        d = arrays.empty(first.shape, F32, like=x)
    run("vector_add", {"x": first, "y": second}, {"d": view(d)}, {}, device, stream)
    return d


def relayout(scales: Any, layout: str, *, device: str | Device | None = None, stream: Any = None) -> Any:
    """The same scales, float32 [M, B], in another named layout: "row-major", "column-major" or "deepgemm"."""
    source = view(scales, "scales")
    check_shape("scales", source, "[M, B]", 2)
    if source.format is not F32:
        raise TypeError(f"scales are {source.format.name}; float32 is wanted")
    with arrays.on_stream(scales, stream):
        moved = scaling.empty_scales(source.shape, layout, like=scales)
    run("relayout", {"source": source}, {"destination": view(moved)}, {}, device, stream)
    return moved


def dequantize(t: ScaledTensor, *, out_dtype: Any = F32, device: str | Device | None = None, stream: Any = None) -> Any:
    """`kingpost.dequantize(t)` on a device: code times scale in float32, rounded to `out_dtype`, float32 or bfloat16.

    t: [M, K] scaled "1x128", rows contiguous, e4m3, or e4m3fnuz where that is the device's.
    """
    scaling.check_scaled(t, "t")
    data, scales = view(t.data, "t.data"), view(t.scales, "t.scales")
    check_shape("t", data, "[M, K]", 2)
    if t.scaling != BY_ROW:
        raise ValueError(f"t is scaled {str(t.scaling)!r}; {str(BY_ROW)!r} is wanted")
    check_codes("t", data.format)
    check_rows("t.data", data)
    format = formats.named(out_dtype)
    if format not in FLOATS:
        raise ValueError(f"out_dtype is {format.name}; {names(FLOATS)} is wanted")
    with arrays.on_stream(t.data, stream):
        d = arrays.empty(data.shape, format, like=t.data)
    run("dequantise", {"data": data, "scales": scales}, {"d": view(d)}, {}, device, stream)
    return d


def run(
    op: str,
    given: dict[str, View],
    results: dict[str, View],
    options: dict[str, float],
    device: str | Device | None,
    stream: Any,
) -> None:
    """Find the device, check that what is given lies in one place, and solve the problem there."""
    first, *others = given.items()
    for name, other in others:
        if other.device != first[1].device:
            raise ValueError(f"{name} is on {other.device}; {first[1].device}, where {first[0]} is, is wanted")
    chosen = registry.find(first[1].device if device is None else device)
    handle = chosen.stream(stream, not isinstance(first[1].owner, np.ndarray))
    operands = Operands(given | results, tuple(results), first[1].shape[0])
    if any(0 in each.shape for each in operands.views.values()):
        return
    described = tuple((name, each.format) for name, each in operands.views.items())
    plan.run(Elementwise(op, described, tuple(options.items())), operands, chosen, handle)


def check_shape(name: str, array: View, wanted: str, dimensions: int) -> None:
    if len(array.shape) != dimensions:
        raise ValueError(f"{name} has shape {list(array.shape)}; {wanted} is wanted")


def check_rows(name: str, array: View) -> None:
    if 0 not in array.shape and not array.adjacent(-1):
        raise ValueError(f"{name} has strides {array.strides} bytes; contiguous rows are wanted")


def check_float(name: str, array: View) -> None:
    if array.format not in FLOATS:
        raise TypeError(f"{name} is {array.format.name}; {names(FLOATS)} is wanted")


def check_codes(name: str, format: Format) -> None:
    if format not in CODES:
        raise ValueError(f"{name} is {format.name}; {names(CODES)} is wanted")


def names(choice: Iterable[Format]) -> str:
    return " or ".join(format.name for format in choice)
