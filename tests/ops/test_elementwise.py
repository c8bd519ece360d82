"""What is not a product, as users call it: results, layouts, libraries, and errors that name the argument."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kingpost as kp
from kingpost import formats, ops, plan, scaling
from kingpost.formats import BF16, E4M3, E4M3FNUZ
from kingpost.scaling import LAYOUTS

bfloat16 = np.dtype(ml_dtypes.bfloat16)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_add() -> None:
    x, y = numbers(1000), numbers(1000, seed=1)
    assert np.array_equal(ops.add(x, y), x + y)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), bfloat16], ids=str)
@pytest.mark.parametrize("format", [E4M3, E4M3FNUZ], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cast_is_quantize(dtype: np.dtype[Any], format: formats.Format, layout: str) -> None:
    x = numbers(5, 200).astype(dtype)
    got = ops.cast(x, format=format, eps=1e-4, power_of_two=True, layout=layout)
    want = kp.quantize(x, "1x128", format=format, eps=1e-4, power_of_two=True)
    assert np.array_equal(got.data.view(np.uint8), want.data.view(np.uint8))
    assert np.array_equal(got.scales, want.scales)
    strides = {"row-major": (8, 4), "column-major": (4, 20), "deepgemm": (4, 32)}
    assert got.scales.strides == strides[layout]


def test_silu_mul_quantize() -> None:
    x = numbers(5, 400)
    gate, up = x[:, :200].astype(np.float64), x[:, 200:]
    got, want = kp.silu_mul_quantize(x), gate / (1 + np.exp(-gate)) * up
    assert got.shape == (5, 200) and got.scaling.name == "1x128"
    assert np.abs(kp.dequantize(got) - want).max() <= np.abs(want).max() / 16


@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", LAYOUTS)
def test_relayout(before: str, after: str) -> None:
    scales = scaling.empty_scales((7, 3), before, like=numbers(1))
    scales[...] = numbers(7, 3)
    moved = kp.relayout(scales, after)
    assert np.array_equal(moved, scales)
    assert moved.strides == {"row-major": (12, 4), "column-major": (4, 28), "deepgemm": (4, 32)}[after]


@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16"])
def test_dequantize(out_dtype: str) -> None:
    t = kp.quantize(numbers(5, 200), "1x128")
    want = formats.cast(kp.dequantize(t), out_dtype)
    assert np.array_equal(ops.dequantize(t, out_dtype=out_dtype), want)


def test_tile_product_is_mm() -> None:
    a, weight = kp.quantize(numbers(16, 256), "1x128"), kp.quantize(numbers(24, 256, seed=1), "128x128")
    assert np.array_equal(ops.tile_product(a, weight.T), kp.mm(a, weight.T))


def test_nothing() -> None:
    assert ops.add(numbers(0), numbers(0)).shape == (0,)
    assert ops.cast(numbers(0, 128)).shape == (0, 128)
    assert ops.cast(numbers(3, 0)).scales.shape == (3, 0)
    assert kp.silu_mul_quantize(numbers(0, 256)).shape == (0, 128)
    assert kp.relayout(numbers(0, 3), "deepgemm").shape == (0, 3)
    assert ops.dequantize(kp.quantize(numbers(0, 128), "1x128")).shape == (0, 128)


def test_torch_tensors_give_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(numbers(5, 256)).to(torch.bfloat16)
    got, want = ops.cast(x, layout="deepgemm"), kp.quantize(x, "1x128")
    assert torch.equal(got.data.view(torch.uint8), want.data.view(torch.uint8))
    assert torch.equal(got.scales, want.scales) and got.scales.stride() == (1, 8)


X = numbers(4, 256)
HOLED = np.where(np.arange(256) == 7, np.float32(np.nan), X)
WEIGHT = kp.quantize(X, "128x128")


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: ops.add(X, X), ValueError, r"x has shape \[4, 256\]; \[N\] is wanted"),
        (lambda: ops.add(X[0].astype(bfloat16), X[0]), TypeError, "x is bfloat16; float32 is wanted"),
        (lambda: ops.add(X[0], X[0, :3]), ValueError, r"y has shape \[3\]; \[256\], that of x, is wanted"),
        (lambda: ops.add(X[:, 0], X[:, 1]), ValueError, r"x has strides \(1024,\) bytes; contiguous rows are wanted"),
        (lambda: ops.cast([1.0]), TypeError, "x is builtins.list; wanted a numpy array or a torch tensor"),
        (lambda: ops.cast(X[0]), ValueError, r"x has shape \[256\]; \[M, K\] is wanted"),
        (lambda: ops.cast(X.astype(np.float64)), TypeError, "x is float64; float32 or bfloat16 is wanted"),
        (lambda: ops.cast(X.T), ValueError, r"x has strides \(4, 1024\) bytes; contiguous rows are wanted"),
        (lambda: ops.cast(HOLED), ValueError, "x holds NaN or infinity; finite numbers are wanted"),
        (lambda: ops.cast(X, format="e5m2"), ValueError, "format is e5m2; e4m3 or e4m3fnuz is wanted"),
        (lambda: ops.cast(X, eps=float("nan")), ValueError, "eps is nan; a finite number of at least 0 is wanted"),
        (lambda: ops.cast(X, layout="left"), ValueError, "layout is 'left'; wanted one of row-major, column-major"),
        (lambda: ops.cast(X, device="abacus"), ValueError, "device is 'abacus'; one of 'cpu'"),
        (lambda: ops.cast(X, device=7), ValueError, "device is 7; one of 'cpu'"),
        (lambda: ops.cast(X, stream=1), ValueError, "stream is 1; None is wanted"),
        (lambda: ops.cast(X, format="e4m3fnuz", device="emulated:sm_90a"), plan.Unsupported, "no kernel for cast"),
        (lambda: kp.silu_mul_quantize(X[:, :255]), ValueError, "x has 255 columns; an even number"),
        (lambda: kp.relayout(X.astype(bfloat16), "deepgemm"), TypeError, "scales are bfloat16; float32 is wanted"),
        (lambda: kp.relayout(X[0], "deepgemm"), ValueError, r"scales has shape \[256\]; \[M, B\] is wanted"),
        (lambda: ops.dequantize(X), TypeError, "t is a ndarray; a kingpost.ScaledTensor is wanted"),
        (lambda: ops.dequantize(WEIGHT), ValueError, "t is scaled '128x128'; '1x128' is wanted"),
        (lambda: ops.dequantize(kp.quantize(X, "1x128"), out_dtype="e4m3"), ValueError, "out_dtype is e4m3; float32"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_cast_writes_all_of_its_result_on_the_emulator() -> None:
    x = numbers(3, 136).astype(BF16.dtype)
    got, want = ops.cast(x, device="emulated:sm_90a"), kp.quantize(x, "1x128")
    assert np.array_equal(got.data.view(np.uint8), want.data.view(np.uint8))
