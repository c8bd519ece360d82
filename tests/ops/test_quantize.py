"""Quantising as users call it: the stated formulas, the same bits by every way, and errors that name the argument."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kingpost as kp
from kingpost import formats

EMULATED = "emulated:sm_90a"
WAYS = [
    {"reciprocal_maximum": True},
    {"reciprocal_scale": True},
    {"reciprocal_maximum": True, "reciprocal_scale": True},
]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) * np.exp(2 * random.standard_normal(shape))).astype(np.float32)


def same(x: kp.ScaledTensor, y: kp.ScaledTensor) -> bool:
    same_codes = np.array_equal(x.data.view(np.uint8), y.data.view(np.uint8))
    return same_codes and np.array_equal(x.scales, y.scales) and x.scaling == y.scaling


def nearest(x: np.ndarray) -> np.ndarray:
    """float64 rounded to float32; a product of two float32 is exact in float64, so it is rounded once."""
    return x.astype(np.float32)


def test_reciprocals_follow_the_stated_formulas() -> None:
    x = numbers(200, 128)
    largest = np.abs(x).max(axis=1, keepdims=True).astype(np.float64)
    plain = kp.quantize(x, "row")
    scales = nearest(largest * np.float64(nearest(np.float64(1 / 448))))
    by_maximum = kp.quantize(x, "row", reciprocal_maximum=True)
    assert np.array_equal(by_maximum.scales, scales) and (scales != plain.scales).any()
    assert np.array_equal(by_maximum.data.view(np.uint8), formats.cast(x / scales, "e4m3").view(np.uint8))
    inverse = nearest(1 / plain.scales.astype(np.float64)).astype(np.float64)
    by_scale = kp.quantize(x, "row", reciprocal_scale=True)
    codes = formats.cast(nearest(x.astype(np.float64) * inverse), "e4m3")
    assert np.array_equal(by_scale.scales, plain.scales)
    assert np.array_equal(by_scale.data.view(np.uint8), codes.view(np.uint8))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("scaling", ["1x128", "128x128", "row", "1x32:ue8m0"])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_torch_and_numpy_agree_on_reciprocals(way: dict[str, bool], scaling: str, power_of_two: bool) -> None:
    torch = pytest.importorskip("torch")
    x = numbers(130, 160)
    x[:2] = 0
    ours = kp.quantize(x, scaling, power_of_two=power_of_two, **way)
    theirs = kp.quantize(torch.from_numpy(x), scaling, power_of_two=power_of_two, **way)
    assert np.array_equal(theirs.data.view(torch.uint8).numpy(), ours.data.view(np.uint8))
    assert np.array_equal(theirs.scales.view(torch.uint8).numpy(), ours.scales.view(np.uint8))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("scaling", ["1x128", "128x128"])
@pytest.mark.parametrize("way", [{}, *WAYS], ids=str)
def test_a_device_gives_the_bits_of_the_host(dtype: Any, scaling: str, way: dict[str, bool]) -> None:
    x = numbers(130, 144).astype(dtype)
    assert same(kp.quantize(x, scaling, device=EMULATED, **way), kp.quantize(x, scaling, **way))


@pytest.mark.parametrize("layout, strides", [("row-major", (8, 4)), ("column-major", (4, 20)), ("deepgemm", (4, 32))])
@pytest.mark.parametrize("device", [None, EMULATED])
def test_layouts(layout: str, strides: tuple[int, int], device: str | None) -> None:
    x = numbers(5, 200)
    t = kp.quantize(x, "1x128", layout=layout, device=device)
    assert t.scales.strides == strides and same(t, kp.quantize(x, "1x128"))


@pytest.mark.parametrize("device", [None, EMULATED])
def test_layouts_of_other_scales(device: str | None) -> None:
    x, batch = numbers(700, 200), numbers(3, 5, 200)
    wanted = {"column-major": ((4, 24), (40, 4, 20)), "deepgemm": ((4, 32), (64, 4, 32))}
    for layout, (strides, strides_of_batch) in wanted.items():
        square = kp.quantize(x, "128x128", layout=layout, device=device)
        assert square.scales.strides == strides and same(square, kp.quantize(x, "128x128"))
        several = kp.quantize(batch, "1x128", layout=layout, device=device)
        assert several.scales.strides == strides_of_batch and same(several, kp.quantize(batch, "1x128"))


@pytest.mark.parametrize("device", [None, EMULATED])
def test_transposed(device: str | None) -> None:
    x = numbers(272, 40)
    assert same(kp.quantize(x, "1x128", transpose=True, device=device), kp.quantize(x.T, "1x128"))


@pytest.mark.parametrize("device", [None, EMULATED])
def test_groups_start_new_blocks(device: str | None) -> None:
    x, ends = numbers(304, 24), np.array([144, 144, 272], np.int32)
    t = kp.quantize(x, "1x128", transpose=True, ends=ends, device=device)
    assert t.scales.shape == (24, 304 // 128 + 3) and (t.scales[:, 3:] == 1).all()
    for group, (begin, end) in zip(t.groups(), [(0, 144), (144, 144), (144, 272)]):
        assert same(group, kp.quantize(x[begin:end].T, "1x128"))


@pytest.mark.parametrize("device", [None, EMULATED])
def test_rows_of_a_mixture(device: str | None) -> None:
    x, counts = numbers(3, 6, 512), np.array([2, 0, 6], np.int32)
    t = kp.silu_mul_quantize(x, counts=counts, device=device)
    assert t.shape == (3, 6, 256) and t.scales.shape == (3, 6, 2)
    for group, count in enumerate(counts):
        want = kp.silu_mul_quantize(x[group, :count])
        assert np.array_equal(t.data[group, :count].view(np.uint8), want.data.view(np.uint8))
        assert np.array_equal(t.scales[group, :count], want.scales)


X, ENDS = numbers(256, 32), np.array([128, 256], np.int32)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"ends": ENDS}, ValueError, "ends are given without transpose"),
        ({"scaling": "128x128", "transpose": True}, ValueError, "scaling is 128x128 with transpose; '1x128' is wanted"),
        ({"transpose": True, "ends": ENDS.astype(np.int64)}, TypeError, "ends is int64"),
        ({"transpose": True, "ends": ENDS[None]}, ValueError, r"ends has shape \[1, 2\]; \[any\] is wanted"),
        ({"transpose": True, "ends": ENDS + 1}, ValueError, r"ends are \[129, 257\]"),
        ({"transpose": True, "ends": ENDS - 8}, ValueError, "sizes that are multiples of 16 are wanted"),
        ({"transpose": True, "ends": np.zeros(513, np.int32)}, ValueError, "ends has 513 groups; 512 at most"),
        ({"layout": "left"}, ValueError, "layout is 'left'; wanted one of row-major, column-major"),
        ({"scaling": "1x32:ue8m0", "layout": "deepgemm"}, ValueError, "layout is 'deepgemm' with scaling 1x32"),
        ({"scaling": "2x2"}, ValueError, "scaling is '2x2'; wanted one of 1x128"),
        ({"device": "abacus"}, ValueError, "device is 'abacus'"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        kp.quantize(X, **{"scaling": "1x128", **options})


def test_counts_are_int32_one_for_each_group() -> None:
    with pytest.raises(ValueError, match=r"counts has shape \[2\]; \[3\] is wanted"):
        kp.silu_mul_quantize(numbers(3, 4, 256), counts=np.zeros(2, np.int32))
    with pytest.raises(ValueError, match=r"x has shape \[4, 256\]; \[G, M, 2K\] is wanted"):
        kp.silu_mul_quantize(numbers(4, 256), counts=np.zeros(4, np.int32))
