"""What products ask of the arrays that they read, and the views that these become: checks that every device shares."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kingpost import quantization
from kingpost.arrays import View, library_of, view
from kingpost.formats import BF16, F16, F32, FLOAT8, I32, Format
from kingpost.scaling import BLOCK, ScaledTensor, group_sizes

FLOATS = (BF16, F16, F32)  # of results, c and bias
GRID = 16  # bytes: what copy engines move
COLUMNS = 8  # N is a multiple of it: 16 bytes of bfloat16 results

_Order = tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class Signature:
    """The dimensions of a product's arrays as callers pass them: G (groups, or a batch), M, N and K.

    op, by: as in `registry.Problem`, whose arrays have the same dimensions in the order G, M, K; G, N, K; G, M, N.
    a_order, b_order, d_order: how to put them in that order, None where they are.
    """

    op: str
    a: str
    b: str
    d: str
    by: str | None = None

    @cached_property
    def a_order(self) -> _Order:
        return _order(self.a, "GMK")

    @cached_property
    def b_order(self) -> _Order:
        return _order(self.b, "GNK")

    @cached_property
    def d_order(self) -> _Order:
        return _order(self.d, "GMN")

    def sizes(self, a: tuple[int, ...], b: tuple[int, ...]) -> dict[str, int]:
        """The size of each dimension. Raises ValueError if the shapes do not multiply."""
        found: dict[str, int] = {}
        for name, labels, shape in (("a", self.a, a), ("b", self.b, b)):
            if len(labels) != len(shape):
                raise ValueError(f"{name} has shape {list(shape)}; {_dimensions(labels)} is wanted")
            for label, size in zip(labels, shape):
                if found.setdefault(label, size) != size:
                    wanted = f"{_dimensions(self.a)} and {_dimensions(self.b)} are wanted, with one {label}"
                    turned = "w.T" if len(b) == 2 else "w.mT"
                    hint = f"; pass a weight kept as [N, K] as {turned}" if self.b[-2:] == "KN" and label == "K" else ""
                    raise ValueError(f"a is {list(a)} and b is {list(b)}; {wanted}{hint}")
        return found


def _dimensions(labels: str) -> str:
    return f"[{', '.join(labels)}]"


def _order(labels: str, wanted: str) -> _Order:
    order = tuple(labels.index(label) for label in wanted if label in labels)
    return None if order == tuple(sorted(order)) else order


def ordered(x: View, order: _Order) -> View:
    """The dimensions in another order."""
    if order is None:
        return x
    shape, strides = x.shape, x.strides
    return View(
        x.pointer,
        tuple([shape[i] for i in order]),
        tuple([strides[i] for i in order]),
        x.format,
        x.device,
        x.owner,
    )


@dataclass(slots=True)
class Factor:
    """a or b with the scales of its blocks: as it was given, then, arranged, as the problem has it: [..., rows, K].

    major: what is contiguous, "k" or "mn". as_given: whether kernels read the caller's memory, not a copy.
    """

    name: str
    given: Any  # by the caller: a ScaledTensor or an array
    array: Any  # whose library and place results share
    data: View
    scales: View | None
    scaling: str | None = None
    major: str = "k"
    as_given: bool = True


def factor(name: str, given: Any) -> Factor:
    """A ScaledTensor or an array as a factor, of any dimensions; TypeError for anything else."""
    if not isinstance(given, ScaledTensor):
        return Factor(name, given, given, view(given, name), None)
    return Factor(name, given, given.data, view(given.data, f"{name}.data"), view(given.scales, f"{name}.scales"))


def arrange(x: Factor, labels: str, order: _Order) -> None:
    """Order the dimensions of a factor as the problem has them, and find what is contiguous.

    Raises ValueError for scales that do not follow, or strides that no kernel takes.
    """
    given = x.data
    x.data = ordered(given, order)
    if x.scales is not None:
        scaling = x.given.scaling
        if labels[-1] != "K":
            scaling = scaling.transposed
        elif order is not None and scaling.block[0] != 1:  # a block of rows would lie across planes
            raise ValueError(f"{x.name} is scaled {scaling}; scales for single rows, such as 1x128, are wanted")
        x.scaling = scaling.name
        x.scales = ordered(x.scales, order)
    x.major = _major(x, given)


def _major(x: Factor, given: View) -> str:
    """Which of the last two dimensions lies in rows that a copy engine takes, or that the transposing pass makes so."""
    data = x.data
    if 0 in data.shape:
        return "k"
    label = x.name if x.scales is None else f"{x.name}.data"
    shape, strides, last = data.shape, data.strides, len(data.shape) - 1
    for major, along in (("k", last), ("mn", last - 1)):
        if data.adjacent(along):
            if major == "mn" and x.scales is not None:
                return major
            if not any(s % GRID or s <= 0 for i, s in enumerate(strides) if i != along and shape[i] > 1):
                if data.pointer % GRID:
                    raise ValueError(f"{label} starts at address {data.pointer:#x}; a multiple of {GRID} is wanted")
                return major
    raise ValueError(
        f"{label} has strides {given.strides} bytes over shape {list(given.shape)}; one of K and "
        f"{'M' if x.name == 'a' else 'N'} contiguous, the others positive multiples of {GRID} bytes apart, are wanted"
    )


def check_pair(a: Factor, b: Factor, sizes: dict[str, int]) -> None:
    """a and b multiply: both scaled or both bfloat16, in one library and place, of sizes that kernels take."""
    for x in (a, b):
        if x.scales is not None:
            _check_scales(x, x.scales)
        elif x.data.format is not BF16:
            wanted = "a kingpost.ScaledTensor (see kingpost.quantize)" + " or bfloat16" * (x.data.format not in FLOAT8)
            raise TypeError(f"{x.name} is a {type(x.given).__name__} of {x.data.format.name}; {wanted} is wanted")
    if (a.scales is None) != (b.scales is None):
        scaled, other = ("a", "b") if b.scales is None else ("b", "a")
        raise TypeError(f"{scaled} is a ScaledTensor, {other} an array; both or neither are wanted")
    if type(a.array) is not type(b.array) and (library := library_of(a.array)) != library_of(b.array):
        raise TypeError(f"a is of {library}, b of {library_of(b.array)}; one library is wanted")
    check_place("b.data" if b.scales is not None else "b", b.data, a)
    n, k, grid = sizes["N"], sizes["K"], GRID // a.data.format.itemsize
    if n % COLUMNS:
        raise ValueError(f"N, the columns of b, is {n}; a multiple of {COLUMNS} is wanted")
    if k % grid:
        raise ValueError(f"K, the columns of a, is {k}; a multiple of {grid} is wanted")


def _check_scales(x: Factor, scales: View) -> None:
    """Scales that threads can load one by one: at multiples of their own size, which numpy does not ask for."""
    if scales.device != x.data.device:
        raise ValueError(f"{x.name}.scales is on {scales.device}; {x.data.device}, where {x.name}.data is, is wanted")
    size = scales.format.itemsize
    if size > 1 and (scales.pointer % size or any(stride % size for stride in scales.strides)):
        raise ValueError(
            f"{x.name}.scales start at address {scales.pointer:#x}, strides {scales.strides} bytes; multiples of "
            f"{size} are wanted"
        )


def check_place(name: str, x: View, a: Factor) -> None:
    if x.device != a.data.device:
        where = "a.data" if a.scales is not None else "a"
        raise ValueError(f"{name} is on {x.device}; {a.data.device}, where {where} is, is wanted")


def check_values(x: Factor, examined: bool) -> None:
    """Scales of the host are looked at always, all of a tensor, wherever it is, on request."""
    if x.scales is None:
        return
    if x.scales.device == "cpu":
        check_numbers(x, x.scales.numpy())
    if examined:
        quantization.validate(x.given)


def check_numbers(x: Factor, scales: np.ndarray) -> None:
    if np.isnan(_float32(scales)).any():
        raise ValueError(f"{x.name}.scales holds NaN; numbers are wanted")


def _float32(scales: np.ndarray) -> np.ndarray:
    return scales if scales.dtype == np.float32 else scales.astype(np.float32)


def examined() -> bool:
    """Whether data on a GPU are to be read back and looked at."""
    return os.environ.get("KINGPOST_CHECK") == "1"


def check_added(name: str, x: View, shape: tuple[int, ...], formats: tuple[Format, ...], a: Factor) -> None:
    """c or bias has this shape and one of these formats, is where a is, and has rows from multiples of two elements."""
    if x.shape != shape:
        raise ValueError(f"{name} has shape {list(x.shape)}; {list(shape)} is wanted")
    if x.format not in formats:
        wanted = " or ".join(format.name for format in formats)
        raise TypeError(f"{name} is {x.format.name}; {wanted} is wanted")
    check_place(name, x, a)
    if 0 in shape:
        return
    grid = 2 * x.format.itemsize  # kernels load pairs
    pitches = [stride for size, stride in zip(shape[:-1], x.strides[:-1]) if size > 1]
    if not x.adjacent(-1) or x.pointer % grid or any(s % grid or s < 0 for s in pitches):
        raise ValueError(
            f"{name} starts at address {x.pointer:#x} and has strides {x.strides} bytes; contiguous rows that start at "
            f"multiples of {grid} bytes are wanted"
        )


def number(alpha: Any) -> float:
    """alpha, as float32 holds it."""
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float, np.integer, np.floating)):
        raise TypeError(f"alpha is {alpha!r}; a number is wanted")
    try:
        with np.errstate(over="ignore"):
            value = float(np.float32(alpha))
    except OverflowError:  # an int that no float holds
        value = math.inf
    if not np.isfinite(value):
        raise ValueError(f"alpha is {alpha!r}; a finite number is wanted, in the range of float32")
    return value


def index(name: str, x: Any) -> View:
    """Rows, ends or counts as a view. Raises TypeError for other integers than int32, saying how to convert them."""
    dtype = str(getattr(x, "dtype", None))
    if "int" in dtype and not dtype.endswith("int32"):
        call = f"{name}.astype('int32')" if isinstance(x, np.ndarray) else f"{name}.to(torch.int32)"
        raise TypeError(f"{name} is {dtype}; int32 is wanted: {call}")
    return view(x, name)


def check_index(name: str, x: View, size: int | None, a: Factor) -> None:
    """An index is int32 [size], or of any size, contiguous, where a is."""
    if x.format is not I32:
        raise TypeError(f"{name} is {x.format.name}; int32 is wanted")
    if len(x.shape) != 1 or size not in (None, x.shape[0]):
        wanted = "[G]" if size is None else [size]
        raise ValueError(f"{name} has shape {list(x.shape)}; {wanted} is wanted")
    check_place(name, x, a)
    if not x.contiguous or x.pointer % 4:
        raise ValueError(
            f"{name} starts at address {x.pointer:#x} and has strides {x.strides} bytes; neighbours in memory, from a "
            "multiple of 4 bytes, are wanted"
        )


def known(x: View, examined: bool) -> np.ndarray | None:
    """The numbers of an index, if they are on the host, or to be examined wherever they are."""
    if x.device == "cpu":
        return x.numpy()
    return np.asarray(x.owner.cpu().numpy()) if examined else None  # type: ignore[attr-defined]


def check_range(name: str, values: np.ndarray | None, least: int, most: int, what: str) -> None:
    """Raises ValueError with the first of the values that is below `least` or above `most`."""
    if values is None:
        return
    outside = (values < least) | (values > most)
    if outside.any():
        place = int(np.argmax(outside))
        raise ValueError(f"{name}[{place}] is {values[place]}; {least} to {most}, {what}, is wanted")


def check_blocks(x: Factor, ends: View, values: np.ndarray | None) -> None:
    """The scales of a factor start a new block with each group of K. Raises ValueError if they do not, or may not."""
    if x.scales is None:
        return
    if x.scaling != "1x128":
        raise ValueError(f"{x.name} is scaled {x.given.scaling}; 1x128 along K is wanted")
    own = x.given.ends
    if own is None:
        if values is None:
            raise ValueError(
                f"{x.name} has no ends, and those on a GPU are not read back to see whether every group is a multiple "
                f"of {BLOCK}; ScaledTensor(data, scales, '1x128', ends) is wanted"
            )
        sizes = group_sizes(values, x.data.shape[-1], "ends")
        if (sizes[:-1] % BLOCK).any():
            raise ValueError(
                f"{x.name} has no ends, and groups have {sizes.tolist()[:8]} of K; scales that start a new block with "
                "each group are wanted (kingpost.quantize with ends=)"
            )
    elif tuple(own.shape) != ends.shape:
        raise ValueError(f"{x.name}.ends has shape {list(own.shape)}; {list(ends.shape)}, that of ends, is wanted")
    elif values is not None and not np.array_equal(known(view(own), True), values):  # type: ignore[arg-type]
        raise ValueError(f"{x.name}.ends are not ends; the same groups are wanted")
