"""Products of scaled tensors against the float64 truth and its bound, and the one answer for every M."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kingpost import formats, ops, plan, quantization, reference, scaling
from kingpost.conformance.check import Check, Failure, Subject, check, expect_bits, expect_within
from kingpost.conformance.elementwise import drawn
from kingpost.formats import BF16, F32
from kingpost.scaling import SCALINGS, ScaledTensor, Scaling

CHECKS: list[Check] = []
PRODUCTS: dict[str, Callable[..., Any]] = {"mm": ops.mm, "tile_product": ops.tile_product}
SHAPES = {"mm": ((1, 8, 16), (5, 136, 384), (70, 24, 272)), "tile_product": ((16, 16, 128), (13, 24, 384))}


def operands(subject: Subject, m: int, n: int, k: int, seed: int = 0) -> tuple[ScaledTensor, ScaledTensor]:
    """a [m, k] scaled "1x128" and a weight [n, k] scaled "128x128", as b [k, n]."""
    a = quantization.quantize(drawn((m, k), F32, seed), "1x128", format=subject.float8)
    weight = quantization.quantize(drawn((n, k), F32, seed + 1), "128x128", format=subject.float8)
    return a, weight.T


@check(CHECKS, "product", "mm or tile_product is offered", required=True)
def some_product(subject: Subject) -> None:
    a, b = operands(subject, 16, 16, 128)
    try:
        ops.mm(a, b, device=subject.device)
    except plan.Unsupported:
        ops.tile_product(a, b, device=subject.device)


def any_codes(subject: Subject, m: int, n: int, k: int) -> tuple[ScaledTensor, ScaledTensor]:
    """The same of any finite codes, subnormals and largest ones among them, with scales of either sign."""
    random = np.random.default_rng(8)
    codes = np.arange(256, dtype=np.uint8)
    finite = codes[np.isfinite(formats.decode(codes, subject.float8))]

    def tensor(rows: int, scaling: Scaling) -> ScaledTensor:
        shape = scaling.scales_shape((rows, k))
        scales = random.choice([-1, 1], shape) * np.exp2(random.uniform(-20, 20, shape))
        data = random.choice(finite, (rows, k)).view(subject.float8.dtype)
        return ScaledTensor(data, scales.astype(np.float32), scaling)

    return tensor(m, SCALINGS["1x128"]), tensor(n, SCALINGS["128x128"]).T


def _check_product(op: str, multiply: Callable[..., Any], shapes: tuple[tuple[int, int, int], ...]) -> None:
    """Append the checks of one of the products."""

    @check(CHECKS, op, "within the proven bound of float64, into bfloat16 and float32")
    def within_bound(subject: Subject) -> None:
        for m, n, k in shapes:
            a, b = operands(subject, m, n, k)
            for out in (BF16, F32):
                got = multiply(a, b, out_dtype=out.name, device=subject.device)
                what = f"[{m}, {k}] @ [{k}, {n}] into {out.name}"
                expect_within(what, got, reference.truth(a, b), reference.bound(a, b, out))

    @check(CHECKS, op, "of any finite codes and any scales, within the bound")
    def of_any_codes(subject: Subject) -> None:
        a, b = any_codes(subject, *shapes[-1])
        got = multiply(a, b, out_dtype="float32", device=subject.device)
        expect_within("float32", got, reference.truth(a, b), reference.bound(a, b, F32))

    @check(CHECKS, op, "a row has the same bits whatever other rows there are")
    def rows_alone(subject: Subject) -> None:
        m, n, k = shapes[-1]
        a, b = operands(subject, m, n, k, seed=2)
        whole = multiply(a, b, out_dtype="float32", device=subject.device)
        for rows in (slice(0, 1), slice(m // 2, m)):
            part = ScaledTensor(a.data[rows].copy(), a.scales[rows].copy(), a.scaling)
            got = multiply(part, b, out_dtype="float32", device=subject.device)
            expect_bits(f"rows {rows.start} to {rows.stop} alone", got, whole[rows])

    @check(CHECKS, op, "the same bits from scales in every named layout")
    def scale_layouts(subject: Subject) -> None:
        a, b = operands(subject, *shapes[-1], seed=4)
        want = multiply(a, b, out_dtype="float32", device=subject.device)
        for layout in scaling.LAYOUTS:
            scales = scaling.empty_scales(a.scales.shape, layout, like=a.scales)
            scales[...] = a.scales
            got = multiply(ScaledTensor(a.data, scales, a.scaling), b, out_dtype="float32", device=subject.device)
            expect_bits(layout, got, want)

    @check(CHECKS, op, "a NaN stays in its row")
    def nan_stays(subject: Subject) -> None:
        m, n, k = shapes[-1]
        a, b = operands(subject, m, n, k, seed=6)
        want = multiply(a, b, out_dtype="float32", device=subject.device)
        a.data.view(np.uint8)[1, 3] = formats.cast(np.float32(np.nan), subject.float8).view(np.uint8)
        want[1] = np.nan
        expect_bits("a with a NaN in row 1", multiply(a, b, out_dtype="float32", device=subject.device), want)

    @check(CHECKS, op, "nothing times nothing")
    def empty(subject: Subject) -> None:
        a, b = operands(subject, *shapes[0])
        multiply(a, b, device=subject.device)  # or it is not offered
        for m, k in ((0, 128), (4, 0)):
            left = ScaledTensor(a.data[:1, :1].repeat(m, 0).repeat(k, 1), np.ones((m, -(-k // 128)), "f4"), "1x128")
            right = quantization.quantize(np.ones((8, k), np.float32), "128x128", format=subject.float8).T
            got = multiply(left, right, out_dtype="float32", device=subject.device)
            if got.shape != (m, 8) or got.any():
                raise Failure(f"[{m}, {k}] @ [{k}, 8]: {got.shape} instead of zeros of shape {(m, 8)}")


for _op, _multiply in PRODUCTS.items():
    _check_product(_op, _multiply, SHAPES[_op])
