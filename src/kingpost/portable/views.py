"""What portable kernels ask of the arrays that they are given."""

from __future__ import annotations

from collections.abc import Sequence

from kingpost.arrays import View
from kingpost.formats import Format

LARGEST = 1 << 32  # strides, in bytes, and numbers of elements are u32 parameters


def check(name: str, view: View, formats: Sequence[Format], shape: Sequence[int | None]) -> None:
    """Raise unless `view`, called `name`, has one of the formats, the shape (None: any), and strides from 0 to 2^32."""
    if view.format not in formats:
        wanted = " or ".join(format.name for format in formats)
        raise TypeError(f"{name} is {view.format.name}; {wanted} is wanted")
    if len(view.shape) != len(shape) or any(want not in (None, size) for size, want in zip(view.shape, shape)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {list(view.shape)}; [{wanted}] is wanted")
    if any(size >= LARGEST // view.format.itemsize for size in view.shape):
        raise ValueError(f"{name} has shape {list(view.shape)}; sides below 2^32 bytes are wanted")
    if any(not 0 <= stride < LARGEST for size, stride in zip(view.shape, view.strides) if size > 1):
        raise ValueError(f"{name} has strides {view.strides} bytes; strides from 0 to 2^32 are wanted")


def check_rows(name: str, view: View, formats: Sequence[Format], shape: Sequence[int | None]) -> None:
    """The same, and the elements of a row must be neighbours in memory."""
    check(name, view, formats, shape)
    if not view.adjacent(-1) and 0 not in view.shape:
        wanted = f"{view.format.itemsize} bytes from one element of a row to the next"
        raise ValueError(f"{name} has strides {view.strides} bytes; {wanted} are wanted")


def aligned(view: View, bytes: int) -> bool:
    """Whether every row starts at a multiple of `bytes`."""
    pitches = [stride for size, stride in zip(view.shape[:-1], view.strides[:-1]) if size > 1]
    return not any(each % bytes for each in (view.pointer, *pitches))


def stride(view: View, dimension: int) -> int:
    """Bytes from one index to the next; 0 where there is one index only."""
    return view.strides[dimension] if view.shape[dimension] > 1 else 0
