"""What products ask of their arguments, and the views that they become: checks that every device shares."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kingpost import arrays, formats, quantization, registry
from kingpost.arrays import View, library_of, view
from kingpost.formats import BF16, F16, F32, FLOAT8, I32, Format
from kingpost.registry import Device
from kingpost.scaling import ScaledTensor

OUT_FORMATS = (BF16, F16, F32)
GRID = 16  # bytes: what copy engines move


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand [..., rows, K], K last (of b: [..., N, K]), with its scales; `major` is its contiguous dimension."""

    name: str  # "a" or "b"
    array: Any  # as the caller gave it, transposed with the rest
    data: View
    scales: View | None
    scaling: str | None
    major: str

    @property
    def views(self) -> dict[str, View]:
        """By the names of `registry.Problem`."""
        return {self.name: self.data} | ({f"scale_{self.name}": self.scales} if self.scales is not None else {})


def operand(t: Any, name: str, dimensions: int, turned: bool) -> Operand:
    """A ScaledTensor or a bfloat16 array as an operand. turned: its last two dimensions are [K, N].

    Raises TypeError or ValueError naming it for anything else, or for dimensions or strides that no kernel takes.
    """
    scaled = isinstance(t, ScaledTensor)
    array, label = (t.data, f"{name}.data") if scaled else (t, name)
    data = view(array, label)
    if len(data.shape) != dimensions:
        wanted = {2: "two", 3: "three"}[dimensions]
        raise ValueError(f"{name} has shape {list(data.shape)}; {wanted} dimensions are wanted")
    if not scaled and data.format is not BF16:
        hint = "a kingpost.ScaledTensor (see kingpost.quantize)" + " or bfloat16" * (data.format not in FLOAT8)
        raise TypeError(f"{name} is a {type(t).__name__} of {data.format.name}; {hint} is wanted")
    scales = view(t.scales, f"{name}.scales") if scaled else None
    scaling = str(t.scaling.transposed if turned else t.scaling) if scaled else None
    if turned:
        data, scales = _turned(data), None if scales is None else _turned(scales)
    if scales is not None:
        _check_scales(f"{name}.scales", scales)
        if scales.device != data.device:
            raise ValueError(f"{name}.scales is on {scales.device}; {data.device}, where {name}.data is, is wanted")
    return Operand(name, array, data, scales, scaling, _major(label, data, turned))


def _turned(view: View) -> View:
    """The last two dimensions exchanged."""
    shape, strides = view.shape, view.strides
    return View(
        view.pointer,
        (*shape[:-2], shape[-1], shape[-2]),
        (*strides[:-2], strides[-1], strides[-2]),
        view.format,
        view.device,
        view.owner,
    )


def _major(name: str, data: View, turned: bool) -> str:
    """Which of the last two dimensions a copy engine can take as rows: contiguous, a multiple of 16 bytes apart."""
    if 0 in data.shape:
        return "k"
    for major, along in (("k", -1), ("mn", -2)):
        pitches = [s for i, s in enumerate(data.strides) if i != along % len(data.shape) and data.shape[i] > 1]
        if data.adjacent(along) and not any(s % GRID or s <= 0 for s in pitches):
            if data.pointer % GRID:
                raise ValueError(f"{name} starts at address {data.pointer:#x}; a multiple of {GRID} is wanted")
            return major
    hint = "; pass a weight [N, K], contiguous, as w.T" if turned else ""
    raise ValueError(
        f"{name} has strides {_given(data.strides, turned)} bytes over shape {list(_given(data.shape, turned))}; one "
        f"of the last two dimensions contiguous, the others multiples of {GRID} bytes apart, are wanted{hint}"
    )


def _given(values: tuple[int, ...], turned: bool) -> tuple[int, ...]:
    """As the caller wrote them."""
    return (*values[:-2], values[-1], values[-2]) if turned else values


def _check_scales(name: str, scales: View) -> None:
    """Scales that threads can load one by one: at multiples of their own size, which numpy does not ask for."""
    size = scales.format.itemsize
    if scales.pointer % size or any(stride % size for stride in scales.strides):
        raise ValueError(
            f"{name} start at address {scales.pointer:#x}, strides {scales.strides} bytes; multiples of {size} are "
            "wanted"
        )


def check_pair(a: Operand, b: Operand) -> None:
    """a [..., M, K] and b [..., N, K] multiply: one library, one place, one K, sizes that kernels take."""
    if (library := library_of(a.array)) != library_of(b.array):
        raise TypeError(f"a is of {library}, b of {library_of(b.array)}; one library is wanted")
    if (a.scaling is None) != (b.scaling is None):
        raise TypeError("one of a and b is a ScaledTensor, the other an array; both or neither are wanted")
    check_place("b", b.data, a.data)
    k, n = a.data.shape[-1], b.data.shape[-2]
    if k != b.data.shape[-1]:
        hint = "; pass a weight kept as [N, K] as w.T" if n == k else ""
        shapes = list(a.data.shape), list(_given(b.data.shape, True))
        raise ValueError(f"a is {shapes[0]} and b is {shapes[1]}; [M, K] and [K, N] are wanted{hint}")
    if n % 8:
        raise ValueError(f"N, the columns of b, is {n}; a multiple of 8 is wanted")
    grid = GRID // a.data.format.itemsize
    if k % grid:
        raise ValueError(f"K, the columns of a, is {k}; a multiple of {grid} is wanted")


def check_place(name: str, other: View, a: View) -> None:
    if other.device != a.device:
        raise ValueError(f"{name} is on {other.device}; {a.device}, where a is, is wanted")


