"""What cannot be done ends in an exception that names the argument; nothing is misread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kingpost import ops, plan, quantization, reference
from kingpost.conformance.check import Check, Subject, check, expect_bits, expect_error, expect_within
from kingpost.conformance.elementwise import drawn, expect_same
from kingpost.conformance.products import PRODUCTS, operands
from kingpost.formats import BF16, E4M3, E4M3FNUZ, E5M2, F32
from kingpost.scaling import ScaledTensor

CHECKS: list[Check] = []


@check(CHECKS, "errors", "products of what does not fit", required=True)
def products(subject: Subject) -> None:
    a, b = operands(subject, 4, 16, 128)
    long, _ = operands(subject, 4, 16, 256)
    _, odd = operands(subject, 4, 12, 128)
    bad = ScaledTensor(a.data, np.full_like(a.scales, np.nan), a.scaling)
    for name, multiply in PRODUCTS.items():
        on_device = partial(multiply, device=subject.device)
        expect_error(f"{name} of unlike K", partial(on_device, long, b), ["a is", "b is", "K"])
        expect_error(f"{name} of 12 columns", partial(on_device, a, odd), ["N", "12"])
        expect_error(f"{name} of a numpy array", partial(on_device, a.data, b), ["a is"])
        expect_error(f"{name} of NaN scales", partial(on_device, bad, b), ["a.scales", "NaN"])
        expect_error(f"{name} into e5m2", partial(on_device, a, b, out_dtype=E5M2), ["out_dtype"])


@check(CHECKS, "errors", "casts of what cannot be cast", required=True)
def casts(subject: Subject) -> None:
    where, x = subject.device, drawn((2, 128), F32)
    holed = x.copy()
    holed[1, 5] = np.nan
    expect_error("cast of integers", lambda: ops.cast(np.arange(4, dtype="u4")[None], device=where), ["x", "uint32"])
    expect_error("cast of one dimension", lambda: ops.cast(x[0], device=where), ["x", "[M, K]"])
    expect_error("cast of every other column", lambda: ops.cast(x[:, ::2], device=where), ["x", "strides"])
    expect_error("cast of NaN", lambda: ops.cast(holed, device=where), ["x", "NaN"])
    expect_error("cast to bfloat16", lambda: ops.cast(x, format=BF16, device=where), ["format", "bfloat16"])
    expect_error("eps below 0", lambda: ops.cast(x, eps=-1.0, device=where), ["eps", "-1"])
    expect_error("an unknown layout", lambda: ops.cast(x, layout="diagonal", device=where), ["layout", "diagonal"])


@check(CHECKS, "errors", "the other chips' e4m3 is converted or refused, never misread", required=True)
def other_float8(subject: Subject) -> None:
    other = E4M3FNUZ if subject.float8 is E4M3 else E4M3
    elsewhere = Subject(subject.device, other)
    x = drawn((4, 128), F32, seed=8)
    given = quantization.quantize(x, "1x128", format=other)
    a, b = operands(elsewhere, 16, 16, 128)
    cast = _answer(partial(ops.cast, x, format=other, device=subject.device))
    if cast is not None:
        expect_same(f"cast to {other.name}", cast, given)
    values = _answer(partial(ops.dequantize, given, device=subject.device))
    if values is not None:
        expect_bits(other.name, values, quantization.dequantize(given))
    for name, multiply in PRODUCTS.items():
        got = _answer(partial(multiply, a, b, out_dtype="float32", device=subject.device))
        if got is not None:
            expect_within(f"{name} of {other.name}", got, reference.truth(a, b), reference.bound(a, b, F32))


def _answer(call: Callable[[], Any]) -> Any:
    """What the device answers, None if it refuses; any other error is for the caller's caller."""
    try:
        return call()
    except plan.Unsupported:
        return None
