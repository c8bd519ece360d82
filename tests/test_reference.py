"""The truth, and a bound on errors that holds for every arithmetic and still catches a lost step."""

from fractions import Fraction
from operator import mul

import ml_dtypes
import numpy as np
import pytest

from kingpost import formats, reference
from kingpost.quantization import quantize
from kingpost.scaling import ScaledTensor
from kingpost.targets.nvidia import arithmetic

from .products import product

SHAPES = [(32, 64, 32), (16, 64, 128), (7, 40, 400), (32, 64, 1024), (32, 128, 7168)]


def data(kind, *shape, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if kind == "positive":
        x = np.abs(x)
    elif kind == "outliers":
        x *= np.where(rng.random(shape) < 0.01, 300, 1)
    elif kind == "heavy":
        x *= np.exp(2 * rng.standard_normal(shape))
    elif kind == "constant":
        x = np.full(shape, 1 / 3) + (np.arange(shape[1]) % 32 == 5) * 40
    return x.astype(np.float32)


def operands(kind, rows, columns, depth):
    return quantize(data(kind, rows, depth), "1x128"), quantize(data(kind, columns, depth, seed=1), "128x128")


def on_hopper(a, w):
    return arithmetic.promoted_product(
        a.data.view(np.uint8), a.scaling.by_block(a.scales, a.shape),
        w.data.view(np.uint8), w.scaling.by_block(w.scales, w.shape),
    )  # fmt: skip


def on_cpu(a, w, out_format="float32"):
    return product(a.data, a.scales, a.scaling, w.data, w.scales, w.scaling, out_format)


def test_truth_is_the_exact_product():
    a, w = operands("normal", 3, 5, 150)
    codes = [
        [[Fraction(float(code)) for code in row] for row in formats.decode(t.data, dtype=np.float64)] for t in (a, w)
    ]
    scales = [
        [[Fraction(float(scale)) for scale in row] for row in t.scaling.by_block(t.scales, t.shape)] for t in (a, w)
    ]
    for place, value in np.ndenumerate(reference.truth(a, w.T)):
        (x, y), (x_scales, y_scales) = ([part[i] for part, i in zip(parts, place)] for parts in (codes, scales))
        blocks = [
            sum(map(mul, x[k : k + 128], y[k : k + 128])) * x_scales[k // 128] * y_scales[k // 128] for k in (0, 128)
        ]
        assert abs(Fraction(value) - sum(blocks)) <= sum(map(abs, blocks)) * Fraction(2) ** -52


def test_what_cancels_within_a_block_is_zero():
    """Whatever the scales: a kernel sums codes, so it gives 0, and is right to."""
    codes = np.array([[1.875, -1.875, -1.875]], np.float32), np.array([[1.875, 1.625, 0.25]], np.float32)
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, w = (
            ScaledTensor(formats.cast(x, "e4m3"), rng.uniform(1e-4, 1, (1, 1)).astype(np.float32), scaling)
            for x, scaling in zip(codes, ("1x128", "128x128"))
        )
        assert reference.truth(a, w.T) == 0
        assert reference.check(on_cpu(a, w), a, w.T) == reference.check(on_hopper(a, w), a, w.T) == 0


@pytest.mark.parametrize("rows, columns, depth", SHAPES)
@pytest.mark.parametrize("kind", ["normal", "positive", "outliers", "heavy", "constant"])
def test_the_bound_holds_and_means_something(kind, rows, columns, depth):
    a, w = operands(kind, rows, columns, depth)
    truth = reference.truth(a, w.T)
    for out_format in ("float32", "bfloat16"):
        allowed = reference.bound(a, w.T, out_format)
        hopper, cpu = (
            np.max(np.abs(formats.decode(formats.cast(result, out_format)) - truth) / allowed)
            for result in (on_hopper(a, w), on_cpu(a, w))
        )
        assert max(hopper, cpu) <= 1
        if kind != "constant":  # which may come out exact
            assert hopper >= 1 / 16


@pytest.mark.parametrize("rows, columns, depth", SHAPES)
@pytest.mark.parametrize("kind", ["normal", "positive", "outliers", "heavy"])
def test_a_lost_step_is_caught(kind, rows, columns, depth):
    a, w = operands(kind, rows, columns, depth)
    for start in (0, depth // 2 // 32 * 32, (depth - 1) // 32 * 32):
        lossy = a.data.copy()
        lossy[:, start : start + 32] = 0
        result = on_hopper(ScaledTensor(lossy, a.scales, a.scaling), w)
        for out_format in ("float32", "bfloat16"):
            with pytest.raises(ValueError, match=r"result at \(\d+, \d+\) is .* wanted .* within"):
                reference.check(formats.cast(result, out_format), a, w.T)


def test_the_bound_follows_every_scaling_and_negative_scales():
    for a_scaling, w_scaling in (("row", "row"), ("tensor", "tensor"), ("128x128", "1x128"), ("tensor", "128x128")):
        a, w = quantize(data("normal", 9, 300), a_scaling), quantize(data("normal", 8, 300), w_scaling)
        assert 0 < reference.check(on_cpu(a, w), a, w.T) <= 1
        a.scales[...] *= -1
        assert 0 < reference.check(on_hopper(a, w), a, w.T) <= 1


def test_check_reads_torch_and_counts_what_is_not_finite():
    a, w = operands("normal", 4, 8, 128)
    result = on_hopper(a, w)
    share = reference.check(result, a, w.T)
    torch = pytest.importorskip("torch")
    assert reference.check(torch.from_numpy(result), a, w.T) == share
    result[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"result at \(1, 2\) is nan"):
        reference.check(result, a, w.T)
    a.scales[1] = np.nan  # then NaN is right, in all of that row
    with pytest.raises(ValueError, match=r"result at \(1, 0\) is"):
        reference.check(result, a, w.T)
    result[1] = np.nan
    assert reference.check(result, a, w.T) <= 1


def test_truth_adds_what_is_added():
    a, w = operands("normal", 4, 8, 144)
    c, bias = data("normal", 4, 8, seed=2), formats.cast(data("normal", 1, 8, seed=3)[0], "bfloat16")
    want = reference.truth(a, w.T) * float(np.float32(0.3)) + c + formats.decode(bias)
    np.testing.assert_allclose(reference.truth(a, w.T, alpha=0.3, c=c, bias=bias), want, rtol=0, atol=1e-12)
    total = on_cpu(a, w)
    for out_format in ("float32", "bfloat16", "float16"):
        added = formats.cast(c, out_format)
        finish = {"alpha": 0.3, "c": added, "bias": bias}
        exact = total * np.float32(0.3) + formats.decode(added) + formats.decode(bias)
        result = formats.cast(exact, out_format)
        assert 0 < reference.check(result, a, w.T, **finish) <= 1
        for left_out in finish:
            with pytest.raises(ValueError, match="are outside their bound"):
                reference.check(result, a, w.T, **{name: x for name, x in finish.items() if name != left_out})


def test_bfloat16_arrays():
    """A lost step of 16 is caught, in every format of the result."""
    a, w = (formats.cast(data("normal", rows, 272, seed=rows), "bfloat16") for rows in (6, 8))
    wide = [formats.decode(x, dtype=np.float64) for x in (a, w)]
    np.testing.assert_allclose(reference.truth(a, w.T), wide[0] @ wide[1].T, rtol=0, atol=1e-12)
    for out_format in ("float32", "bfloat16", "float16"):
        result = formats.cast(wide[0] @ wide[1].T, out_format)
        assert reference.check(result, a, w.T) <= 1
        lossy = wide[0].copy()
        lossy[:, 160:176] = 0
        with pytest.raises(ValueError, match="are outside their bound"):
            reference.check(formats.cast(lossy @ wide[1].T, out_format), a, w.T)


def test_blocks_of_32_with_powers_of_two():
    """Another scale of one block is caught."""
    random = np.random.default_rng(0)
    tensors = []
    for rows in (6, 8):
        codes = formats.cast(100 * data("normal", rows, 160, seed=rows), "e5m2")
        scales = random.integers(122, 131, (rows, 5), np.uint8)
        tensors.append(ScaledTensor(codes, scales.view(ml_dtypes.float8_e8m0fnu), "1x32:ue8m0"))
    a, w = tensors
    values = [formats.decode(t.data, dtype=np.float64) * t.expanded() for t in tensors]
    np.testing.assert_allclose(reference.truth(a, w.T), values[0] @ values[1].T, rtol=1e-12, atol=1e-6)
    result = on_cpu(a, w)
    assert 0 < reference.check(result, a, w.T) <= 1
    a.scales.view(np.uint8)[2, 3] += 1
    with pytest.raises(ValueError, match=r"result at \(2, \d\) is .* within"):
        reference.check(result, a, w.T)


def test_empty_products():
    for rows, columns, depth in ((0, 8, 128), (4, 0, 128), (4, 8, 0)):
        a, w = operands("normal", rows, columns, depth)
        assert reference.bound(a, w.T).shape == (rows, columns)
        assert reference.check(np.zeros((rows, columns), np.float32), a, w.T) == 0


def test_refusals():
    a, w = operands("normal", 4, 8, 128)
    with pytest.raises(ValueError, match=r"a is \(4, 128\) and b \(8, 128\); wanted \[M, K\] and \[K, N\]"):
        reference.truth(a, quantize(data("normal", 8, 128), "column"))
    with pytest.raises(ValueError, match="a is scaled 1x128 and b 1x128; wanted one scale for each 128 of K"):
        reference.truth(a, quantize(data("normal", 128, 8), "1x128"))
    bfloat16 = formats.cast(data("normal", 4, 128), "bfloat16")
    with pytest.raises(TypeError, match="one of a and b is a ScaledTensor; both or neither are wanted"):
        reference.truth(bfloat16, w.T)
    with pytest.raises(TypeError, match="a is float32; wanted bfloat16, or a ScaledTensor"):
        reference.truth(data("normal", 4, 128), bfloat16.T)
    with pytest.raises(ValueError, match="out_format is e4m3; wanted bfloat16 or float16 or float32"):
        reference.bound(a, w.T, "e4m3")
    with pytest.raises(ValueError, match=r"result has shape \(1, 1\); wanted \(4, 8\)"):
        reference.check(np.zeros((1, 1), np.float32), a, w.T)
