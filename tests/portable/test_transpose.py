"""Codes transposed and slices added: on every target the bits of numpy, whatever the sizes and pitches."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kingpost.portable import add_slices, transpose
from kingpost.program import Target
from kingpost.targets.cpu import elementwise

from .harness import IDS, TARGETS, inside, run, same_bits


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize(
    "shape, room", [((144, 132), (144, 144)), ((16, 4), (16, 16)), ((131, 77), (140, 80)), ((1, 1), (1, 1))]
)
def test_codes_are_transposed(target: Target, shape: tuple[int, int], room: tuple[int, int]) -> None:
    source, _ = inside(shape, room, np.uint8)
    source[...] = np.random.default_rng(0).integers(0, 256, shape)
    destination, whole = inside(shape[::-1], (room[1], -(-room[0] // 16) * 16), np.uint8)
    untouched = whole.copy()
    run(transpose, target, source, destination, order="random")
    np.testing.assert_array_equal(destination, source.T)
    untouched[: shape[1], : shape[0]] = source.T
    np.testing.assert_array_equal(whole, untouched)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("with_c", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 600), (1, 1, 8), (4, 9, 13)])
def test_slices_are_added_in_order(target: Target, dtype: Any, with_c: bool, shape: tuple[int, int, int]) -> None:
    random = np.random.default_rng(1)
    x = (random.standard_normal(shape) * np.exp(random.standard_normal(shape) * 4)).astype(np.float32)
    x[0, 0, 0] = 1e6  # infinity in float16
    x.view(np.uint32)[0, 0, 1] = 0x7FFFFFFF  # the NaN that products give
    c = [random.standard_normal(shape[1:]).astype(dtype)] if with_c else []
    d, want = (np.full(shape[1:], np.nan, dtype) for _ in range(2))
    run(add_slices, target, x, *c, d)
    elementwise.add_slices(x, *c, want)
    assert same_bits(d, want)
    total = c[0].astype(np.float32) if with_c else np.zeros(shape[1:], np.float32)
    for each in x:
        total = total + each
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(want.astype(np.float32), total.astype(dtype).astype(np.float32))
