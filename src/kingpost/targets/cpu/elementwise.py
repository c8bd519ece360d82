"""The portable kernels on numpy, bit for bit (but those of a NaN): each function writes its last arguments in place.

Arrays are as `kingpost.registry.Elementwise` lists them; any strides.
"""

from __future__ import annotations

import numpy as np

from kingpost import formats, quantization, scaling
from kingpost.formats import F32
from kingpost.portable.exponential import OnArrays, silu
from kingpost.scaling import BLOCK

BY_ROW = scaling.named("1x128")


def vector_add(x: np.ndarray, y: np.ndarray, d: np.ndarray) -> None:
    """d = x + y, float32."""
    np.add(x, y, out=d)


def cast(
    x: np.ndarray, data: np.ndarray, scales: np.ndarray, *, eps: float = 1e-10, power_of_two: bool = False
) -> None:
    """x [M, K] to data, e4m3 or e4m3fnuz, and scales [M, ceil(K/128)], as `kingpost.quantize` does where x is finite.

    A NaN becomes a NaN code, and the others of its block are scaled without it. An infinity makes the scale of its
    block infinite, 2^127 with power_of_two.
    """
    x, format = _float32(x), formats.of(data.dtype)
    finite = np.where(np.isfinite(x), x, np.float32(0))
    quantized = quantization.quantize(finite, BY_ROW, format=format, eps=eps, power_of_two=power_of_two)
    data[...], scales[...] = quantized.data, quantized.scales
    infinite = np.add.reduceat(np.isinf(x), np.arange(0, x.shape[1], BLOCK), axis=1) > 0
    if infinite.any():
        inside = BY_ROW.expand(infinite, x.shape)
        scales[infinite] = 2.0**127 if power_of_two else np.inf
        data[inside] = formats.cast(x[inside] / np.float32(2.0**127), format) if power_of_two else np.float32(np.nan)
    data[np.isnan(x)] = np.float32(np.nan)


def silu_mul_cast(
    x: np.ndarray, data: np.ndarray, scales: np.ndarray, *, eps: float = 1e-10, power_of_two: bool = False
) -> None:
    """The cast of silu(gate) * up: x [M, 2 K] holds gate | up."""
    gate, up = np.split(_float32(x), 2, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        product = silu(OnArrays(), gate) * up
    cast(product, data, scales, eps=eps, power_of_two=power_of_two)


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