def result(
    shape: tuple[int, ...], out: Any, out_dtype: Any, a: Operand, stream: Any, default: Format = BF16
) -> tuple[Any, View]:
    """The array to write, new if none was given, and its view."""
    if out_dtype is not None:
        format = _out_format(out_dtype)
    elif out is not None:
        format = _out_format(out.dtype) if hasattr(out, "dtype") else default
    else:
        format = default
    if out is None:
        with arrays.on_stream(a.array, stream):
            out = arrays.empty(shape, format, like=a.array)
        return out, view(out, "out")
    d = check_like("out", out, shape, format, a)
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only; a writable array is wanted")
    return out, d


def check_like(name: str, x: Any, shape: tuple[int, ...], format: Format, a: Operand) -> View:
    """`x` as a view, if it is an array of this shape and format in a's library and place, of rows that copies take."""
    found = view(x, name)
    if library_of(x, name) != library_of(a.array):
        raise TypeError(f"{name} is of {library_of(x)}, a of {library_of(a.array)}; one library is wanted")
    if found.shape != shape:
        raise ValueError(f"{name} has shape {list(found.shape)}; {list(shape)} is wanted")
    if found.format is not format:
        raise TypeError(f"{name} is {found.format.name}; {format.name} is wanted")
    check_place(name, found, a.data)
    if 0 in found.shape:
        return found
    pitches = [stride for size, stride in zip(found.shape[:-1], found.strides[:-1]) if size > 1]
    if not found.adjacent(-1) or any(s % GRID or s <= 0 for s in pitches):
        raise ValueError(
            f"{name} has strides {found.strides} bytes; contiguous rows, a multiple of {GRID} bytes apart, are wanted"
        )
    if found.pointer % GRID:
        raise ValueError(f"{name} starts at address {found.pointer:#x}; a multiple of {GRID} is wanted")
    return found


def bias_view(bias: Any, columns: int, planes: int | None, a: Operand) -> View:
    """bias [N], or [planes, N] where there are several b, as a view."""
    found = view(bias, "bias")
    shape = (columns,) if planes is None else (planes, columns)
    if found.shape != shape:
        raise ValueError(f"bias has shape {list(found.shape)}; {list(shape)} is wanted")
    if found.format not in OUT_FORMATS:
        raise TypeError(f"bias is {found.format.name}; {_names(OUT_FORMATS)} is wanted")
    check_place("bias", found, a.data)
    if not found.adjacent(-1) or found.pointer % 8 or (planes and planes > 1 and found.strides[0] % 8):
        raise ValueError(
            f"bias starts at address {found.pointer:#x}, strides {found.strides} bytes; neighbours in memory, rows "
            "from multiples of 8 bytes, are wanted"
        )
    return found


def number(alpha: Any) -> float:
    """alpha as a finite number."""
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float, np.integer, np.floating)):
        raise TypeError(f"alpha is {alpha!r}; a number is wanted")
    value = float(np.float32(alpha))
    if not np.isfinite(value):
        raise ValueError(f"alpha is {alpha!r}; a number that float32 holds is wanted")
    return value


def index_view(name: str, index: Any, shape: tuple[int | None, ...], a: Operand) -> View:
    """Ends, rows or counts: int32, contiguous, where a is."""
    found = view(index, name)
    if found.format is not I32:
        call = ".to(torch.int32)" if library_of(index, name) == "torch" else ".astype('int32')"
        raise TypeError(f"{name} is {found.format.name}; int32 is wanted (use {name}{call})")
    if len(found.shape) != 1 or any(want not in (None, size) for size, want in zip(found.shape, shape)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {list(found.shape)}; [{wanted}] is wanted")
    check_place(name, found, a.data)
    if not found.contiguous:
        raise ValueError(f"{name} has strides {found.strides} bytes; neighbours in memory are wanted")
    return found


def check_apart(d: View, views: dict[str, View]) -> None:
    """A result written over what is still to be read would be wrong; c may be the result's own memory, exactly."""
    start, size = d.extent()
    for name, other in views.items():
        low, length = other.extent()
        if low < start + size and start < low + length:
            if name == "c" and (other.pointer, other.strides, other.shape) == (d.pointer, d.strides, d.shape):
                continue
            raise ValueError(f"out shares memory with {_public(name)}; memory of its own is wanted")


def _public(name: str) -> str:
    """What users call an operand."""
    if name.startswith("scale_"):
        return f"{name.removeprefix('scale_')}.scales"
    return f"{name}.data" if name in ("a", "b") else name


def check_values(*operands: tuple[Operand, Any]) -> None:
    """Scales of the host are looked at always, all of a tensor, and what is on a GPU, on request."""
    for operand, given in operands:
        scales = operand.scales
        if scales is not None and scales.device == "cpu" and np.isnan(scales.numpy().astype(np.float32)).any():
            raise ValueError(f"{operand.name}.scales holds NaN; numbers are wanted")
        if scales is not None and examined():
            quantization.validate(given)


def examined() -> bool:
    """Whether data on a GPU are to be read back and looked at."""
    return os.environ.get("KINGPOST_CHECK") == "1"


def check_order(order: Any) -> None:
    if order not in ("ascending", "fast"):
        raise ValueError(f"order is {order!r}; 'ascending' or 'fast' is wanted")


def device_of(device: str | Device | None, a: Operand) -> Device:
    return registry.find(a.data.device if device is None else device)


def _out_format(out_dtype: Any) -> Format:
    try:
        format = formats.named(out_dtype)
    except (ValueError, TypeError):
        raise ValueError(f"out_dtype is {out_dtype!r}; one of {_names(OUT_FORMATS, ', ')} is wanted") from None
    if format not in OUT_FORMATS:
        raise ValueError(f"out_dtype is {format.name}; one of {_names(OUT_FORMATS, ', ')} is wanted")
    return format


def _names(choice: Sequence[Format], between: str = " or ") -> str:
    return between.join(format.name for format in choice)
