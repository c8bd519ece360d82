"""The two casts on every target: the bits of `kingpost.quantize` and of the numpy twin, any sizes, any layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kingpost import formats, quantization
from kingpost.formats import BF16, E4M3, F32, Format
from kingpost.portable import cast, silu_mul_cast
from kingpost.program import Target
from kingpost.targets.cpu import elementwise

from .harness import IDS, LAYOUTS, TARGETS, inside, launch, run, same_bits

SHAPES = ((3, 1024), (2, 1160), (5, 128), (4, 24), (3, 131), (1, 1))
KERNELS = {"cast": cast, "silu_mul_cast": silu_mul_cast}
every_target = pytest.mark.parametrize("target", TARGETS, ids=IDS)
every_kernel = pytest.mark.parametrize("name", KERNELS)


def drawn(rows: int, columns: int, format: Format, seed: int = 0) -> np.ndarray:
    """Numbers of very unlike sizes, zeros of both signs among them."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, columns)) * np.exp2(random.integers(-9, 9, (rows, columns)))
    x[random.random(x.shape) < 0.05] = 0.0
    x[random.random(x.shape) < 0.05] = -0.0
    return formats.cast(x, format)


def results(target: Target, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.zeros((rows, columns), target.float8.dtype),
        np.zeros((rows, -(-columns // 128)), np.float32),
    )


def check(name: str, target: Target, x: np.ndarray, columns: int, order: str = "late", **options: Any) -> None:
    """The emulated kernel's bits are the twin's."""
    got, want = results(target, len(x), columns), results(target, len(x), columns)
    run(KERNELS[name], target, x, *got, order=order, **options)
    getattr(elementwise, name)(x, *want, **options)
    assert same_bits(got[1], want[1])
    assert same_bits(got[0], want[0])


def wide(name: str, columns: int) -> int:
    return columns if name == "cast" else 2 * columns


@every_target
@pytest.mark.parametrize("format", [BF16, F32], ids=str)
@pytest.mark.parametrize("power_of_two", [False, True], ids=["free", "power of two"])
def test_a_cast_is_quantize(target: Target, format: Format, power_of_two: bool) -> None:
    for rows, columns in SHAPES:
        x = drawn(rows, columns, format)
        data, scales = results(target, rows, columns)
        run(cast, target, x, data, scales, power_of_two=power_of_two)
        want = quantization.quantize(x, "1x128", format=target.float8, power_of_two=power_of_two)
        assert same_bits(data, want.data) and same_bits(scales, want.scales), (rows, columns)


@every_target
@every_kernel
def test_any_size(target: Target, name: str) -> None:
    for rows, columns in SHAPES:
        check(name, target, drawn(rows, wide(name, columns), BF16, seed=columns), columns, "random")


@every_target
@every_kernel
@pytest.mark.parametrize("eps", [0.0, 1e-38, 1e-10, 1e-4, 1.0])
def test_floors(target: Target, name: str, eps: float) -> None:
    x = drawn(2, wide(name, 256), F32, seed=3)
    x[:, ::2] = x[:, ::2] * np.float32(1e-6)
    x[0, : wide(name, 128)] = 0
    x[1, 128:140] = np.float32(1e-44)
    for options in ({}, {"power_of_two": True}, {"reciprocal_scale": True}):
        check(name, target, x, 256, eps=eps, **options)


@every_target
def test_quotients_are_rounded_once(target: Target) -> None:
    """Numbers whose quotients lie at, just above and just below every tie between codes."""
    codes = np.arange(127, dtype=np.uint8)
    values = formats.decode(codes, target.float8)
    values = values[np.isfinite(values)].astype(np.float64)
    ties = np.concatenate([(values[1:] + values[:-1]) / 2, values])
    rows = []
    for largest in np.random.default_rng(1).uniform(1, 2, 24).astype(np.float32):
        scale = np.float32(largest / np.float32(target.float8.maximum))
        near = (ties * np.float64(scale)).astype(np.float32)
        around = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(9))])
        around = np.minimum(around, largest)
        blocks = np.resize(around, (-(-len(around) // 127), 127))
        rows.append(np.concatenate([blocks, np.full((len(blocks), 1), largest)], axis=1).reshape(-1))
    x = np.stack(rows).astype(np.float32)
    data, scales = results(target, *x.shape)
    run(cast, target, x, data, scales)
    want = quantization.quantize(x, "1x128", format=target.float8)
    assert same_bits(scales, want.scales) and same_bits(data, want.data)


@every_target
@every_kernel
def test_nan_and_infinity(target: Target, name: str) -> None:
    """NaN is left out of the scale; infinity makes it infinite, or 2^127."""
    x = drawn(3, wide(name, 384), F32, seed=5)
    x[0, 3], x[1, 130], x[2, 300] = np.nan, np.inf, -np.inf
    for options in ({}, {"power_of_two": True}, {"eps": 0.0}, {"reciprocal_scale": True}):
        check(name, target, x, 384, **options)
    data, scales = results(target, 3, 384)
    run(cast, target, np.ascontiguousarray(x[:, :384]), data, scales)
    values = formats.decode(data)
    assert np.isnan(values[0, 3]) and np.isnan(values[0]).sum() == 1 and np.isfinite(scales[0]).all()
    assert np.isinf(scales[1, 1]) and np.isinf(scales[2, 2]) and np.isinf(scales).sum() == 2


@every_target
@every_kernel
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scales_in_any_layout(target: Target, name: str, layout: str) -> None:
    """The same scales wherever they lie; the memory between them is left as it was."""
    x = drawn(6, wide(name, 640), BF16, seed=7)
    data, want = results(target, 6, 640)
    run(KERNELS[name], target, x, data, want)
    scales, memory = LAYOUTS[layout](want.shape)
    expected, around = LAYOUTS[layout](want.shape)
    expected[...] = want
    again = np.zeros_like(data)
    run(KERNELS[name], target, x, again, scales)
    assert same_bits(again, data) and same_bits(memory, around)


@every_target
@every_kernel
def test_rows_may_lie_apart(target: Target, name: str) -> None:
    """Rows of larger arrays, aligned to 16 bytes and not: the neighbours stay."""
    for columns, room in ((256, 264), (130, 133)):
        whole = drawn(4, wide(name, room) + 8, BF16, seed=columns)
        x = whole[:, : wide(name, columns)]
        want, scales = results(target, 4, columns)
        run(KERNELS[name], target, np.ascontiguousarray(x), want, scales)
        data, memory = inside((4, columns), (4, room), target.float8.dtype)
        expected, around = inside((4, columns), (4, room), target.float8.dtype)
        expected[...] = want
        again = np.zeros_like(scales)
        run(KERNELS[name], target, x, data, again)
        assert same_bits(memory, around) and same_bits(again, scales)


def test_nothing_is_a_launch_of_no_block() -> None:
    data, scales = results(TARGETS[0], 0, 256)
    assert launch(cast, TARGETS[0], np.zeros((0, 256), np.float32), data, scales).grid == 0


@pytest.mark.parametrize("change, message", [
    ({"x": np.zeros((2, 256), np.float16)}, "x is float16; bfloat16 or float32 is wanted"),
    ({"x": np.zeros((2, 128), np.float32)}, "x has shape [2, 128]; [any, 256] is wanted"),
    ({"x": np.zeros((256, 2), np.float32).T}, "x has strides (4, 8) bytes; 4 bytes from one element of a row to the"),
    ({"data": np.zeros((2, 256), np.uint8)}, "data is uint8; e4m3 is wanted"),
    ({"scales": np.zeros((2, 3), np.float32)}, "scales has shape [2, 3]; [2, 2] is wanted"),
    ({"scales": np.zeros((2, 2), np.float32)[::-1]}, "scales has strides (-8, 4) bytes; strides from 0 to 2^32"),
])  # fmt: skip
def test_what_is_refused(change: dict[str, np.ndarray], message: str) -> None:
    arrays = {
        "x": np.zeros((2, 256), np.float32),
        "data": np.zeros((2, 256), E4M3.dtype),
        "scales": np.zeros((2, 2), np.float32),
    }
    with pytest.raises((TypeError, ValueError)) as error:
        launch(cast, TARGETS[0], *(arrays | change).values())
    assert message in str(error.value)


def test_eps_is_a_finite_number() -> None:
    for eps in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="eps is"):
            launch(cast, TARGETS[0], np.zeros((1, 1), np.float32), *results(TARGETS[0], 1, 1), eps=eps)
