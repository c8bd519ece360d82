"""e^x, silu and the reciprocal against float64, and in a program against themselves on arrays."""

from __future__ import annotations

import numpy as np
import pytest

from kingpost import emulate
from kingpost.arrays import view
from kingpost.portable.exponential import LIMIT, OVERFLOW, UNDERFLOW, OnArrays, exponential, reciprocal, silu
from kingpost.program import Builder, Launch, Target, f32, u64

from .harness import IDS, TARGETS, same_bits

ARRAYS = OnArrays()
SPECIAL = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-38, OVERFLOW, UNDERFLOW, LIMIT, -LIMIT, 200, -200, 3e38, -3e38,
                    np.inf, -np.inf, np.nan], np.float32)  # fmt: skip


def spread(low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, 400_001).astype(np.float32)


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.max(np.abs(got - want) / np.spacing(want.astype(np.float32))))


def test_exponential_is_within_2_ulp() -> None:
    x = spread(UNDERFLOW, OVERFLOW)
    assert ulps(exponential(ARRAYS, x), np.exp(x.astype(np.float64))) <= 2
    x = spread(-1e-3, 1e-3)
    assert ulps(exponential(ARRAYS, x), np.exp(x.astype(np.float64))) <= 2


def test_exponential_of_what_is_special() -> None:
    x = np.array(
        [0.0, -0.0, 89, 3e38, np.inf, -88, -3e38, -np.inf, np.nan, np.nextafter(np.float32(OVERFLOW), 99)], "f4"
    )
    want = np.array([1, 1, np.inf, np.inf, np.inf, 0, 0, 0, np.nan, np.inf], np.float32)
    np.testing.assert_array_equal(exponential(ARRAYS, x), want)
    assert np.isfinite(exponential(ARRAYS, np.float32([OVERFLOW]))).all()
    assert exponential(ARRAYS, np.float32([UNDERFLOW]))[0] >= np.finfo(np.float32).smallest_normal


def test_reciprocal_is_within_2_ulp() -> None:
    for low, high in ((0, 1), (0, 125.5)):
        y = np.exp2(np.linspace(low, high, 400_001)).astype(np.float32)
        assert ulps(reciprocal(ARRAYS, y), 1 / y.astype(np.float64)) <= 2


@pytest.mark.parametrize("low, high, bound", [(-16, -1e-6, 2**-21), (1e-6, 100, 2**-21), (-87, -16, 2**-19)])
def test_silu_is_close(low: float, high: float, bound: float) -> None:
    x = spread(low, high)
    exact = x.astype(np.float64)
    exact = exact / (1 + np.exp(-exact))
    assert np.max(np.abs(silu(ARRAYS, x) / exact - 1)) <= bound


def test_silu_of_what_is_special() -> None:
    got = silu(ARRAYS, SPECIAL)
    assert np.isnan(got[-1]) and got[-3] == np.inf and got[-5] == np.float32(3e38)
    assert got[0] == 0 and not np.signbit(got[0]) and got[1] == 0 and np.signbit(got[1])
    assert (np.abs(got[[-2, -4, -6]]) < 1.5e-36).all()


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_a_program_gives_the_bits_of_the_arrays(target: Target) -> None:
    random = np.random.default_rng(0)
    x = np.concatenate([SPECIAL, random.uniform(-100, 100, 1008).astype(np.float32)]).reshape(-1, target.lanes)
    got = np.zeros((2, *x.shape), np.float32)
    k = Builder("functions", target)
    source, results = k.parameter("x", u64), k.parameter("d", u64)
    values = k.array(f32, len(x))
    for i, value in enumerate(values):
        k.load(f32, k.address(source, k.lane, 4), offset=i * x.strides[0], into=value)
    for i, function in enumerate((exponential, silu)):
        for j, value in enumerate(function(k, values)):
            k.store(k.address(results, k.lane, 4), value, offset=i * got.strides[0] + j * got.strides[1])
    emulate.run(Launch.of(k.finish({}), 1, x=view(x), d=view(got)))
    want = np.stack([exponential(ARRAYS, x), silu(ARRAYS, x)])
    numbers = ~np.isnan(want)
    assert same_bits(got[numbers], want[numbers]) and np.isnan(got[~numbers]).all()
