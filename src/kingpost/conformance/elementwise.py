"""Formats, casts and the other operations element by element, against numpy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from kingpost import formats, ops, quantization, scaling
from kingpost.conformance.check import Array, Check, Failure, Subject, check, expect_bits, expect_within
from kingpost.formats import BF16, E4M3FNUZ, F32, Format
from kingpost.scaling import BLOCK, LAYOUTS, ScaledTensor

CHECKS: list[Check] = []
ROWS, COLUMNS = 5, 272  # the last block of 128 columns is partial


def drawn(shape: tuple[int, ...], format: Format, seed: int = 0) -> Array:
    """Normal numbers, the rows of very unlike size, so that a scale taken from the wrong row shows."""
    random = np.random.default_rng(seed)
    sizes = np.exp2(random.integers(-12, 13, (shape[0], *[1] * (len(shape) - 1))))
    return formats.cast(random.standard_normal(shape) * sizes, format)


def expect_same(what: str, got: ScaledTensor, want: ScaledTensor) -> None:
    expect_bits(f"scales of {what}", got.scales, want.scales)
    expect_bits(what, got.data, want.data)


@check(CHECKS, "formats", "every finite e4m3 code survives a cast", required=True)
def codes_survive(subject: Subject) -> None:
    codes = np.arange(256, dtype=np.uint8).view(subject.float8.dtype)
    values = formats.decode(codes)
    values[~np.isfinite(values)] = subject.float8.maximum  # in each half, so that every scale is 1
    values = values.reshape(2, BLOCK)
    values[:, 0] = subject.float8.maximum
    got = ops.cast(values, format=subject.float8, device=subject.device)
    expect_bits("scales", got.scales, np.ones((2, 1), np.float32))
    expect_bits("codes", got.data, formats.cast(values, subject.float8))


@check(CHECKS, "formats", "every e4m3 code, NaN too, is dequantised to its value")
def codes_decoded(subject: Subject) -> None:
    codes = np.arange(256, dtype=np.uint8).view(subject.float8.dtype).reshape(2, BLOCK)
    given = ScaledTensor(codes, np.array([[1.0], [0.5]], np.float32), "1x128")
    expect_bits("values", ops.dequantize(given, device=subject.device), quantization.dequantize(given))


@check(CHECKS, "formats", "ties, subnormals, signed zeros, the largest and the smallest numbers", required=True)
def special_values(subject: Subject) -> None:
    values = formats.decode(np.arange(127, dtype=np.uint8), subject.float8)
    ties = (values[1:] + values[:-1]) / 2
    rows = np.zeros((8, BLOCK), np.float32)
    rows[0, : len(ties)] = ties
    rows[1, : len(ties)] = -ties
    rows[:2, -1] = subject.float8.maximum
    rows[2] = -0.0
    rows[3] = np.float32(3.4028235e38)
    rows[4, ::2] = np.float32(1e-45)
    rows[5] = np.linspace(-1e-10, 1e-10, BLOCK)
    rows[6, :2] = 1, -1e-30
    rows[7] = np.geomspace(1e-38, 3e38, BLOCK)
    for eps, power_of_two in product((1e-4, 1e-10, 1e-30, 0.0), (False, True)):
        options: dict[str, Any] = {"format": subject.float8, "eps": eps, "power_of_two": power_of_two}
        got, want = ops.cast(rows, device=subject.device, **options), quantization.quantize(rows, "1x128", **options)
        expect_same(f"eps = {eps:g}, power_of_two = {power_of_two}", got, want)


@check(CHECKS, "cast", "from float32 and bfloat16, free scales and powers of two: the bits of numpy", required=True)
def cast_bits(subject: Subject) -> None:
    for format, power_of_two in product((F32, BF16), (False, True)):
        x = drawn((ROWS, COLUMNS), format)
        got = ops.cast(x, format=subject.float8, power_of_two=power_of_two, device=subject.device)
        want = quantization.quantize(x, "1x128", format=subject.float8, power_of_two=power_of_two)
        expect_same(f"{format.name}, power_of_two = {power_of_two}", got, want)


@check(CHECKS, "cast", "scales in every named layout")
def cast_layouts(subject: Subject) -> None:
    x = drawn((ROWS, COLUMNS), BF16, seed=1)
    want = quantization.quantize(x, "1x128", format=subject.float8)
    for layout in LAYOUTS:
        expect_same(layout, ops.cast(x, format=subject.float8, layout=layout, device=subject.device), want)


@check(CHECKS, "cast", "rows of a wider array")
def cast_strided(subject: Subject) -> None:
    x = drawn((ROWS, 2 * COLUMNS), F32, seed=2)[:, :COLUMNS]
    got = ops.cast(x, format=subject.float8, device=subject.device)
    expect_same("rows", got, quantization.quantize(x, "1x128", format=subject.float8))


@check(CHECKS, "silu_mul_cast", "within the cast's rounding of float64")
def silu_mul_cast(subject: Subject) -> None:
    for format in (F32, BF16):
        x = np.clip(drawn((ROWS, 2 * COLUMNS), F32, seed=3), -60, 60)
        x = formats.cast(x, format)
        got = ops.silu_mul_quantize(x, format=subject.float8, device=subject.device)
        gate, up = np.split(formats.decode(x, dtype=np.float64), 2, axis=1)
        want = gate / (1 + np.exp(-gate)) * up
        scales = got.scaling.expand(got.scales.astype(np.float64), got.shape)
        # half a unit of 3 fraction bits, or of the subnormals; a little more, since float32 came before
        subnormal = 2.0**-11 if subject.float8 is E4M3FNUZ else 2.0**-10
        allowed = (np.abs(want) * 2.0**-4 + scales * subnormal) * (1 + 2.0**-10)
        expect_within(format.name, quantization.dequantize(got), want, allowed)
        expect_scales(got, want, float(subject.float8.maximum or 0))


def expect_scales(got: ScaledTensor, values: Array, maximum: float) -> None:
    """Each block's largest magnitude over the format's, to float32's accuracy."""
    starts = np.arange(0, values.shape[1], BLOCK)
    want = np.maximum(np.maximum.reduceat(np.abs(values), starts, axis=1), 1e-10) / maximum
    expect_within("scales", got.scales, want, want * 2.0**-18)


@check(CHECKS, "relayout", "from every named layout to every other")
def relayout(subject: Subject) -> None:
    values = drawn((7, 3), F32, seed=4)
    for before, after in product(LAYOUTS, LAYOUTS):
        source = scaling.empty_scales(values.shape, before, like=values)
        source[...] = values
        moved = ops.relayout(source, after, device=subject.device)
        expect_bits(f"{before} to {after}", moved, values)
        if moved.strides != scaling.empty_scales(values.shape, after, like=values).strides:
            raise Failure(f"{before} to {after}: strides are {moved.strides} bytes")


@check(CHECKS, "dequantise", "the bits of numpy")
def dequantise(subject: Subject) -> None:
    given = quantization.quantize(drawn((ROWS, COLUMNS), F32, seed=5), "1x128", format=subject.float8)
    want = quantization.dequantize(given)
    for format in (F32, BF16):
        got = ops.dequantize(given, out_dtype=format, device=subject.device)
        expect_bits(format.name, got, formats.cast(want, format))


@check(CHECKS, "vector_add", "the bits of numpy")
def vector_add(subject: Subject) -> None:
    x, y = (drawn((1001,), F32, seed) for seed in (6, 7))
    expect_bits("sums", ops.add(x, y, device=subject.device), x + y)
