"""Tensor maps as data: which box of which view a bulk copy moves, and how it lies in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kingpost.arrays import View
from kingpost.formats import Format
from kingpost.program.memory import SWIZZLES


@dataclass(frozen=True)
class TensorMapType:
    """The part of a tensor map that a program fixes: element format, box (outermost first) and swizzle span in bytes.

    Limits are those of the copy engines that read such maps (cuTensorMapEncodeTiled in its driver's manual):
    1 to 5 dimensions, boxes of 1 to 256 elements a side, a box row that fits the swizzle's span.
    """

    format: Format
    box: tuple[int, ...]
    swizzle: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.box) <= 5 or not all(1 <= side <= 256 for side in self.box):
            raise ValueError(f"box is {self.box}; 1 to 5 sides of 1 to 256 elements are wanted")
        if self.swizzle not in SWIZZLES:
            raise ValueError(f"swizzle is {self.swizzle}; one of {SWIZZLES} is wanted")
        if self.row_bytes % 16 or (self.swizzle and self.row_bytes > self.swizzle):
            raise ValueError(
                f"a row of box {self.box} has {self.row_bytes} bytes; a multiple of 16 is wanted"
                + (f", at most the swizzle's {self.swizzle}" if self.swizzle else "")
            )

    @property
    def row_bytes(self) -> int:
        return self.box[-1] * self.format.bits // 8

    @property
    def bytes(self) -> int:
        """Bytes that one copy moves, elements outside the view (filled with zeros) included."""
        return prod(self.box) * self.format.bits // 8


@dataclass(frozen=True)
class TensorMap:
    """A tensor map: a map type bound to a view. Elements outside the view read as zero and are not written."""

    type: TensorMapType
    view: View

    def __post_init__(self) -> None:
        view, type = self.view, self.type
        if len(view.shape) != len(type.box):
            raise ValueError(f"a tensor map of {len(type.box)} dimensions over a view of shape {view.shape}")
        if view.format.bits != type.format.bits:
            raise ValueError(f"a tensor map of {type.format.name} over a view of {view.format.name}")
        pitches = [stride for size, stride in zip(view.shape[:-1], view.strides[:-1]) if size > 1]
        if view.pointer % 16 or any(stride % 16 for stride in pitches):
            raise ValueError(
                f"a tensor map over address {view.pointer:#x}, strides {view.strides} bytes; multiples of 16 are wanted"
            )
        if not view.adjacent(-1):
            raise ValueError(
                f"a tensor map over strides {view.strides} bytes; contiguous elements are wanted in the last dimension"
            )
