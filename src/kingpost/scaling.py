"""How a tensor is scaled, the tensor with its scales, and quantising to it.

A scaling gives every block of a matrix one float32 scale; an element's value is its code's value times its block's
scale. Blocks at the edges may be partial. The names say rows x columns: "1x128" is how activations [M, K] are usually
scaled, "128x128" weights [N, K].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kingpost import formats
from kingpost.arrays import empty, library_of
from kingpost.formats import E4M3, FLOAT8, U8, Format

BLOCK = 128  # elements of K that share a scale, in the scalings by block


@dataclass(frozen=True)
class Scaling:
    """name: what users write. block: the rows and columns that share a scale, None for all there are."""

    name: str
    block: tuple[int | None, int | None]

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

    def by_block(self, scales: Any, shape: tuple[int, ...]) -> Any:
        """The scale of every row in every block of 128 columns: `scales` repeated to [..., rows, ceil(columns / 128)].

        For a scaling whose blocks are 128 columns wide, or all of them.
        """
        one = Scaling(self.name, (self.block[0], None if self.block[1] is None else 1))
        return one.expand(scales, (*shape[:-1], -(-shape[-1] // BLOCK)))

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
    )
}
_BY_BLOCK = {scaling.block: scaling for scaling in SCALINGS.values()}


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
    """New float32 scales [M, B], contents undefined, that lie as `layout` says, in the library and place of `like`.

    layout: "row-major"; "column-major", strides (1, M) elements; "deepgemm", strides (1, M rounded up to 4), which its
    tensor maps want. Raises ValueError, listing them, for another name.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; wanted one of {', '.join(LAYOUTS)}")
    grid, (rows, columns) = LAYOUTS[layout], shape
    if grid is None:
        return empty(shape, formats.F32, like)
    return empty((columns, -(-rows // grid) * grid), formats.F32, like)[:, :rows].T


class ScaledTensor:
    """float8 data with the float32 scales of its blocks: value = data * scale.

    data: numpy or torch, e4m3, e4m3fnuz or e5m2, [rows, columns], or [batch, rows, columns]. scales: float32, same
    library and device, exactly `scaling.scales_shape(data.shape)`: ceil(size / block) along each dimension, 1 where the
    block is all of it ("tensor": [1, 1], "row": [rows, 1]). Both are kept as given, whatever their strides; nothing is
    copied. Raises TypeError or ValueError, naming the argument, for anything else.
    """

    __slots__ = ("data", "scales", "scaling")

    def __init__(self, data: Any, scales: Any, scaling: str | Scaling) -> None:
        self.data = data
        self.scales = scales
        self.scaling = named(scaling)
        library = library_of(data, "data")
        if library_of(scales, "scales") != library:
            raise TypeError(f"scales are a {library_of(scales)} array and data a {library} one; wanted both alike")
        self._check_types()
        self._check_shapes()
        if library == "torch" and data.device != scales.device:
            raise ValueError(f"scales are on {scales.device} and data on {data.device}; wanted both on one device")

    def _check_types(self) -> None:
        if _format(self.data) is U8:
            raise TypeError("data is uint8, which does not say which float8 it holds; wanted e4m3, e4m3fnuz or e5m2: "
                            "use data.view(ml_dtypes.float8_e4m3fn) or data.view(torch.float8_e4m3fn)")  # fmt: skip
        _check_format(self.data, "data is", FLOAT8)
        _check_format(self.scales, "scales are", (formats.F32,))

    def _check_shapes(self) -> None:
        shape = tuple(self.data.shape)
        if len(shape) not in (2, 3):
            raise ValueError(f"data has shape {shape}; wanted [rows, columns] or [batch, rows, columns]")
        wanted = self.scaling.scales_shape(shape)
        if tuple(self.scales.shape) != wanted:
            raise ValueError(
                f"scales have shape {tuple(self.scales.shape)}; wanted {wanted} for data {shape} scaled {self.scaling}"
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
        turned = object.__new__(ScaledTensor)  # what was checked stays true, and this is on the call path
        turned.data = self.data.swapaxes(-1, -2)
        turned.scales = self.scales.swapaxes(-1, -2)
        turned.scaling = self.scaling.transposed
        return turned

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
        return ScaledTensor(self.data.to(device), self.scales.to(device), self.scaling)

    def __repr__(self) -> str:
        return f"ScaledTensor({self.format} {list(self.shape)}, scaling={self.scaling.name!r})"


def quantize(
    x: Any, scaling: str | Scaling, *, format: Any = E4M3, eps: float = 1e-10, power_of_two: bool = False
) -> ScaledTensor:
    """`x` with one scale per block, chosen so that the block's largest magnitude becomes the format's largest value.

    x: float32, bfloat16 or float16, numpy or torch, [rows, columns] or [batch, rows, columns], any strides. Returns
    data and scales, both contiguous, in the same library and on the same device; numpy and torch give the same bits.
    In float32, every operation rounded to nearest even:

        scale = max(amax, eps) / format.maximum              (1 if that is 0, which needs eps=0)
        data  = cast(x / scale, format), saturating

    Both are divisions: multiplying by a rounded reciprocal differs in the last bit of some scales. eps is the floor of
    amax, which decides what near-zero blocks become; frameworks use 1e-4, 1e-6, 1e-10 (here), 1e-12 and 0.
    power_of_two: the scale is rounded up to the next power of two, at least 2^-126, so that nothing saturates.
    Raises ValueError naming x if it holds NaN or infinity; data on a GPU are not read back to find out.
    """
    scaling, target = named(scaling), formats.named(format)
    if target not in FLOAT8:
        raise ValueError(f"format is {target}; wanted one of {', '.join(map(str, FLOAT8))}")
    floor = amax_floor(eps)
    library = library_of(x, "x")
    _check_format(x, "x is", (formats.F32, formats.BF16, formats.F16))
    if len(x.shape) not in (2, 3):
        raise ValueError(f"x has shape {tuple(x.shape)}; wanted [rows, columns] or [batch, rows, columns]")
    kernel = _quantize_numpy if library == "numpy" else _quantize_torch
    data, scales = kernel(x, scaling, target, floor, power_of_two)
    return ScaledTensor(data, scales, scaling)


def amax_floor(eps: Any) -> np.float32:
    """`eps` as float32. Raises ValueError for what is no number, below 0, or no finite float32."""
    if not isinstance(eps, (int, float, np.floating)) or not 0 <= eps <= float(np.finfo(np.float32).max):
        raise ValueError(f"eps is {eps!r}; a finite number of at least 0 is wanted, in the range of float32")
    return np.float32(eps)


def _quantize_numpy(
    x: np.ndarray, scaling: Scaling, format: Format, eps: np.float32, power_of_two: bool
) -> tuple[np.ndarray, np.ndarray]:
    x = np.ascontiguousarray(x, dtype=np.float32)
    padding, blocked = _blocks(x.shape, scaling)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + padding) if any(after for _, after in padding) else x
    amax = np.abs(padded).reshape(blocked).max(axis=(-3, -1), initial=0)
    if not np.isfinite(amax).all():
        raise ValueError("x holds NaN or infinity; wanted finite numbers")
    scales = np.maximum(amax, eps) / np.float32(format.maximum)
    scales[scales == 0] = 1
    if power_of_two:
        bits = scales.view(np.int32)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
        scales = (np.clip(exponent, 1, 254) << 23).astype(np.int32).view(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return formats.cast(x / scaling.expand(scales, x.shape), format), scales


def _quantize_torch(x: Any, scaling: Scaling, format: Format, eps: np.float32, power_of_two: bool) -> tuple[Any, Any]:
    import torch

    assert format.maximum is not None
    if x.layout is not torch.strided:
        raise ValueError(f"x is {str(x.layout).removeprefix('torch.')}; wanted dense memory")
    x = x.detach().to(torch.float32).contiguous()
    padding, blocked = _blocks(tuple(x.shape), scaling)
    (_, rows), (_, columns) = padding
    padded = torch.nn.functional.pad(x, (0, columns, 0, rows)) if rows or columns else x
    if x.numel():
        amax = padded.abs().reshape(blocked).amax(dim=(-3, -1))
    else:
        amax = x.new_zeros(scaling.scales_shape(tuple(x.shape)))
    if x.device.type == "cpu" and not bool(torch.isfinite(amax).all()):
        raise ValueError("x holds NaN or infinity; wanted finite numbers")
    # a tensor, since dividing by a number is multiplying by its reciprocal on a GPU
    scales = amax.clamp(min=float(eps)) / amax.new_full((), format.maximum)
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    if power_of_two:
        bits = scales.view(torch.int32)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
        scales = (exponent.clamp(1, 254) << 23).view(torch.float32)
    quotient = x / scaling.expand(scales, tuple(x.shape))
    return quotient.clamp(-format.maximum, format.maximum).to(getattr(torch, format.dtype.name)), scales


def _blocks(shape: tuple[int, ...], scaling: Scaling) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Zeros to append to rows and columns, and the shape [..., blocks, rows, blocks, columns] to give them then."""
    blocks = scaling.scales_shape(shape)[-2:]
    spans = [size if block is None else block for size, block in zip(shape[-2:], scaling.block)]
    padding = [(0, n * span - size) for n, span, size in zip(blocks, spans, shape[-2:])]
    return padding, (*shape[:-2], blocks[0], spans[0], blocks[1], spans[1])


def dequantize(t: ScaledTensor) -> Any:
    """The values of `t` as float32, in its library and on its device: code times scale, rounded once."""
    check_scaled(t, "t")
    return _float32(t.data) * t.scaling.expand(t.scales, t.shape)


def validate(t: ScaledTensor) -> None:
    """Raises ValueError, with the first place, if `t` holds a scale that is not finite and positive, or a code that is
    NaN or infinite. Data on a GPU are examined there and one verdict is read back, so this waits for them."""
    check_scaled(t, "t")
    for name, values, wanted in (("scales", t.scales, "finite and positive"), ("data", _float32(t.data), "finite")):
        good = abs(values) < float("inf")
        if name == "scales":
            good &= values > 0
        if not bool(good.all()):
            place = tuple(int(i) for i in np.argwhere(~_host(good))[0])
            raise ValueError(f"{name} at {place} are {float(values[place])}; wanted {wanted} numbers")


def _float32(data: Any) -> Any:
    if library_of(data) == "numpy":
        return formats.decode(data)
    import torch

    return data.to(torch.float32)


def _host(x: Any) -> np.ndarray:
    return x if library_of(x) == "numpy" else x.cpu().numpy()


def _format(x: Any) -> Format | None:
    """The format of an array; None if its dtype is none of those known."""
    try:
        return formats.named(x.dtype)
    except ValueError:
        return None


def _check_format(x: Any, subject: str, wanted: tuple[Format, ...]) -> None:
    """Raises TypeError, which begins with `subject`, for an array of any other format."""
    if _format(x) not in wanted:
        raise TypeError(f"{subject} {x.dtype}; wanted {' or '.join(map(str, wanted))}")


def check_scaled(t: Any, name: str) -> None:
    """Raises TypeError, calling it `name`, for anything but a ScaledTensor."""
    if not isinstance(t, ScaledTensor):
        raise TypeError(f"{name} is a {type(t).__name__}; a kingpost.ScaledTensor is wanted (see kingpost.quantize)")
