"""Vector add, relayout and dequantise on every target: the numpy twin's bits, and nothing else written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kingpost import formats
from kingpost.formats import BF16, E4M3, F32, Format
from kingpost.portable import dequantise, relayout, vector_add
from kingpost.program import Target
from kingpost.targets.cpu import elementwise

from .harness import IDS, LAYOUTS, ORDERS, TARGETS, inside, launch, run, same_bits

every_target = pytest.mark.parametrize("target", TARGETS, ids=IDS)
every_order = pytest.mark.parametrize("order", ORDERS)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@every_target
@every_order
@pytest.mark.parametrize("start", [0, 1], ids=["aligned", "not aligned"])
def test_vector_add(target: Target, order: str, start: int) -> None:
    for size in (1, 3, 4, 130, 1024, 2051):
        x, y = (drawn(size + 8, seed=seed)[start : start + size] for seed in (1, 2))
        x[0] = np.inf
        memory, around = np.full((2, size + 8), 7, np.float32)
        run(vector_add, target, x, y, memory[start : start + size], order=order)
        elementwise.vector_add(x, y, around[start : start + size])
        assert same_bits(memory, around)


@every_target
@pytest.mark.parametrize("before", LAYOUTS)
def test_relayout(target: Target, before: str) -> None:
    for shape in ((1, 1), (67, 11)):
        source, _ = LAYOUTS[before](shape)
        source[...] = drawn(*shape)
        source.view(np.uint32)[0, 0] = 0x7FC12345  # a NaN that is to arrive as it is
        for after in LAYOUTS.values():
            (destination, memory), (expected, around) = after(shape), after(shape)
            run(relayout, target, source, destination)
            elementwise.relayout(source, expected)
            assert same_bits(memory, around)


def coded(target: Target, rows: int, columns: int) -> np.ndarray:
    """Every code, NaN too."""
    return np.resize(np.arange(256, dtype=np.uint8), (rows, columns)).view(target.float8.dtype)


@every_target
@every_order
@pytest.mark.parametrize("out", [F32, BF16], ids=str)
def test_dequantise(target: Target, order: str, out: Format) -> None:
    for rows, columns in ((2, 1160), (3, 133), (1, 1)):
        data, scales = coded(target, rows, columns), drawn(rows, -(-columns // 128))
        (d, memory), (expected, around) = (inside((rows, columns), (rows, columns + 11), out.dtype) for _ in range(2))
        run(dequantise, target, data, scales, d, order=order)
        elementwise.dequantise(data, scales, expected)
        assert equal_but_for_the_bits_of_nan(memory, around)


@every_target
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dequantise_from_any_layout(target: Target, layout: str) -> None:
    data, (scales, _) = coded(target, 6, 640), LAYOUTS[layout]((6, 5))
    scales[...] = drawn(6, 5)
    got, want = np.zeros((2, 6, 640), np.float32)
    run(dequantise, target, data, scales, got)
    elementwise.dequantise(data, scales, want)
    assert equal_but_for_the_bits_of_nan(got, want)


@every_target
def test_dequantise_square_blocks(target: Target) -> None:
    data, scales = coded(target, 130, 200), drawn(2, 2)
    got, want = np.zeros((2, 130, 200), np.float32)
    run(dequantise, target, data, scales, got, rows_per_scale=128)
    elementwise.dequantise(data, np.repeat(scales, 128, axis=0)[:130], want)
    assert equal_but_for_the_bits_of_nan(got, want)


def equal_but_for_the_bits_of_nan(x: np.ndarray, y: np.ndarray) -> bool:
    x, y = (formats.decode(each) for each in (x, y))
    numbers = ~np.isnan(y)
    return bool((np.isnan(x) == ~numbers).all()) and same_bits(x[numbers], y[numbers])


@pytest.mark.parametrize("kernel, arrays, message", [
    (vector_add, (drawn(4), drawn(5), drawn(4)), "y has shape [5]; [4] is wanted"),
    (vector_add, (drawn(4), drawn(8)[::2], drawn(4)), "y has strides (8,) bytes; 4 bytes"),
    (relayout, (drawn(4, 2), drawn(4, 3)), "destination has shape [4, 3]; [4, 2] is wanted"),
    (relayout, (drawn(4), drawn(4)), "source has shape [4]; [any, any] is wanted"),
    (dequantise, (drawn(4, 128), drawn(4, 1), drawn(4, 128)), "data is float32; e4m3 is wanted"),
    (dequantise, (np.zeros((4, 130), E4M3.dtype), drawn(4, 1), drawn(4, 130)), "scales has shape [4, 1]; [4, 2]"),
])  # fmt: skip
def test_what_is_refused(kernel: Any, arrays: tuple[np.ndarray, ...], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        launch(kernel, TARGETS[0], *arrays)
    assert message in str(error.value)
