"""The portable kernels on numpy, bit for bit (but those of a NaN): each function writes its last arguments in place.

Arrays are as `kingpost.registry.Elementwise` lists them; any strides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost import formats, quantization
from kingpost.formats import F32
from kingpost.portable.block_scale import Rounding
from kingpost.portable.exponential import OnArrays, silu
from kingpost.scaling import BLOCK, named

BY_ROW = named("1x128")


def vector_add(x: np.ndarray, y: np.ndarray, d: np.ndarray) -> None:
    """d = x + y, float32."""
    np.add(x, y, out=d)


def cast(x: np.ndarray, data: np.ndarray, scales: np.ndarray, *, scaling: str = "1x128", **rounding: Any) -> None:
    """x [M, K] to data, e4m3 or e4m3fnuz, and scales, as `kingpost.quantize` does where x is finite.

    A NaN becomes a NaN code, and the others of its block are scaled without it. An infinity makes the scale of its
    block infinite and itself a NaN code, and so it does to the others, or makes them zero where they are divided at
    once (a small eps) or multiplied by the reciprocal; with power_of_two the scale is 2^127. rounding: eps,
    power_of_two, reciprocal_maximum, reciprocal_scale.
    """
    x, format, kind = _float32(x), formats.of(data.dtype), named(scaling)
    finite = np.where(np.isfinite(x), x, np.float32(0))
    quantized = quantization.quantize(finite, kind, format=format, **rounding)
    data[...], scales[...] = quantized.data, quantized.scales
    if np.isinf(x).any():
        infinite = quantization.quantize(np.isinf(x).astype(np.float32), kind, format=format, eps=0.0).scales != 1
        inside, how = kind.expand(infinite, x.shape), Rounding.of(format, **rounding)
        if how.power_of_two:
            scales[infinite], data[inside] = 2.0**127, formats.cast(x[inside] / np.float32(2.0**127), format)
        else:
            scales[infinite], data[inside] = np.inf, np.float32(np.nan)
            if how.small or how.reciprocal_scale:
                zeros = inside & np.isfinite(x)
                data[zeros] = formats.cast(np.copysign(np.float32(0), x[zeros]), format)
    data[np.isnan(x)] = np.float32(np.nan)


def transposed_cast(x: np.ndarray, *more: np.ndarray, **rounding: Any) -> None:
    """x [K, M] to data [M, K] and scales [M, blocks], the last two arguments; ends, if given before them, cut K."""
    *given, data, scales = more
    begin = blocks = 0
    for end in given[0].tolist() if given else [len(x)]:
        size = -(-(end - begin) // BLOCK)
        cast(x[begin:end].T, data[:, begin:end], scales[:, blocks : blocks + size], **rounding)
        begin, blocks = end, blocks + size


def silu_mul_cast(x: np.ndarray, data: np.ndarray, scales: np.ndarray, **rounding: Any) -> None:
    """The cast of silu(gate) * up: x [M, 2 K] holds gate | up."""
    gate, up = np.split(_float32(x), 2, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        product = silu(OnArrays(), gate) * up
    cast(product, data, scales, **rounding)


def masked_silu_mul_cast(
    x: np.ndarray, counts: np.ndarray, data: np.ndarray, scales: np.ndarray, **rounding: Any
) -> None:
    """The same of the first counts[g] rows of each x[g]."""
    for group, count in enumerate(counts.tolist()):
        silu_mul_cast(*(each[group, :count] for each in (x, data, scales)), **rounding)


def relayout(source: np.ndarray, destination: np.ndarray) -> None:
    """The same scales at other strides, NaN's bits included."""
    destination.view(np.uint32)[...] = source.view(np.uint32)


def transpose(source: np.ndarray, destination: np.ndarray) -> None:
    """destination [C, R] = source [R, C], transposed."""
    destination[...] = source.T


def add_slices(x: np.ndarray, *more: np.ndarray) -> None:
    """The last argument, [M, N], = c, if it is given before it, + x[0] + x[1] + ...: x [S, M, N], float32."""
    *c, d = more
    total = _float32(c[0]) if c else x[0]
    for each in x if c else x[1:]:
        total = total + each
    d[...] = formats.converted(formats.canonical_nan(total), formats.of(d.dtype))


def dequantise(data: np.ndarray, scales: np.ndarray, d: np.ndarray) -> None:
    """d [M, K] = data times the scale of its block, rounded to float32; bfloat16 by way of float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = formats.decode(data) * BY_ROW.expand(scales, data.shape)
    d[...] = formats.cast(values, formats.of(d.dtype))


def _float32(x: np.ndarray) -> np.ndarray:
    return x if x.dtype == F32.dtype else formats.cast(x, F32)
