"""The bound holds at its edges: every format, wild exponents, cancellation, subnormal numbers, overflow, groups."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kingpost import formats, reference
from kingpost.scaling import ScaledTensor, named
from kingpost.targets.cpu.arithmetic import Exact
from kingpost.targets.nvidia.device import EMULATED_HOPPER
from kingpost.targets.promoted import promoted

UNITS = {"cpu": Exact(), "Hopper": EMULATED_HOPPER}
PAIRS = [("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("bfloat16", "bfloat16")]
SCALINGS = [("1x128", "128x128"), ("row", "tensor"), ("1x32:ue8m0", "1x32:ue8m0")]


def total(unit: Any, a: Any, w: Any) -> np.ndarray:
    """The float32 total [M, N] of a [M, K] and w [N, K] by some arithmetic."""
    if not isinstance(a, ScaledTensor):
        return unit.chain(a, w)
    scales = [t.scaling.by_block(t.scales, t.shape) for t in (a, w)]
    return promoted(unit.block, a.data, scales[0], w.data, scales[1], a.scaling.columns)


def wild(random: np.random.Generator, rows: int, depth: int, format: str, spread: int) -> np.ndarray:
    """Numbers of exponents anywhere within `spread` of 0; the second half of each 64 takes back the first, but one."""
    exponents = random.integers(-spread, spread + 1, (rows, depth))
    x = formats.cast(np.ldexp(random.uniform(-2, 2, (rows, depth)), exponents), format)
    for k in range(0, depth - 63, 64):
        x[:, k + 32 : k + 63] = -x[:, k : k + 31]
    return x


def scaled(data: np.ndarray, scaling: str, random: np.random.Generator) -> ScaledTensor:
    shape = named(scaling).scales_shape(data.shape)
    if scaling == "1x32:ue8m0":
        return ScaledTensor(data, random.integers(117, 138, shape).astype(np.uint8).view("float8_e8m0fnu"), scaling)
    return ScaledTensor(data, (random.choice([-1, 1], shape) * random.uniform(0.5, 2, shape)).astype("f4"), scaling)


@given(seed=st.integers(0, 2**32), pair=st.sampled_from(PAIRS), scalings=st.sampled_from(SCALINGS),
       depth=st.sampled_from([16, 96, 144, 400]), spread=st.sampled_from([0, 3, 12, 30]))  # fmt: skip
@settings(max_examples=80)
def test_wild_exponents(seed: int, pair: tuple[str, str], scalings: tuple[str, str], depth: int, spread: int) -> None:
    random = np.random.default_rng(seed)
    a, w = (wild(random, rows, depth, format, spread) for rows, format in zip((4, 8), pair))
    w[:, 32:] = np.where(random.random(w[:, 32:].shape) < 0.5, w[:, 32:], w[:, :-32])  # so that products cancel too
    if pair[0] != "bfloat16":
        a, w = (scaled(x, scaling, random) for x, scaling in zip((a, w), scalings))
    for unit in UNITS.values():
        result = total(unit, a, w)
        for out in ("float32", "bfloat16", "float16"):
            assert reference.check(formats.cast(result, out, saturate=False), a, w.T) <= 1


@pytest.mark.parametrize("pair", PAIRS, ids=" ".join)
def test_a_lost_step_is_caught_in_every_format(pair: tuple[str, str]) -> None:
    random = np.random.default_rng(0)
    a, w = (formats.cast(random.standard_normal((rows, 272)), format) for rows, format in zip((4, 8), pair))
    lossy = a.copy()
    lossy[:, 240:] = 0
    if pair[0] != "bfloat16":
        whole, w = scaled(a, "1x128", random), scaled(w, "1x128", random)
        a, lossy = whole, ScaledTensor(lossy, whole.scales, "1x128")
    for unit in UNITS.values():
        assert 0 < reference.check(total(unit, a, w), a, w.T) <= 1
        with pytest.raises(ValueError, match="are outside their bound"):
            reference.check(total(unit, lossy, w), a, w.T)


@pytest.mark.parametrize("format, exponent", [("e4m3", 4), ("e5m2", 4), ("bfloat16", 20)])
def test_products_that_cancel_take_bits_of_the_accumulator(format: str, exponent: int) -> None:
    """1 + 2^-exponent, and in the next step products of 2^10 and -2^10."""
    a = np.zeros((2, 64))
    a[0, :2], a[1, :2] = (1, 2.0**-exponent), (-1, -(2.0**-exponent))
    a[:, 40], a[:, 41] = 32, -32
    w = np.where(np.arange(64) < 32, 1, 32) * np.ones((8, 1))
    x, y = formats.cast(a, format), formats.cast(w, format)
    if format != "bfloat16":
        x, y = (ScaledTensor(each, np.ones((len(each), 1), np.float32), "row") for each in (x, y))
    lossy = total(EMULATED_HOPPER, x, y)
    assert (np.abs(lossy) == 1).all() and (np.abs(reference.truth(x, y.T)) == 1 + 2.0**-exponent).all()
    assert 0 < reference.check(lossy, x, y.T) <= 1
    assert reference.check(total(Exact(), x, y), x, y.T) == 0


@pytest.mark.parametrize("exponent", range(-160, -124, 4))
def test_subnormal_sums_of_bfloat16(exponent: int) -> None:
    """Whole sums below 2^-126, and products below float32's smallest number."""
    random = np.random.default_rng(exponent + 200)
    a, w = (np.ldexp(random.uniform(-2, 2, (rows, 272)), exponent // 2).astype(ml_dtypes.bfloat16) for rows in (4, 8))
    assert np.abs(reference.truth(a, w.T)).max() < 2.0**-115
    for unit in UNITS.values():
        assert reference.check(total(unit, a, w), a, w.T) <= 1


def test_scales_whose_product_is_subnormal() -> None:
    """Hopper and the CPU round it to float32, the truth does not."""
    random = np.random.default_rng(1)
    a, w = (formats.cast(random.uniform(-448, 448, (rows, 256)), "e4m3") for rows in (4, 8))
    scales = [np.ldexp(random.uniform(1, 2, (len(x), 2)), -70).astype(np.float32) for x in (a, w)]
    a, w = (ScaledTensor(x, of_x, "1x128") for x, of_x in zip((a, w), scales))
    for unit in UNITS.values():
        assert reference.check(total(unit, a, w), a, w.T) <= 1


def test_what_may_overflow_is_not_bounded_and_the_rest_is() -> None:
    a = np.full((2, 16), 2.0**64, ml_dtypes.bfloat16)
    a[1] = 1
    w = np.full((8, 16), 2.0**62, ml_dtypes.bfloat16)
    for out in ("float32", "bfloat16", "float16"):
        allowed = reference.bound(a, w.T, out)
        assert (np.isinf(allowed) == [[True], [out == "float16"]]).all()
        for unit in UNITS.values():
            assert reference.check(formats.cast(total(unit, a, w), out, saturate=False), a, w.T) == 0
    with pytest.raises(ValueError, match=r"result at \(1, 0\) is nan"):
        reference.check(np.full((2, 8), np.nan, np.float32), a, w.T)
    one = formats.cast(np.ones((1, 128)), "e4m3")
    x, y = (ScaledTensor(one, np.full((1, 1), 2.0**100, np.float32), "1x128") for _ in "xy")
    assert np.isinf(reference.bound(x, y.T)).all() and reference.check(total(Exact(), x, y), x, y.T) == 0


def test_an_infinite_operand_wants_an_infinite_result() -> None:
    a, w = (np.ones((rows, 32), ml_dtypes.bfloat16) for rows in (2, 8))
    a[1, 3] = np.inf
    for unit in UNITS.values():
        assert reference.check(total(unit, a, w), a, w.T) == 0
    with pytest.raises(ValueError, match=r"result at \(1, 0\) is 32; wanted inf"):
        reference.check(np.full((2, 8), 32, np.float32), a, w.T)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_what_is_added_is_rounded_step_by_step(unit: Any) -> None:
    random = np.random.default_rng(2)
    a, w = (random.standard_normal((rows, 144)).astype(ml_dtypes.bfloat16) for rows in (40, 8))
    c, bias = random.standard_normal((40, 8)).astype(np.float32), random.standard_normal(8).astype(np.float16)
    rounded = total(unit, a, w) * np.float32(0.3)
    assert 0 < reference.check(rounded, a, w.T, alpha=0.3) <= 1
    rounded = rounded + c
    assert 0 < reference.check(rounded, a, w.T, alpha=0.3, c=c) <= 1
    rounded = rounded + bias.astype(np.float32)
    for out in ("float32", "bfloat16", "float16"):
        assert 0 < reference.check(formats.cast(rounded, out), a, w.T, alpha=0.3, c=c, bias=bias) <= 1
    exact = reference.truth(a, w.T, alpha=0.3, c=c, bias=bias)
    assert (reference.bound(a, w.T, "float32", alpha=0.3, c=c, bias=bias) < 2.0**-16 * (1 + np.abs(exact))).all()


def test_chains_in_slices() -> None:
    random = np.random.default_rng(3)
    a, w = (random.standard_normal((rows, 7 * 32)).astype(ml_dtypes.bfloat16) for rows in (4, 8))
    c = random.standard_normal((4, 8)).astype(np.float32)
    for unit in UNITS.values():
        added = c
        for k in range(0, 7 * 32, 64):
            added = added + unit.chain(a[:, k : k + 64], w[:, k : k + 64])
        assert 0 < reference.check(added, a, w.T, c=c, chain=64) <= 1
    assert (reference.bound(a, w.T, "float32", c=c, chain=64) > 0).all()
    one = ScaledTensor(formats.cast(np.ones((1, 128)), "e4m3"), np.ones((1, 1), np.float32), "row")
    with pytest.raises(ValueError, match="chain is 64; wanted None for scaled tensors"):
        reference.bound(one, one.T, chain=64)


def test_groups_along_k() -> None:
    random, ends = np.random.default_rng(4), np.array([80, 80, 336], np.int32)
    data = [formats.cast(random.standard_normal((rows, 352)), "e4m3") for rows in (4, 8)]
    a, w = (ScaledTensor(x, random.uniform(0.5, 2, (len(x), 3)).astype("f4"), "1x128", ends) for x in data)
    c = random.standard_normal((3, 4, 8)).astype(np.float32)
    truth, allowed = reference.truth(a, w.T, c=c), reference.bound(a, w.T, "float32", c=c)
    assert truth.shape == allowed.shape == (3, 4, 8)
    np.testing.assert_array_equal(truth[1], c[1])
    result = c.copy()
    for group, (x, y) in enumerate(zip(a.groups(), w.groups())):
        np.testing.assert_array_equal(truth[group], reference.truth(x, y.T, c=c[group]))
        np.testing.assert_array_equal(allowed[group], reference.bound(x, y.T, "float32", c=c[group]))
        result[group] = total(EMULATED_HOPPER, x, y) + c[group]
    assert 0 < reference.check(result, a, w.T, c=c) <= 1
    result[2] += total(EMULATED_HOPPER, a.groups()[0], w.groups()[0])
    with pytest.raises(ValueError, match=r"result at \(2, \d, \d\) is"):
        reference.check(result, a, w.T, c=c)
    other = ScaledTensor(w.data, w.scales, "1x128", np.array([96, 96, 336], np.int32))
    for wrong in (other, ScaledTensor(w.data, w.scales, "1x128")):
        with pytest.raises(ValueError, match="a and b have groups of different ends; equal ones, or none"):
            reference.truth(a, wrong.T)
