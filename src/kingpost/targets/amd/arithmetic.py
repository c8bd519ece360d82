"""What AMD's matrix cores compute.

CDNA3 (gfx942), bit for bit by the models of arXiv 2511.10909 (the package mmasim), never compared with silicon here:
every operand is significand * 2^exponent, 1 <= |significand| < 2, subnormals keep the smallest normal exponent, and a
product's exponent is the sum of its operands'. Products are truncated toward zero to 24 fraction bits relative to the
largest exponent among them and summed exactly; that sum, floored to 32 fraction bits, is added to the accumulator,
floored to 24, both relative to the larger of their exponents; the result is floored to 31 fraction bits and rounded to
float32, ties to even.

CDNA4 (gfx950) has no public model of its bits. `rounded_once` computes in float64 and rounds once to float32: results
are at least as good as float32's, but equality with the chip's bits is not claimed.
"""

from __future__ import annotations

import numpy as np

from kingpost.formats import canonical_nan

FRACTION_BITS = 24  # of products and of the accumulator, when they are aligned
SUM_BITS = 31  # of the sum before it is rounded
FLOAT8_STEP, HALF_STEP = 16, 8  # products fused at once
_NO_EXPONENT = -999  # of a zero product: below every other

_Sum = tuple[np.ndarray, np.ndarray]  # significand (float64), exponent (int)


def cdna3_float8(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c + a @ b.T for FNUZ float8 operands, 16 of K at a time: a [M, K], b [N, K] of a dtype of ml_dtypes, c float32
    [M, N]. Products of even and of odd k are summed apart, then together, floored to 24 fraction bits."""
    for step in range(0, a.shape[1], FLOAT8_STEP):
        part = slice(step, step + FLOAT8_STEP)
        c = _fused(a[:, part], b[:, part], c, split=True)
    return c


def cdna3_half(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c + a @ b.T for float16 or bfloat16 operands, 8 of K at a time: a [M, K], b [N, K], c float32 [M, N]."""
    for step in range(0, a.shape[1], HALF_STEP):
        part = slice(step, step + HALF_STEP)
        c = _fused(a[:, part], b[:, part], c, split=False)
    return c


def rounded_once(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c + a @ b.T in float64, rounded to float32: a [M, K], b [N, K] of any float dtype, c float32 [M, N]."""
    with np.errstate(over="ignore", invalid="ignore"):
        return canonical_nan((a.astype(np.float64) @ b.astype(np.float64).T + c).astype(np.float32))


def matrix_product(target: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c + a @ b.T as `target` ("gfx942", "gfx950") computes it; operands as above."""
    if target != "gfx942":
        return rounded_once(a, b, c)
    return (cdna3_float8 if a.dtype.itemsize == 1 else cdna3_half)(a, b, c)


def _fused(a: np.ndarray, b: np.ndarray, c: np.ndarray, split: bool) -> np.ndarray:
    """One fused step: all of K at once."""
    formats = a.dtype, b.dtype
    with np.errstate(over="ignore", invalid="ignore"):
        a, b = a.astype(np.float64), b.astype(np.float64)
        exact = a[:, None, :] * b[None, :, :]
        exact[np.abs(exact) >= 2.0**128] *= np.inf  # only bfloat16 reaches it
        ieee = (exact.sum(axis=2) + c).astype(np.float32)
        special = ~np.isfinite(exact).all(axis=2) | ~np.isfinite(c)
        (s_a, e_a), (s_b, e_b) = (
            _parts(np.where(np.isfinite(x), x, 0), _lowest(format)) for x, format in zip((a, b), formats)
        )
        s, e = s_a[:, None, :] * s_b[None, :, :], e_a[:, None, :] + e_b[None, :, :]
        e = np.where(s == 0, _NO_EXPONENT, e)
        if split:
            dot = _joined(_truncated(s[..., ::2], e[..., ::2]), _truncated(s[..., 1::2], e[..., 1::2]))
        else:
            dot = _truncated(s, e)
        result = _accumulated(dot, np.where(np.isfinite(c), c, np.float32(0)), drops=split)
    return canonical_nan(np.where(special, ieee, result))


def _truncated(s: np.ndarray, e: np.ndarray) -> _Sum:
    """The sum over the last axis of terms truncated toward zero relative to the largest exponent."""
    highest = e.max(axis=-1)
    terms = np.trunc(np.ldexp(s, e - highest[..., None] + FRACTION_BITS))
    return np.ldexp(terms.sum(axis=-1), -FRACTION_BITS), highest


def _joined(even: _Sum, odd: _Sum) -> _Sum:
    highest = np.maximum(even[1], odd[1])
    floors = [np.floor(np.ldexp(s, e - highest + FRACTION_BITS)) for s, e in (even, odd)]
    return np.ldexp(floors[0] + floors[1], -FRACTION_BITS), highest


def _accumulated(dot: _Sum, c: np.ndarray, drops: bool) -> np.ndarray:
    """dot + c, as float32. drops: c vanishes when its exponent is more than 25 below."""
    s_c, e_c = _parts(c.astype(np.float64), -126)
    highest = np.maximum(dot[1], e_c)
    s_dot = np.ldexp(np.floor(np.ldexp(dot[0], dot[1] - highest + SUM_BITS + 1)), -SUM_BITS - 1)
    s_c = np.ldexp(np.floor(np.ldexp(s_c, e_c - highest + FRACTION_BITS)), -FRACTION_BITS)
    if drops:
        s_c = np.where(e_c < highest - FRACTION_BITS - 1, 0, s_c)
    s, e = _parts(np.ldexp(s_dot + s_c, highest), -126)
    return np.ldexp(np.floor(np.ldexp(s, SUM_BITS)), e - SUM_BITS).astype(np.float32)


def _parts(x: np.ndarray, lowest: int) -> _Sum:
    """Finite float64 `x` as significand and exponent; those below 2^lowest, zero too, have exponent `lowest`."""
    e = np.where(x == 0, lowest, np.maximum(np.frexp(x)[1] - 1, lowest))
    return np.ldexp(x, -e), e


def _lowest(dtype: np.dtype) -> int:
    """The exponent of a format's smallest normal number."""
    return {"float8_e4m3fnuz": -7, "float8_e5m2fnuz": -15, "float16": -14, "bfloat16": -126}[dtype.name]
