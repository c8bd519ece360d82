"""The dense product of two scaled tensors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from kingpost import arrays, formats, plan, quantization, registry, scaling
from kingpost.arrays import View, library_of, view
from kingpost.formats import BF16, F32, Format
from kingpost.registry import Device, Operands, Problem, product_operands
from kingpost.scaling import ScaledTensor

OUT_FORMATS = (BF16, F32)
NAMES = "a.data", "a.scales", "b.data", "b.scales"
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
    any strides. out: written and returned if given; [M, N], rows contiguous and multiples of 16 bytes apart, in memory
    that no operand shares.
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
    views = _views(a, b)
    _check_one_device(views)
    chosen = registry.find(views[0].device if device is None else device)
    given = out is not None
    with arrays.on_stream(a.data, stream):
        out, d = _result(a, b, out, out_dtype, views[0].device)
    m, k, n = *a.shape, b.shape[1]
    torch_arrays = not isinstance(a.data, np.ndarray)
    handle = chosen.stream(stream, torch_arrays)
    if m == 0 or n == 0:
        return out
    if k == 0:
        with arrays.on_stream(a.data, stream):
            out[...] = 0
        return out
    operands = _operands(views, d)
    if given:
        _check_apart(d, views)
    _check_values(a, b, views)
    plan.run(_problem(op, a, b, d.format), operands, chosen, handle)
    return out


def launch_mm(a: ScaledTensor, b: ScaledTensor, out: Any, device: Device) -> Any:
    """The launch that `mm` would run on `device`. Raises ValueError for an empty product, which runs no program."""
    _check_operands(a, b)
    if 0 in (sizes := (*a.shape, b.shape[1])):
        m, k, n = sizes
        raise ValueError(f"M, N, K are {m}, {n}, {k}; at least 1 of each is wanted: an empty product runs no program")
    views = _views(a, b)
    _, d = _result(a, b, out, None, views[0].device)
    return plan.planned(_problem("mm", a, b, d.format), device).plan.candidate(a.shape[0]).bind(_operands(views, d))


def _check_operands(a: ScaledTensor, b: ScaledTensor) -> None:
    for name, t in (("a", a), ("b", b)):
        scaling.check_scaled(t, name)
        if len(t.shape) != 2:
            raise ValueError(f"{name} has shape {t.shape}; two dimensions are wanted")
    if (library := library_of(a.data)) != library_of(b.data):
        raise TypeError(f"a is of {library}, b of {library_of(b.data)}; one library is wanted")
    (_, k), (k_of_b, n) = a.shape, b.shape
    if k != k_of_b:
        hint = "; pass a weight kept as [N, K] as w.T" if b.shape[1] == k else ""
        raise ValueError(f"a is {list(a.shape)} and b is {list(b.shape)}; [M, K] and [K, N] are wanted{hint}")
    if n % N_GRID:
        raise ValueError(f"N, the columns of b, is {n}; a multiple of {N_GRID} is wanted")
    if k % K_GRID:
        raise ValueError(f"K, the columns of a, is {k}; a multiple of {K_GRID} is wanted")


def _views(a: ScaledTensor, b: ScaledTensor) -> list[View]:
    return [view(array, name) for array, name in zip((a.data, a.scales, b.data, b.scales), NAMES)]


def _check_one_device(views: list[View]) -> None:
    for name, other in zip(NAMES[1:], views[1:]):
        if other.device != views[0].device:
            raise ValueError(f"{name} is on {other.device}; {views[0].device}, where a.data is, is wanted")


def _check_apart(d: View, views: list[View]) -> None:
    """A result written over what is still to be read would be wrong."""
    start, size = d.extent()
    for name, other in zip(NAMES, views):
        low, length = other.extent()
        if low < start + size and start < low + length:
            raise ValueError(f"out shares memory with {name}; memory of its own is wanted")


def _check_values(a: ScaledTensor, b: ScaledTensor, views: list[View]) -> None:
    """Scales of the host are looked at always, those of a GPU on request."""
    for name, scales in ((NAMES[1], views[1]), (NAMES[3], views[3])):
        if scales.device == "cpu" and np.isnan(scales.numpy()).any():
            raise ValueError(f"{name} holds NaN; numbers are wanted")
    if os.environ.get("KINGPOST_CHECK") == "1":
        quantization.validate(a)
        quantization.validate(b)


def _result(a: ScaledTensor, b: ScaledTensor, out: Any, out_dtype: Any, where: str) -> tuple[Any, View]:
    """The array to write, new if none was given, and its view. where: the device that `a` is on."""
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
    if library_of(out, "out") != library_of(a.data):
        raise TypeError(f"out is of {library_of(out)}, a of {library_of(a.data)}; one library is wanted")
    if d.shape != wanted:
        raise ValueError(f"out has shape {list(d.shape)}; {list(wanted)} is wanted")
    if d.format is not format:
        raise TypeError(f"out is {d.format.name}; {format.name} is wanted")
    if d.device != where:
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
    _check_scales("a.scales", scale_a)
    _check_scales("b.scales", scale_b)
    return product_operands(a, scale_a, b.T, scale_b.T, d)


def _check_rows(name: str, rows: View, hint: str = "") -> None:
    """Rows that a copy engine can move: contiguous elements, rows a positive multiple of 16 bytes apart, from one."""
    if 0 in rows.shape:
        return
    row_stride = rows.strides[0] if rows.shape[0] > 1 else 16
    if not rows.adjacent(1) or row_stride % 16 or row_stride <= 0:
        raise ValueError(
            f"{name} has strides {rows.strides} bytes; contiguous rows, a multiple of 16 bytes apart, are wanted{hint}"
        )
    if rows.pointer % 16:
        raise ValueError(f"{name} starts at address {rows.pointer:#x}; a multiple of 16 is wanted, as a copy has it")


def _check_scales(name: str, scales: View) -> None:
    """Scales that threads can load one by one: at multiples of their own size, which numpy does not ask for."""
    if scales.pointer % 4 or any(stride % 4 for stride in scales.strides):
        raise ValueError(
            f"{name} start at address {scales.pointer:#x}, strides {scales.strides} bytes; multiples of 4 are wanted"
        )


def _problem(op: str, a: ScaledTensor, b: ScaledTensor, out_format: Format) -> Problem:
    return Problem(
        op, b.shape[1], a.shape[1], a.format, b.format, str(a.scaling), str(b.scaling.transposed), out_format
    )
