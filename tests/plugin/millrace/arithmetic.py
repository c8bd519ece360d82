"""What the matrix unit, the scaler and the drain compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost import formats, quantization
from kingpost.formats import Format

Array = np.ndarray[Any, Any]


def matrix_step(accumulator: Array, a: Array, b: Array) -> Array:
    """float32 [m, n] + e4m3 [m, k] e4m3 [n, k]^T, all k terms and the accumulator added exactly, rounded once.

    Terms are multiples of 2^-18 below 2^18, and so is the accumulator's last bit: float64 holds every sum.
    """
    left, right = (formats.decode(x, dtype=np.float64) for x in (a, b))
    return (accumulator + left @ right.T).astype(np.float32)


def scale_add(accumulator: Array, scale_a: Array, scale_b: Array, total: Array) -> Array:
    """float32: fma(accumulator [m, n], rn32(scale_a [m, 1] * scale_b [1, 1]), total [m, n])."""
    return formats.fma32(accumulator, scale_a * scale_b, total)


def drained(total: Array, format: Format) -> Array:
    return formats.cast(total, format)


def quantised(x: Array, format: Format, eps: float, power_of_two: bool) -> tuple[Array, Array]:
    """Codes [m, 128] and scales [m, 1]: the quantiser was built to kingpost's rule."""
    result = quantization.quantize(x, "1x128", format=format, eps=eps, power_of_two=power_of_two)
    return result.data, result.scales
