"""Arithmetic of the matrix cores: against sums by hand, an exact sum, and (where it is installed) mmasim."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from kingpost.targets.amd.arithmetic import cdna3_float8, cdna3_half, matrix_product, rounded_once

FNUZ = ml_dtypes.float8_e4m3fnuz
DTYPES = (FNUZ, ml_dtypes.float8_e5m2fnuz, np.float16, ml_dtypes.bfloat16)


def operands(dtype: type, kind: str, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [16, k], B [16, k] and C [16, 16]: "bytes" anything, NaN too, "small" subnormals, "large" extremes."""
    random = np.random.default_rng(seed)
    size, code = np.dtype(dtype).itemsize, np.dtype(f"u{np.dtype(dtype).itemsize}")
    a, b = (random.integers(0, 256**size, (16, k), dtype=np.uint64).astype(code) for _ in range(2))
    exponent = {1: 0x78, 2: 0x7F00}[size] if dtype is not np.float16 else 0x7800
    if kind == "small":
        a, b = a & code.type(~exponent & (256**size - 1)), b
    if kind == "large":
        a = a | code.type(exponent & ~(exponent >> 1) if size == 2 else exponent)
    if kind == "normal":
        a, b = (random.standard_normal((16, k)).astype(dtype).view(code) for _ in range(2))
    c = (random.standard_normal((16, 16)) * 2.0 ** random.integers(-40, 41, (16, 16))).astype(np.float32)
    if kind == "bytes":
        c = random.integers(0, 2**32, (16, 16), dtype=np.uint64).astype(np.uint32).view(np.float32)
    return a.view(dtype), b.view(dtype), c


def test_within_float32_of_the_exact_sum() -> None:
    a, b, c = operands(FNUZ, "normal", 16)
    d = cdna3_float8(a, b, c)
    for m, n in np.ndindex(d.shape):
        terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[m], b[n])] + [Fraction(float(c[m, n]))]
        assert abs(float(sum(terms) - Fraction(float(d[m, n])))) <= 2.0**-22 * float(max(map(abs, terms)))


def test_products_below_the_24th_bit_are_cut() -> None:
    a, b = (np.zeros((1, 16), FNUZ) for _ in range(2))
    zero = np.zeros((1, 1), np.float32)
    a[0, 0], b[0, 0] = 128, 128  # 2^14
    a[0, 2], b[0, 2] = 2**-10, 1.75 * 2**-1  # 1.75 * 2^-11, 25 below: cut to 2^-10 = 1 bit of 24, so to nothing
    assert cdna3_float8(a, b, zero) == 2.0**14
    a[0, 2], b[0, 2] = 2**-9, 2**-1  # 2^-10: the last bit that is kept, but float32 has one less
    assert cdna3_float8(a, b, np.full((1, 1), -(2.0**14), np.float32)) == 2.0**-10


def test_even_and_odd_products_are_summed_apart() -> None:
    a, b = (np.zeros((1, 16), FNUZ) for _ in range(2))
    a[0, 0], b[0, 0] = 128, 128
    a[0, 1], b[0, 1] = -(2**-10), 2**-1  # odd: floored, not cut, when the two sums meet
    assert cdna3_float8(a, b, np.full((1, 1), -(2.0**14), np.float32)) == -(2.0**-10)
    a[0, 1], b[0, 1], a[0, 2], b[0, 2] = 0, 0, -(2**-10), 2**-1  # even: cut with the large one
    assert cdna3_float8(a, b, np.full((1, 1), -(2.0**14), np.float32)) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_not_a_number(dtype: type) -> None:
    a, b, c = operands(dtype, "normal", 16)
    a[3, 5], c[4, 7] = np.nan, np.nan
    d = matrix_product("gfx942", a, b, c)
    wanted = np.zeros(d.shape, bool)
    wanted[3], wanted[4, 7] = True, True
    assert (d.view(np.uint32)[wanted] == 0x7FFFFFFF).all() and np.isfinite(d[~wanted]).all()


def test_infinities_follow_ieee_754() -> None:
    a, b, c = operands(np.float16, "normal", 8)
    a[0, 0], b[0, 0], b[1, 0] = np.inf, 1, -1
    c[0, 1] = np.inf
    d = cdna3_half(a, b, c)
    assert d[0, 0] == np.inf and np.isnan(d[0, 1])


def test_cdna4_rounds_once() -> None:
    a, b, c = operands(ml_dtypes.float8_e4m3fn, "normal", 128)
    exact = a.astype(np.float64) @ b.astype(np.float64).T + c
    assert (rounded_once(a, b, c) == exact.astype(np.float32)).all()


@pytest.mark.parametrize("kind", ["bytes", "small", "large", "normal"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_equal_to_mmasim(dtype: type, kind: str) -> None:
    torch, sim = pytest.importorskip("torch"), pytest.importorskip("mmasim.amd.sim")
    suffix, torch_dtype, k = {
        "float8_e4m3fnuz": ("f32_16x16x32_fp8_fp8", torch.float8_e4m3fnuz, 32),
        "float8_e5m2fnuz": ("f32_16x16x32_bf8_bf8", torch.float8_e5m2fnuz, 32),
        "float16": ("f32_16x16x16_f16", torch.float16, 16),
        "bfloat16": ("f32_16x16x16_bf16", torch.bfloat16, 16),
    }[np.dtype(dtype).name]
    for seed in range(8):
        a, b, c = operands(dtype, kind, k, seed)
        raw = np.int8 if a.dtype.itemsize == 1 else np.int16
        given = (torch.from_numpy(x.view(raw).copy()).view(torch_dtype) for x in (a, b))
        theirs = sim.MFMA("CDNA3", suffix)(next(given), next(given).T, torch.from_numpy(c.copy())).numpy()
        ours = matrix_product("gfx942", a, b, c)
        equal = ours.view(np.uint32) == theirs.view(np.uint32)
        if dtype is ml_dtypes.float8_e5m2fnuz:  # there a NaN or infinite c, of exponent -1 to mmasim, drops out
            equal |= ~np.isfinite(ours)
        assert equal.all()
