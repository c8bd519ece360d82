"""Every portable kernel on a GPU: the emulator's bits, NaN's included, for sizes even and odd and scales anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kingpost import emulate, formats
from kingpost.formats import BF16, F16, F32, Format
from kingpost.portable import (
    add_slices,
    cast,
    dequantise,
    masked_silu_mul_cast,
    relayout,
    silu_mul_cast,
    tile_product,
    transpose,
    transposed_cast,
    vector_add,
)
from kingpost.targets.nvidia.targets import SM_90A

from ..portable.harness import LAYOUTS, launch
from .on_gpu import run

pytestmark = pytest.mark.gpu
CODES = SM_90A.float8.dtype


def drawn(*shape: int, format: Format = F32, seed: int = 0) -> np.ndarray:
    """Numbers of very unlike sizes, zeros of both signs, and in a large enough array NaN and infinity."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(shape) * np.exp2(random.integers(-9, 9, shape))
    x[random.random(shape) < 0.05] = -0.0
    if x.size > 2000:
        x.reshape(-1)[[5, 700, 1500]] = np.nan, np.inf, -np.inf
    return formats.cast(x, format)


def expect_the_emulators_bits(kernel: Any, *arrays: np.ndarray, results: int = 1, **options: Any) -> None:
    """The last `results` arrays are written; everything that shares their memory is compared."""
    written = [each if each.base is None else each.base for each in arrays[-results:]]
    before = [each.copy() for each in written]
    call = launch(kernel, SM_90A, *arrays, **options)
    emulate.run(call)
    emulated = [each.copy() for each in written]
    for each, value in zip(written, before):
        each[...] = value
    run(call)
    for got, want in zip(written, emulated):
        wrong = got.view(np.uint8) != want.view(np.uint8)
        assert not wrong.any(), f"{wrong.sum()} of {wrong.size} bytes differ, the first at {np.argwhere(wrong)[0]}"


def scales(rows: int, columns: int) -> Iterator[np.ndarray]:
    for layout in LAYOUTS.values():
        yield layout((rows, -(-columns // 128)))[0]


@pytest.mark.parametrize("size", [1, 4, 1023, 4096, 5001])
def test_vector_add(size: int) -> None:
    for start in (0, 1):
        x, y = (drawn(size + 4, seed=seed)[start : start + size] for seed in (1, 2))
        expect_the_emulators_bits(vector_add, x, y, np.zeros(size + 4, np.float32)[start : start + size])


@pytest.mark.parametrize("kernel, wide", [(cast, 1), (silu_mul_cast, 2)], ids=["cast", "silu_mul_cast"])
@pytest.mark.parametrize("format", [BF16, F32], ids=str)
@pytest.mark.parametrize("columns", [1, 131, 640, 4224])
def test_casts(kernel: Any, wide: int, format: Format, columns: int) -> None:
    x, data = drawn(5, wide * columns, format=format, seed=columns), np.zeros((5, columns), CODES)
    for each in scales(5, columns):
        expect_the_emulators_bits(kernel, x, data, each, results=2)
    for options in ({"power_of_two": True}, {"eps": 0.0}, {"eps": 1.0, "power_of_two": True}):
        expect_the_emulators_bits(kernel, x, data, next(scales(5, columns)), results=2, **options)


ROUNDINGS: tuple[dict[str, Any], ...] = (
    {},
    {"eps": 1e-4, "reciprocal_scale": True},
    {"reciprocal_maximum": True},
    {"eps": 0.0, "power_of_two": True},
)


@pytest.mark.parametrize("format", [BF16, F32], ids=str)
@pytest.mark.parametrize("shape", [(128, 128), (260, 392), (131, 77), (1, 1)], ids=str)
def test_casts_by_blocks_and_transposed(format: Format, shape: tuple[int, int]) -> None:
    (rows, columns), x = shape, drawn(*shape, format=format, seed=shape[0])
    blocks = -(-rows // 128)
    for rounding in ROUNDINGS:
        squares = np.zeros((blocks, -(-columns // 128)), np.float32)
        expect_the_emulators_bits(cast, x, np.zeros(shape, CODES), squares, results=2, scaling="128x128", **rounding)
        turned = np.zeros((columns, rows), CODES), np.zeros((columns, blocks), np.float32)
        expect_the_emulators_bits(transposed_cast, x, *turned, results=2, **rounding)


@pytest.mark.parametrize("format", [BF16, F32], ids=str)
@pytest.mark.parametrize("sizes", [[16, 0, 144, 128], [0, 0], [304], [16] * 512], ids=["four", "none", "one", "512"])
def test_transposed_cast_in_groups(format: Format, sizes: list[int]) -> None:
    ends = np.cumsum(sizes).astype(np.int32)
    depth = max(16, int(ends[-1]))
    results = np.zeros((72, depth), CODES), np.ones((72, depth // 128 + len(sizes)), np.float32)
    expect_the_emulators_bits(transposed_cast, drawn(depth, 72, format=format), ends, *results, results=2)


@pytest.mark.parametrize("format", [BF16, F32], ids=str)
@pytest.mark.parametrize("columns", [131, 640])
def test_masked_silu_mul_cast(format: Format, columns: int) -> None:
    x, counts = drawn(4, 9, 2 * columns, format=format), np.array([3, 0, 9, 1], np.int32)
    results = np.zeros((4, 9, columns), CODES), np.zeros((4, 9, -(-columns // 128)), np.float32)
    expect_the_emulators_bits(masked_silu_mul_cast, x, counts, *results, results=2)


@pytest.mark.parametrize("shape", [(144, 132), (256, 384), (131, 77), (1, 1)], ids=str)
def test_transpose(shape: tuple[int, int]) -> None:
    source = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    expect_the_emulators_bits(transpose, source, np.zeros(shape[::-1], np.uint8))


@pytest.mark.parametrize("out", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 600), (1, 1, 8), (32, 9, 13)], ids=str)
def test_add_slices(out: Format, shape: tuple[int, int, int]) -> None:
    x, c = drawn(*shape), drawn(*shape[1:], format=out, seed=1)
    for given in ([], [c]):
        expect_the_emulators_bits(add_slices, x, *given, np.zeros(shape[1:], out.dtype))


def test_relayout() -> None:
    for source in scales(130, 1400):
        source[...] = drawn(*source.shape)
        for destination in scales(130, 1400):
            expect_the_emulators_bits(relayout, source, destination)


@pytest.mark.parametrize("out", [F32, BF16], ids=str)
@pytest.mark.parametrize("columns", [1, 133, 640])
def test_dequantise(out: Format, columns: int) -> None:
    data = np.resize(np.arange(256, dtype=np.uint8), (5, columns)).view(CODES)
    for each in scales(5, columns):
        each[...] = drawn(*each.shape)
        expect_the_emulators_bits(dequantise, data, each, np.zeros((5, columns), out.dtype))


@pytest.mark.parametrize("out", [F32, BF16], ids=str)
@pytest.mark.parametrize("shape", [(64, 64, 128), (13, 24, 272), (70, 136, 512)])
def test_tile_product(out: Format, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = (drawn(rows, k, seed=rows) for rows in (m, n))
    a, b = (formats.cast(np.nan_to_num(x, posinf=3, neginf=-3) / 64, SM_90A.float8) for x in (a, b))
    for scale_a, scale_b in zip(scales(m, k), scales(-(-n // 128), k)):
        scale_a[...], scale_b[...] = np.abs(drawn(*scale_a.shape)), np.abs(drawn(*scale_b.shape))
        expect_the_emulators_bits(tile_product, a, scale_a, b, scale_b, np.zeros((m, n), out.dtype))
