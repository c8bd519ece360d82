"""Quantising to a scaling, back, and looking a scaled tensor over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kingpost import formats
from kingpost.arrays import library_of
from kingpost.formats import E4M3, FLOAT8, UE8M0, Format
from kingpost.scaling import ScaledTensor, Scaling, check_format, check_scaled, decoded, named

SMALLEST_NORMAL = np.float32(2.0**-126)  # its reciprocal is finite


@dataclass(frozen=True)
class Rounding:
    """How a block's scale and codes come from its numbers; see `kingpost.quantize`."""

    eps: np.float32
    power_of_two: bool = False
    reciprocal_maximum: bool = False
    reciprocal_scale: bool = False


def quantize(
    x: Any,
    scaling: str | Scaling,
    *,
    format: Any = E4M3,
    eps: float = 1e-10,
    power_of_two: bool = False,
    reciprocal_maximum: bool = False,
    reciprocal_scale: bool = False,
) -> ScaledTensor:
    """`kingpost.quantize` by x's own library, which says what the arguments mean.

    x: float32, bfloat16 or float16, numpy or torch, [rows, columns] or [batch, rows, columns], any strides. Returns
    data and scales, both contiguous, in the same library and on the same device; numpy and torch give the same bits.
    Raises ValueError naming x if it holds NaN or infinity; data on a GPU are not read back to find out.
    """
    scaling, target = named(scaling), formats.named(format)
    if target not in FLOAT8:
        raise ValueError(f"format is {target}; wanted one of {', '.join(map(str, FLOAT8))}")
    rounding = Rounding(amax_floor(eps), scaling.format is UE8M0 or power_of_two, reciprocal_maximum, reciprocal_scale)
    library = library_of(x, "x")
    check_format(x, "x is", (formats.F32, formats.BF16, formats.F16))
    if len(x.shape) not in (2, 3):
        raise ValueError(f"x has shape {tuple(x.shape)}; wanted [rows, columns] or [batch, rows, columns]")
    kernel = _quantize_numpy if library == "numpy" else _quantize_torch
    data, scales = kernel(x, scaling, target, rounding)
    return ScaledTensor(data, scales, scaling)


def amax_floor(eps: Any) -> np.float32:
    """`eps` as float32. Raises ValueError for what is no number, below 0, or no finite float32."""
    if not isinstance(eps, (int, float, np.floating)) or not 0 <= eps <= float(np.finfo(np.float32).max):
        raise ValueError(f"eps is {eps!r}; a finite number of at least 0 is wanted, in the range of float32")
    return np.float32(eps)


def _quantize_numpy(
    x: np.ndarray, scaling: Scaling, format: Format, rounding: Rounding
) -> tuple[np.ndarray, np.ndarray]:
    x = np.ascontiguousarray(x, dtype=np.float32)
    padding, blocked = _blocks(x.shape, scaling)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + padding) if any(after for _, after in padding) else x
    amax = np.abs(padded).reshape(blocked).max(axis=(-3, -1), initial=0)
    if not np.isfinite(amax).all():
        raise ValueError("x holds NaN or infinity; wanted finite numbers")
    floored, maximum = np.maximum(amax, rounding.eps), np.float32(format.maximum)
    scales = floored * (1 / maximum) if rounding.reciprocal_maximum else floored / maximum
    scales[scales == 0] = 1
    if rounding.reciprocal_scale:
        scales = np.maximum(scales, SMALLEST_NORMAL)
    if rounding.power_of_two:
        bits = scales.view(np.int32)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
        scales = (np.clip(exponent, 1, 254) << 23).astype(np.int32).view(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        inverse = 1 / scales if rounding.reciprocal_scale else None
        expand = scaling.expand(scales if inverse is None else inverse, x.shape)
        codes = formats.cast(x / expand if inverse is None else x * expand, format)
    return codes, formats.cast(scales, scaling.format)


def _quantize_torch(x: Any, scaling: Scaling, format: Format, rounding: Rounding) -> tuple[Any, Any]:
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
    floored, maximum = amax.clamp(min=float(rounding.eps)), amax.new_full((), format.maximum)
    scales = floored * (1 / maximum) if rounding.reciprocal_maximum else floored / maximum
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    if rounding.reciprocal_scale:
        scales = scales.clamp(min=float(SMALLEST_NORMAL))
    if rounding.power_of_two:
        bits = scales.view(torch.int32)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
        scales = (exponent.clamp(1, 254) << 23).view(torch.float32)
    if rounding.reciprocal_scale:
        quotient = x * scaling.expand(torch.ones_like(scales) / scales, tuple(x.shape))
    else:
        quotient = x / scaling.expand(scales, tuple(x.shape))
    codes = quotient.clamp(-format.maximum, format.maximum).to(getattr(torch, format.dtype.name))
    return codes, scales.to(getattr(torch, scaling.format.dtype.name))


def _blocks(shape: tuple[int, ...], scaling: Scaling) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Zeros to append to rows and columns, and the shape [..., blocks, rows, blocks, columns] to give them then."""
    blocks = scaling.scales_shape(shape)[-2:]
    spans = [size if block is None else block for size, block in zip(shape[-2:], scaling.block)]
    padding = [(0, n * span - size) for n, span, size in zip(blocks, spans, shape[-2:])]
    return padding, (*shape[:-2], blocks[0], spans[0], blocks[1], spans[1])


def dequantize(t: ScaledTensor) -> Any:
    """The values of `t` as float32, in its library and on its device: code times scale, rounded once."""
    check_scaled(t, "t")
    return _float32(t.data) * t.expanded()


def validate(t: ScaledTensor) -> None:
    """Raises ValueError, with the first place, if `t` holds a scale that is not finite and positive, or a code that is
    NaN or infinite. Data on a GPU are examined there and one verdict is read back, so this waits for them."""
    check_scaled(t, "t")
    scales, data = decoded(t.scales), _float32(t.data)
    for name, values, wanted in (("scales", scales, "finite and positive"), ("data", data, "finite")):
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
