"""The dense product of two scaled tensors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from kingpost import arrays, formats, plan, registry, scaling
from kingpost.arrays import View, view
from kingpost.formats import BF16, F32, Format
from kingpost.registry import Device, Operands, Problem, product_operands
from kingpost.scaling import ScaledTensor

OUT_FORMATS = (BF16, F32)
N_GRID, K_GRID = 8, 16  # the copy engines' 16-byte rows of bfloat16 results and of fp8 operands


def mm(
    a: ScaledTensor,
    b: ScaledTensor,
    out: Any = None,
    out_dtype: Any = None,
    device: str | Device | None = None,
    stream: Any = None,
) -> Any:
    """The product a @ b of scaled tensors: a [M, K], b [K, N]; [M, N], in the library and on the device of `a`.

    a, b: K contiguous in memory; a weight kept as w [N, K] is passed as `w.T`. N a multiple of 8, K of 16. Scales in
    any strides. out: written and returned if given; [M, N], rows contiguous and multiples of 16 bytes apart.
    out_dtype: "bfloat16" (default, or that of `out`) or "float32". device: where to compute; default, where `a` is; a
    GPU works on arrays of the host too, copying them there and back. stream: a CUDA stream (handle or torch's);
    default, torch's current one for torch tensors. With M or N of 0 the result is empty, with K of 0 zeros.

    Arithmetic, whatever M, tile or device of a kind: each 128-block of K is summed from zero as the device's tensor
    cores do (on "cpu" exactly), then promoted in ascending K: total = fma(partial, rn32(scale_a * scale_b), total).

    Raises TypeError or ValueError naming the argument, what it is and what is wanted.
    """
    return _product("mm", a, b, out, out_dtype, device, stream)


def tile_product(
    a: ScaledTensor,
    b: ScaledTensor,
    out: Any = None,
    out_dtype: Any = None,
    device: str | Device | None = None,
    stream: Any = None,
) -> Any:
    """`mm` for what one block of a device takes at once, by the portable kernel: to try a device, not for speed."""
    return _product("tile_product", a, b, out, out_dtype, device, stream)


def _product(
    op: str, a: ScaledTensor, b: ScaledTensor, out: Any, out_dtype: Any, device: str | Device | None, stream: Any
) -> Any:
    _check_operands(a, b)
    views = [
        view(array, name)
        for array, name in ((a.data, "a.data"), (a.scales, "a.scales"), (b.data, "b.data"), (b.scales, "b.scales"))
    ]
    _check_one_device(views)
    chosen = registry.find(views[0].device if device is None else device)
    out, d = _result(a, b, out, out_dtype)
    m, k, n = *a.shape, b.shape[1]
    torch_arrays = not isinstance(a.data, np.ndarray)
    handle = chosen.stream(stream, torch_arrays)
    if m == 0 or n == 0:
        return out
    if k == 0:
        out[...] = 0
        return out
    operands = _operands(views, d)
    _check_values(a, b)
    plan.run(_problem(op, a, b, d.format), operands, chosen, handle)
    return out


def launch_mm(a: ScaledTensor, b: ScaledTensor, out: Any, device: Device) -> Any:
    """The launch that `mm` would run on `device` for these operands (M, N and K above 0)."""
    _check_operands(a, b)
    views = [view(array, "operand") for array in (a.data, a.scales, b.data, b.scales)]
    _, d = _result(a, b, out, None)
    return plan.planned(_problem("mm", a, b, d.format), device).plan.candidate(a.shape[0]).bind(_operands(views, d))


def _check_operands(a: ScaledTensor, b: ScaledTensor) -> None:
    for name, t in (("a", a), ("b", b)):
        if not isinstance(t, ScaledTensor):
            raise TypeError(
                f"{name} is a {type(t).__name__}; a kingpost.ScaledTensor is wanted (see kingpost.quantize)"
            )
        if len(t.shape) != 2:
            raise ValueError(f"{name} has shape {t.shape}; two dimensions are wanted")
    if type(a.data) is not type(b.data):
        raise TypeError(f"a is of {type(a.data).__module__}, b of {type(b.data).__module__}; one library is wanted")
    (_, k), (k_of_b, n) = a.shape, b.shape
    if k != k_of_b:
        hint = "; pass a weight kept as [N, K] as w.T" if b.shape[1] == k else ""
        raise ValueError(f"a is {list(a.shape)} and b is {list(b.shape)}; [M, K] and [K, N] are wanted{hint}")
    if n % N_GRID:
        raise ValueError(f"N, the columns of b, is {n}; a multiple of {N_GRID} is wanted")
    if k % K_GRID:
        raise ValueError(f"K, the columns of a, is {k}; a multiple of {K_GRID} is wanted")


def _check_one_device(views: list[View]) -> None:
    for name, other in zip(("a.scales", "b.data", "b.scales"), views[1:]):
        if other.device != views[0].device:
            raise ValueError(f"{name} is on {other.device}; {views[0].device}, where a.data is, is wanted")


def _check_values(a: ScaledTensor, b: ScaledTensor) -> None:
    """Scales of the host are looked at always, those of a GPU on request."""
    for name, t in (("a", a), ("b", b)):
        if isinstance(t.scales, np.ndarray) or t.scales.device.type == "cpu":
            scales = np.asarray(t.scales)
            if np.isnan(scales).any():
                raise ValueError(f"{name}.scales holds NaN; numbers are wanted")
        if os.environ.get("KINGPOST_CHECK") == "1":
            scaling.validate(t)


def _result(a: ScaledTensor, b: ScaledTensor, out: Any, out_dtype: Any) -> tuple[Any, View]:
    """The array to write, new if none was given, and its view."""
    wanted = (a.shape[0], b.shape[1])
    if out_dtype is not None:
        format = _out_format(out_dtype)
    elif out is not None:
        format = _out_format(out.dtype) if hasattr(out, "dtype") else BF16
    else:
        format = BF16
    if out is None:
        out = arrays.empty(wanted, format, like=a.data)
    d = view(out, "out")
    if type(out) is not type(a.data):
        raise TypeError(f"out is of {type(out).__module__}, a of {type(a.data).__module__}; one library is wanted")
    if d.shape != wanted:
        raise ValueError(f"out has shape {list(d.shape)}; {list(wanted)} is wanted")
    if d.format is not format:
        raise TypeError(f"out is {d.format.name}; {format.name} is wanted")
    if d.device != (where := view(a.data, "a.data").device):
        raise ValueError(f"out is on {d.device}; {where}, where a is, is wanted")
    _check_rows("out", d)
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only; a writable array is wanted")
    return out, d


def _out_format(out_dtype: Any) -> Format:
    names = ", ".join(f.name for f in OUT_FORMATS)
    try:
        format = formats.named(out_dtype)
    except (ValueError, TypeError):
        raise ValueError(f"out_dtype is {out_dtype!r}; one of {names} is wanted") from None
    if format not in OUT_FORMATS:
        raise ValueError(f"out_dtype is {format.name}; one of {names} is wanted")
    return format


def _operands(views: list[View], d: View) -> Operands:
    a, scale_a, b, scale_b = views
    _check_rows("a.data", a)
    _check_rows("b.data, transposed,", b.T, hint="; pass a weight [N, K], contiguous, as w.T")
    return product_operands(a, scale_a, b.T, scale_b.T, d)


def _check_rows(name: str, rows: View, hint: str = "") -> None:
    """Rows that a copy engine can move: contiguous elements, rows a positive multiple of 16 bytes apart."""
    if 0 in rows.shape:
        return
    row_stride = rows.strides[0] if rows.shape[0] > 1 else 16
    if not rows.adjacent(1) or row_stride % 16 or row_stride <= 0:
        raise ValueError(
            f"{name} has strides {rows.strides} bytes; contiguous rows, a multiple of 16 bytes apart, are wanted{hint}"
        )


def _problem(op: str, a: ScaledTensor, b: ScaledTensor, out_format: Format) -> Problem:
    return Problem(
        op, b.shape[1], a.shape[1], a.format, b.format, str(a.scaling), str(b.scaling.transposed), out_format
    )
