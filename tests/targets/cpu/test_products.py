"""The products on numpy: exact blocks, promoted in order, the same bits for every M."""

import ml_dtypes
import numpy as np
import pytest

from kingpost import formats
from kingpost.quantization import quantize
from kingpost.targets.cpu.arithmetic import Exact, float64_product

from ...products import product

PAIRS = [("1x128", "128x128"), ("row", "row"), ("tensor", "tensor"), ("1x128", "row"), ("tensor", "1x128")]


def operands(a_scaling, b_scaling, rows, columns, depth, format="e4m3"):
    rng = np.random.default_rng(0)
    a, b = (
        (rng.standard_normal((n, depth)) * np.exp(rng.standard_normal((n, depth)))).astype(np.float32)
        for n in (rows, columns)
    )
    return quantize(a, a_scaling, format=format), quantize(b, b_scaling, format=format)


def multiply(a, b, out_format="float32"):
    return product(a.data, a.scales, a.scaling, b.data, b.scales, b.scaling, out_format)


def exact_block(a, b):
    """The sum of products of one block, rounded once to float32; in units of 2^-20 it fits int64."""
    x, y = (np.ldexp(formats.decode(t, dtype=np.float64), 10).astype(np.int64) for t in (a, b))
    return np.ldexp((x @ y.T).astype(np.float64), -20).astype(np.float32)


@pytest.mark.parametrize("a_scaling, b_scaling", PAIRS)
@pytest.mark.parametrize("format", ["e4m3", "e4m3fnuz"])
def test_bits_are_the_stated_ones(a_scaling, b_scaling, format):
    a, b = operands(a_scaling, b_scaling, 5, 6, 300, format)
    a_scales, b_scales = a.scaling.expand(a.scales, a.shape), b.scaling.expand(b.scales, b.shape)
    total = np.zeros((5, 6), np.float32)
    for k in range(0, 300, 128):
        partial = exact_block(a.data[:, k : k + 128], b.data[:, k : k + 128])
        scale = a_scales[:, k, None] * b_scales[None, :, k]
        total = formats.fma32(partial, scale, total)
    np.testing.assert_array_equal(multiply(a, b).view(np.uint32), total.view(np.uint32))
    bfloat16 = multiply(a, b, "bfloat16")
    assert bfloat16.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(bfloat16.view(np.uint16), formats.cast(total, "bfloat16").view(np.uint16))


@pytest.mark.parametrize("a_scaling, b_scaling", PAIRS)
def test_a_row_has_the_same_bits_alone_and_in_company(a_scaling, b_scaling):
    a, b = operands(a_scaling, b_scaling, 4096, 24, 400)
    whole = multiply(a, b)
    for rows in (1, 7):
        scales = a.scales if a_scaling == "tensor" else a.scales[:rows]
        some = product(a.data[:rows], scales, a.scaling, b.data, b.scales, b.scaling, "float32")
        np.testing.assert_array_equal(some.view(np.uint32), whole[:rows].view(np.uint32))


def test_the_largest_values_stay_exact():
    """448^2 and 2^-18 in one block: 2^25 and its 43rd bit."""
    a = np.full((1, 128), 448, ml_dtypes.float8_e4m3fn)
    b = a.copy()
    a[0, -1] = b[0, -1] = 2.0**-9
    b[0, 64:127] *= np.float32(-1)
    b[0, 0] = 0
    one = np.ones((1, 1), np.float32)
    assert product(a, one, "1x128", b, one, "128x128", "float32")[0, 0] == 2.0**-18


def test_scales_and_data_of_any_strides():
    a, b = operands("1x128", "128x128", 40, 24, 300)
    want = multiply(a, b)
    data = np.asfortranarray(a.data)
    scales = np.zeros((40, 6), np.float32)[:, ::2]
    scales[...] = a.scales
    got = product(data, scales, "1x128", b.data[::-1][::-1], np.asfortranarray(b.scales), "128x128", "float32")
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("a_scaling, b_scaling", PAIRS)
def test_empty_products(a_scaling, b_scaling):
    for rows, columns, depth in ((0, 8, 128), (4, 0, 128), (4, 8, 0)):
        result = multiply(*operands(a_scaling, b_scaling, rows, columns, depth))
        assert result.shape == (rows, columns) and not result.any()


def test_nan_stays_in_its_row():
    a, b = operands("1x128", "128x128", 3, 4, 256)
    a.scales[1, 1] = np.nan
    assert np.isnan(multiply(a, b)).all(axis=1).tolist() == [False, True, False]


@pytest.mark.parametrize("columns, depth", [(8, 16), (1, 144), (72, 144), (576, 512), (24, 2112), (3, 5000)])
def test_a_row_of_bfloat16_has_the_same_float64_bits_anywhere(columns, depth):
    rng = np.random.default_rng(2)
    a, b = ((rng.standard_normal((n, depth)) * np.exp(3 * rng.standard_normal((n, depth)))).astype(ml_dtypes.bfloat16)
            for n in (150, columns))  # fmt: skip
    whole, order = float64_product(a, b), rng.permutation(150)
    np.testing.assert_array_equal(float64_product(a[order], b), whole[order])
    for rows in (slice(0, 1), slice(0, 64), slice(7, 80), slice(149, 150), slice(0, 0)):
        np.testing.assert_array_equal(float64_product(a[rows], b), whole[rows])
    np.testing.assert_array_equal(float64_product(np.asfortranarray(a), np.asfortranarray(b)), whole)
    np.testing.assert_array_equal(Exact().chain(a, b), whole.astype(np.float32))


@pytest.mark.parametrize("other", ["e4m3", "e4m3fnuz"])
def test_blocks_of_e5m2_and_the_largest_and_smallest_of_others_are_exact(other):
    """In units of 2^-26 they fit int64, which numpy rounds to float32 once."""
    rng = np.random.default_rng(3)
    sizes = {"e5m2": [57344, 2.0**-16, 2.0**12, 4095], "e4m3": [448, 2.0**-9], "e4m3fnuz": [240, 2.0**-10]}
    a, b = (formats.cast(rng.choice(sizes[name], (9, 128)) * rng.choice([-1, 1], (9, 128)), name)
            for name in ("e5m2", other))  # fmt: skip
    x, y = (np.ldexp(formats.decode(t, dtype=np.float64), bits).astype(np.int64) for t, bits in ((a, 16), (b, 10)))
    want = np.ldexp((x @ y.T).astype(np.float32), -26)
    np.testing.assert_array_equal(Exact().block(a, b), want)
    np.testing.assert_array_equal(Exact().block(b, a), want.T)
