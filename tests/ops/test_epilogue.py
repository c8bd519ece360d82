"""What becomes of a total: alpha, c and bias, each step rounded to float32, and what is written where."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kingpost as kp
from kingpost import formats

from .operands import BF16, normal, same, scaled
from .recorder import Recorder

M, N, K = 5, 16, 272
OUT = {"bfloat16": np.dtype(BF16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}
FACTORS = {
    "bfloat16": (normal(M, K), normal(K, N)),
    "e4m3": (scaled(M, K), scaled(N, K, scaling="128x128").T),
}


def stated(total: np.ndarray, out: Any, c: Any = None, alpha: Any = None, bias: Any = None) -> np.ndarray:
    """round(alpha * total + c + bias) with every step in float32."""
    total = total if alpha is None else total * np.float32(alpha)
    for each in (c, bias):
        total = total if each is None else total + each.astype(np.float32)
    return formats.cast(total, out)


@pytest.mark.parametrize("of", FACTORS)
@pytest.mark.parametrize("out", OUT)
@pytest.mark.parametrize("bias_dtype", OUT)
def test_each_step_is_rounded_in_order(of: str, out: str, bias_dtype: str) -> None:
    a, b = FACTORS[of]
    total = kp.mm(a, b, out_dtype="float32")
    c, bias = normal(M, N, dtype=OUT[out]), normal(N, dtype=OUT[bias_dtype])
    for given in ({"c": c}, {"bias": bias}, {"alpha": 0.3}, {"c": c, "bias": bias, "alpha": -3}):
        assert same(kp.mm(a, b, out_dtype=out, **given), stated(total, out, **given)), given


def test_the_result_is_of_the_format_of_what_is_added() -> None:
    a, b = FACTORS["bfloat16"]
    c = normal(M, N, dtype=np.float32)
    assert kp.mm(a, b, c=c).dtype == np.float32
    with pytest.raises(TypeError, match="c is float32; bfloat16 is wanted"):
        kp.mm(a, b, c=c, out_dtype="bfloat16")
    with pytest.raises(TypeError, match="out is float32; bfloat16 is wanted"):
        kp.mm(a, b, out=c, out_dtype="bfloat16")
    with pytest.raises(ValueError, match="out_dtype is e4m3; one of bfloat16, float16, float32 is wanted"):
        kp.mm(a, b, out=np.empty((M, N), ml_dtypes.float8_e4m3fn))


def test_c_may_be_the_result() -> None:
    a, b = FACTORS["e4m3"]
    c = normal(M, N, dtype=np.float32)
    want = kp.mm(a, b, c=c)
    assert kp.mm(a, b, c=c, out=c) is c and same(c, want)
    device = Recorder()
    for other, in_place in ((c, True), (c[:], True), (c.copy(), False)):
        kp.mm(a, b, c=other, out=c, device=device)
        assert device.last[0].in_place is in_place


def test_c_may_not_be_part_of_the_result() -> None:
    a, b = FACTORS["e4m3"]
    room = np.zeros((M + 1, N), np.float32)
    with pytest.raises(ValueError, match="out shares memory with c; memory of its own is wanted"):
        kp.mm(a, b, c=room[1:], out=room[:-1])
    bias = room.reshape(-1)[:N]
    with pytest.raises(ValueError, match="out shares memory with bias; memory of its own is wanted"):
        kp.mm(a, b, bias=bias, out=room[:-1])


def test_rows_of_c_at_any_distance() -> None:
    a, b = FACTORS["e4m3"]
    c = normal(M, N, dtype=np.float32)
    wide = np.full((M, N + 2), np.nan, np.float32)
    wide[:, 2:] = c
    assert same(kp.mm(a, b, c=wide[:, 2:]), kp.mm(a, b, c=c))
    row = c[:1].copy()
    everywhere = np.broadcast_to(row, (M, N))
    assert same(kp.mm(a, b, c=everywhere), kp.mm(a, b, c=everywhere.copy()))


@pytest.mark.parametrize("device", ["cpu", "emulated:sm_90a"])
@pytest.mark.parametrize(
    "given, error, message",
    [
        ({"c": normal(M, N + 8)}, ValueError, r"c has shape \[5, 24\]; \[5, 16\] is wanted"),
        ({"c": normal(M, 2 * N)[:, ::2]}, ValueError, r"c starts at .* strides \(64, 4\) bytes; contiguous rows"),
        ({"c": normal(M, N + 1)[:, 1:]}, ValueError, r"c starts at .*; contiguous rows that start at multiples of 4 b"),
        ({"c": normal(M, N)[::-1]}, ValueError, r"c starts at .* strides \(-32, 2\) bytes"),
        ({"bias": normal(N + 8)}, ValueError, r"bias has shape \[24\]; \[16\] is wanted"),
        ({"bias": normal(1, N)}, ValueError, r"bias has shape \[1, 16\]; \[16\] is wanted"),
        ({"bias": normal(N, dtype="f8")}, TypeError, "bias is float64; bfloat16 or float16 or float32 is wanted"),
        ({"bias": normal(N + 1)[1:]}, ValueError, "bias starts at .* multiples of 4 bytes are wanted"),
        ({"bias": normal(2 * N)[::2]}, ValueError, r"bias starts at .* strides \(4,\) bytes"),
        ({"alpha": "2"}, TypeError, "alpha is '2'; a number is wanted"),
        ({"alpha": True}, TypeError, "alpha is True; a number is wanted"),
        ({"alpha": np.ones(1)}, TypeError, r"alpha is array\(\[1\.\]\); a number is wanted"),
        ({"alpha": 1e39}, ValueError, r"alpha is 1e\+39; a finite number is wanted, in the range of float32"),
        ({"alpha": float("nan")}, ValueError, "alpha is nan; a finite number is wanted"),
    ],
)
def test_what_cannot_be_added(device: str, given: dict[str, Any], error: type[Exception], message: str) -> None:
    a, b = FACTORS["bfloat16"]
    with pytest.raises(error, match=message):
        kp.mm(a, b, **given, device=device)


@pytest.mark.parametrize("device", ["cpu", "emulated:sm_90a"])
@pytest.mark.parametrize(
    "out, error, message",
    [
        (np.empty((M, N + 8), BF16), ValueError, r"out has shape \[5, 24\]; \[5, 16\] is wanted"),
        (np.empty((M, N + 4), BF16)[:, :N], ValueError, r"out has strides \(40, 2\) bytes .* multiples of 16"),
        (np.empty((N, M), BF16).T, ValueError, r"out has strides \(2, 10\) bytes"),
        (np.empty((M, N), BF16)[::-1], ValueError, r"out has strides \(-32, 2\) bytes"),
        (np.broadcast_to(np.empty(N, BF16), (M, N)), ValueError, "out is read-only; a writable array is wanted"),
        (
            np.lib.stride_tricks.as_strided(np.empty(9 * N, BF16), (M, N), (16, 2)),
            ValueError,
            r"out has strides \(16, 2\) bytes .* in no memory of another row's",
        ),
        ([0.0], TypeError, r"out is builtins\.list; wanted a numpy array"),
    ],
)
def test_what_cannot_be_written(device: str, out: Any, error: type[Exception], message: str) -> None:
    a, b = FACTORS["bfloat16"]
    with pytest.raises(error, match=message):
        kp.mm(a, b, out=out, device=device)


@pytest.mark.parametrize("of", FACTORS)
def test_nothing_of_k_leaves_what_is_added(of: str) -> None:
    a, b = (normal(M, 0), normal(0, N)) if of == "bfloat16" else (scaled(M, 0), scaled(N, 0, scaling="128x128").T)
    c, bias = normal(M, N), normal(N, dtype=np.float32)
    assert not kp.mm(a, b).astype(np.float32).any()
    assert same(kp.mm(a, b, c=c, bias=bias, alpha=2), stated(np.zeros((M, N), "f4"), "bfloat16", c=c, bias=bias))
    out = c.copy()
    assert kp.mm(a, b, c=out, out=out) is out and same(out, c)
