"""How a tensor is scaled, and the tensor with its scales.

A scaling gives every block of a matrix one scale, float32 or a power of two ("ue8m0"); an element's value is its code's
value times its block's scale. Blocks at the edges may be partial. The names say rows x columns: "1x128" is how
activations [M, K] are usually scaled, "128x128" weights [N, K]; "1x32:ue8m0" is MXFP8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kingpost import formats
from kingpost.arrays import empty, library_of
from kingpost.formats import F32, FLOAT8, I32, U8, UE8M0, Format

BLOCK = 128  # elements of K that share a scale, in the scalings by block


@dataclass(frozen=True)
class Scaling:
    """name: what users write. block: the rows and columns that share a scale, None for all there are. format: of the
    scales."""

    name: str
    block: tuple[int | None, int | None]
    format: Format = F32

    @property
    def transposed(self) -> Scaling:
        """The scaling of the transposed tensor."""
        return _BY_BLOCK[self.block[::-1]]

    def scales_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the scales of data of this shape: per dimension, its blocks, a partial last one included.

        shape: [rows, columns], any leading batch dimensions are kept.
        """
        rows, columns = (1 if block is None else -(-size // block) for size, block in zip(shape[-2:], self.block))
        return (*shape[:-2], rows, columns)

    def expand(self, scales: Any, shape: tuple[int, ...]) -> Any:
        """The scale of every element: `scales` repeated to the data's shape, in the library that they came in."""
        scales = decoded(scales)
        for dimension, (size, block) in zip((-2, -1), zip(shape[-2:], self.block)):
            if block == 1:
                continue
            span = size if block is None else block
            if library_of(scales) == "numpy":
                scales = np.repeat(scales, span, axis=dimension)
            else:
                scales = scales.repeat_interleave(span, dim=dimension)
            scales = scales[..., :size, :] if dimension == -2 else scales[..., :size]
        return scales

    @property
    def columns(self) -> int:
        """How many columns a product of this scaling sums before it applies a scale: those of a block, else 128."""
        return BLOCK if self.block[1] is None else self.block[1]

    def by_block(self, scales: Any, shape: tuple[int, ...]) -> Any:
        """The scale of every row in every block of `self.columns` columns: [..., rows, blocks]."""
        one = Scaling(self.name, (self.block[0], None if self.block[1] is None else 1))
        return one.expand(scales, (*shape[:-1], -(-shape[-1] // self.columns)))

    def __str__(self) -> str:
        return self.name


SCALINGS = {
    scaling.name: scaling
    for scaling in (
        Scaling("1x128", (1, 128)),
        Scaling("128x1", (128, 1)),
        Scaling("128x128", (128, 128)),
        Scaling("row", (1, None)),
        Scaling("column", (None, 1)),
        Scaling("tensor", (None, None)),
        Scaling("1x32:ue8m0", (1, 32), UE8M0),
        Scaling("32x1:ue8m0", (32, 1), UE8M0),
    )
}
_BY_BLOCK = {scaling.block: scaling for scaling in SCALINGS.values()}


def decoded(scales: Any) -> Any:
    """ue8m0 scales as float32, 2^(code - 127) and NaN for 0xff; others as they are."""
    if _format(scales) is not UE8M0:
        return scales
    if library_of(scales) == "numpy":
        return formats.decode(scales)
    import torch

    return scales.to(torch.float32)


def named(name: str | Scaling) -> Scaling:
    """The scaling called `name` (a Scaling is returned as it is). Raises ValueError, listing those there are."""
    if isinstance(name, Scaling):
        return name
    found = SCALINGS.get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"scaling is {name!r}; wanted one of {', '.join(SCALINGS)}")
    return found


# How scales [M, B] lie in memory: None for rows after one another, else each column M rounded up to so many elements.
LAYOUTS: dict[str, int | None] = {"row-major": None, "column-major": 1, "deepgemm": 4}


def empty_scales(shape: tuple[int, ...], layout: str, like: Any) -> Any:
    """New float32 scales [..., M, B], contents undefined, lying as `layout` says, in the library and place of `like`.

    layout: "row-major"; "column-major", strides (1, M) elements; "deepgemm", strides (1, M rounded up to 4), which its
    tensor maps want. Raises ValueError, listing them, for another name.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; wanted one of {', '.join(LAYOUTS)}")
    grid, (*planes, rows, columns) = LAYOUTS[layout], shape
    if grid is None:
        return empty(shape, formats.F32, like)
    turned = empty((*planes, columns, -(-rows // grid) * grid), formats.F32, like)
    return turned[..., :rows].swapaxes(-1, -2)


class ScaledTensor:
    """float8 data with the scales of its blocks: value = data * scale.

    data: numpy or torch, e4m3, e4m3fnuz or e5m2, [rows, columns], or [batch, rows, columns]. scales: float32 (ue8m0 of
    "1x32:ue8m0": ml_dtypes' or torch's float8_e8m0fnu), same library and device, exactly
    `scaling.scales_shape(data.shape)`: ceil(size / block) along each dimension, 1 where the block is all of it
    ("tensor": [1, 1], "row": [rows, 1]). Both are kept as given, whatever their strides; nothing is copied.

    ends: of the columns of data [rows, columns] scaled "1x128", where groups end, int32 [groups], same library and
    device. Each group starts a new block: group g's scales stand behind those of the groups before it. Then there are
    at least as many scales a row as blocks, and at most columns // 128 + groups; the last ones may be unused. Columns
    behind the last group have no scale. Transposed, all this is of rows, as the scaling says.

    Raises TypeError or ValueError, naming the argument, for anything else.
    """

    __slots__ = ("data", "ends", "scales", "scaling")

    def __init__(self, data: Any, scales: Any, scaling: str | Scaling, ends: Any = None) -> None:
        self.data = data
        self.scales = scales
        self.scaling = named(scaling)
        self.ends = ends
        library = library_of(data, "data")
        for name, other in (("scales", scales), ("ends", ends)):
            if other is not None and library_of(other, name) != library:
                raise TypeError(f"{name} are a {library_of(other)} array and data a {library} one; wanted both alike")
        self._check_types()
        if ends is None:
            self._check_shapes()
        else:
            self._check_groups()
        for name, other in (("scales", scales), ("ends", ends)):
            if library == "torch" and other is not None and data.device != other.device:
                raise ValueError(f"{name} are on {other.device} and data on {data.device}; wanted both on one device")

    def _check_types(self) -> None:
        if _format(self.data) is U8:
            raise TypeError("data is uint8, which does not say which float8 it holds; wanted e4m3, e4m3fnuz or e5m2: "
                            "use data.view(ml_dtypes.float8_e4m3fn) or data.view(torch.float8_e4m3fn)")  # fmt: skip
        check_format(self.data, "data is", FLOAT8)
        if self.scaling.format is UE8M0 and _format(self.scales) is U8:
            raise TypeError("scales are uint8; wanted ue8m0: use scales.view(ml_dtypes.float8_e8m0fnu) or "
                            "scales.view(torch.float8_e8m0fnu)")  # fmt: skip
        check_format(self.scales, "scales are", (self.scaling.format,))

    def _check_shapes(self) -> None:
        shape = tuple(self.data.shape)
        if len(shape) not in (2, 3):
            raise ValueError(f"data has shape {shape}; wanted [rows, columns] or [batch, rows, columns]")
        wanted = self.scaling.scales_shape(shape)
        if tuple(self.scales.shape) != wanted:
            raise ValueError(
                f"scales have shape {tuple(self.scales.shape)}; wanted {wanted} for data {shape} scaled {self.scaling}"
            )

    def _check_groups(self) -> None:
        shape, ends = tuple(self.data.shape), self.ends
        check_format(ends, "ends are", (I32,))
        if (len(shape), len(self.scales.shape), len(ends.shape)) != (2, 2, 1) or self.scaling.block != (1, BLOCK):
            raise ValueError(
                f"data has shape {shape}, scales {tuple(self.scales.shape)}, ends {tuple(ends.shape)}, scaling "
                f"{self.scaling}; wanted [rows, columns], [rows, blocks], [groups] and 1x128"
            )
        least, most = -(-shape[1] // BLOCK), shape[1] // BLOCK + ends.shape[0]
        if library_of(ends) == "numpy" or ends.device.type == "cpu":
            sizes = group_sizes(np.asarray(ends), shape[1], "ends")
            least = int((-(-sizes // BLOCK)).sum())
        rows, blocks = tuple(self.scales.shape)
        if rows != shape[0] or not min(least, most) <= blocks <= most:
            raise ValueError(
                f"scales have shape {(rows, blocks)}; wanted [{shape[0]}, {least} to {most}] for data {shape} and "
                f"{ends.shape[0]} groups"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the data."""
        return tuple(self.data.shape)

    @property
    def format(self) -> Format:
        """The format of the data."""
        return formats.named(self.data.dtype)

    @property
    def mT(self) -> ScaledTensor:
        """The last two dimensions exchanged, in data and scales alike: a view, nothing is moved."""
        return self._with(self.data.swapaxes(-1, -2), self.scales.swapaxes(-1, -2), self.scaling.transposed, self.ends)

    @property
    def T(self) -> ScaledTensor:
        """mT, for a tensor of two dimensions."""
        if len(self.data.shape) != 2:
            raise ValueError(f"tensor has shape {self.shape}; .T wants two dimensions, use .mT")
        return self.mT

    def to(self, device: Any) -> ScaledTensor:
        """The same tensor on another device, named as torch names them. numpy data live on "cpu" only."""
        if library_of(self.data) == "numpy":
            if str(device) != "cpu":
                raise ValueError(f"device is {device!r}; numpy data stay on 'cpu', wanted torch tensors to move")
            return self
        ends = None if self.ends is None else self.ends.to(device)
        return self._with(self.data.to(device), self.scales.to(device), self.scaling, ends)

    @staticmethod
    def _with(data: Any, scales: Any, scaling: Scaling, ends: Any) -> ScaledTensor:
        """What was checked stays true, and this is on the call path."""
        t = object.__new__(ScaledTensor)
        t.data, t.scales, t.scaling, t.ends = data, scales, scaling, ends
        return t

    def groups(self) -> list[ScaledTensor]:
        """The groups that `ends` delimits, each a tensor of its own: views. `ends` are read on the host."""
        if self.scaling.block[0] == BLOCK:
            return [group.T for group in self.T.groups()]
        groups, column, block = [], 0, 0
        for end in self.ends.tolist():
            next_block = block + -(-(end - column) // BLOCK)
            data, scales = self.data[:, column:end], self.scales[:, block:next_block]
            groups.append(self._with(data, scales, self.scaling, None))
            column, block = end, next_block
        return groups

    def expanded(self) -> Any:
        """The scale of every element, in its library and on its device; 0 for what is of no group."""
        if self.ends is None:
            return self.scaling.expand(self.scales, self.shape)
        if self.scaling.block[0] == BLOCK:
            return self.T.expanded().T
        on_host = library_of(self.scales) == "numpy"
        expanded = np.zeros(self.shape, np.float32) if on_host else self.scales.new_zeros(self.shape)
        column = 0
        for group in self.groups():
            end = column + group.shape[1]
            expanded[:, column:end] = group.expanded()
            column = end
        return expanded

    def __repr__(self) -> str:
        return f"ScaledTensor({self.format} {list(self.shape)}, scaling={self.scaling.name!r})"


def group_sizes(ends: np.ndarray, columns: int, name: str) -> np.ndarray:
    """The sizes of groups that end there. Raises ValueError, calling `ends` that, unless they rise from 0 to `columns`
    at most."""
    sizes = np.diff(ends, prepend=0)
    if (sizes < 0).any() or (ends.size and ends[-1] > columns):
        raise ValueError(f"{name} are {ends.tolist()[:8]}...; wanted numbers that do not fall, {columns} at most")
    return sizes


def _format(x: Any) -> Format | None:
    """The format of an array; None if its dtype is none of those known."""
    try:
        return formats.named(x.dtype)
    except ValueError:
        return None


def check_format(x: Any, subject: str, wanted: tuple[Format, ...]) -> None:
    """Raises TypeError, which begins with `subject`, for an array of any other format."""
    if _format(x) not in wanted:
        raise TypeError(f"{subject} {x.dtype}; wanted {' or '.join(map(str, wanted))}")


def check_scaled(t: Any, name: str) -> None:
    """Raises TypeError, calling it `name`, for anything but a ScaledTensor."""
    if not isinstance(t, ScaledTensor):
        raise TypeError(f"{name} is a {type(t).__name__}; a kingpost.ScaledTensor is wanted (see kingpost.quantize)")
