"""Operands of products: normal numbers in bfloat16, or quantised, in numpy; and how results are compared."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import kingpost as kp
from kingpost.scaling import SCALINGS

BF16 = ml_dtypes.bfloat16
I32 = np.dtype(np.int32)


def normal(*shape: int, seed: int = 0, dtype: object = BF16) -> np.ndarray:
    """Different for different shapes, so that operands of one test are not alike."""
    random = np.random.default_rng([seed, *shape])
    return random.standard_normal(shape, dtype=np.float32).astype(dtype)


def scaled(*shape: int, scaling: str = "1x128", format: str = "e4m3", seed: int = 0) -> kp.ScaledTensor:
    """Quantised; "1x32:ue8m0" by hand, codes under scales that are powers of two near 1."""
    if ":" not in scaling:
        return kp.quantize(normal(*shape, seed=seed, dtype=np.float32), scaling, format=format)
    random = np.random.default_rng([seed, *shape])
    codes = kp.quantize(normal(*shape, seed=seed, dtype=np.float32), "tensor", format=format).data
    scales = random.integers(124, 131, SCALINGS[scaling].scales_shape(shape), np.uint8)
    return kp.ScaledTensor(codes, scales.view(ml_dtypes.float8_e8m0fnu), scaling)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def same(x: np.ndarray, y: np.ndarray) -> bool:
    """The same bits."""
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def in_order(x: np.ndarray, *order: int) -> np.ndarray:
    """The same numbers, with these dimensions from the slowest to the fastest in memory."""
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


def stored(t: kp.ScaledTensor, *order: int) -> kp.ScaledTensor:
    """The same tensor, its codes in that order in memory."""
    return kp.ScaledTensor(in_order(t.data, *order), t.scales, t.scaling)
