"""Products for every head, and sums of products: each head has the bits of `kp.mm`, a sum its stated order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kingpost as kp
from kingpost import formats

from .operands import in_order, normal, same, scaled
from .recorder import Recorder

B, H, R, D = 5, 3, 144, 24
OUT, IN, SUM = "bhr,hdr->bhd", "bhd,hdr->bhr", "bmk,bnk->mn"


def head(x: Any, h: int, dimension: int) -> Any:
    """One head's matrix."""
    if not isinstance(x, kp.ScaledTensor):
        return x.take(h, dimension)
    return kp.ScaledTensor(x.data.take(h, dimension), x.scales.take(h, dimension), x.scaling)


@pytest.mark.parametrize("kind", ["bfloat16", "1x128 128x128", "row row", "1x128 tensor", "1x32:ue8m0 1x32:ue8m0"])
def test_heads_out(kind: str) -> None:
    a_scaling, b_scaling = kind.split() if " " in kind else ("", "")
    a = scaled(B, H, R, scaling=a_scaling) if a_scaling else normal(B, H, R)
    w = scaled(H, D, R, scaling=b_scaling) if b_scaling else normal(H, D, R)
    c = normal(B, H, D)
    d = kp.einsum(OUT, a, w, alpha=2, c=c)
    for h in range(H):
        assert same(d[:, h], kp.mm(head(a, h, 1), head(w, h, 0).T, alpha=2, c=np.ascontiguousarray(c[:, h])))
    assert kp.einsum(OUT, a, w, alpha=2, c=c, out=c) is c and same(c, d)


@pytest.mark.parametrize("kind", ["bfloat16", "1x128 128x128", "1x128 128x1"])
def test_heads_in(kind: str) -> None:
    a_scaling, b_scaling = kind.split() if " " in kind else ("", "")
    d, r = R, D
    a = scaled(B, H, d, scaling=a_scaling) if a_scaling else normal(B, H, d)
    w = scaled(H, d, r, scaling=b_scaling) if b_scaling else normal(H, d, r)
    y = kp.einsum(IN, a, w, out_dtype="float32")
    for h in range(H):
        assert same(y[:, h], kp.mm(head(a, h, 1), head(w, h, 0), out_dtype="float32"))


@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 32, 33, 100])
@pytest.mark.parametrize("added", [False, True])
def test_sums_of_slices(batch: int, out_dtype: str, added: bool) -> None:
    a, b = normal(batch, 4, 16), normal(batch, 8, 16)
    c = normal(4, 8, dtype=formats.named(out_dtype).dtype) if added else None
    each = -(-batch // 32)
    total = None if c is None else c.astype(np.float32)
    for first in range(0, batch, each):
        left, right = (np.concatenate([*x[first : first + each]], axis=1) for x in (a, b))
        chain = kp.mm(left, right.T, out_dtype="float32")
        total = chain if total is None else total + chain
    assert same(kp.einsum(SUM, a, b, c=c, out_dtype=out_dtype), formats.cast(total, out_dtype))


def test_a_sum_in_place_and_of_any_order_in_memory() -> None:
    a, b, c = normal(40, 16, 32), normal(40, 8, 32), normal(16, 8, dtype=np.float32)
    want = kp.einsum(SUM, a, b, c=c)
    turned = in_order(a, 0, 2, 1), in_order(b, 0, 2, 1)
    assert kp.einsum(SUM, *turned, c=c, out=c) is c and same(c, want)


def test_what_a_device_is_asked() -> None:
    device = Recorder()
    a, w = scaled(B, H, R), scaled(H, D, R, scaling="128x128")
    kp.einsum(OUT, a, w, c=normal(B, H, D), device=device)
    problem, operands = device.last
    assert (problem.op, problem.groups, problem.n, problem.k, problem.c) == ("batched_mm", H, D, R, True)
    shapes = {name: view.shape for name, view in operands.views.items()}
    assert shapes == {
        "a": (H, B, R), "scale_a": (H, B, 2), "b": (H, D, R), "scale_b": (H, 1, 2), "c": (H, B, D), "d": (H, B, D),
    }  # fmt: skip
    assert operands["a"].strides == (R, H * R, 1) and operands["scale_a"].strides == (8, 8 * H, 4)
    assert operands["d"].strides == (2 * D, 2 * H * D, 2) and operands.rows == B
    kp.einsum(IN, normal(B, H, D), normal(H, D, R), device=device)
    assert device.last[0].b_major == "mn" and device.last[1]["b"].shape == (H, R, D)
    kp.einsum(SUM, normal(70, 4, 16), normal(70, 8, 16), c=normal(4, 8), device=device)
    (summed, slices), (added, last) = device.asked[-2:]
    assert (summed.op, summed.groups, summed.out_format.name, summed.c) == ("summed_mm", 70, "float32", False)
    assert list(slices.views) == ["a", "b", "d"] and slices["d"].shape == (24, 4, 8)
    assert added.op == "add_slices" and list(last.views) == ["x", "c", "d"] and last["x"].pointer == slices["d"].pointer


def test_a_device_rounds_a_sum_once_to_float16() -> None:
    """The portable kernel that adds the slices rounds to every format that users may ask for."""
    a, b = normal(2, 16, 16), normal(2, 8, 16)
    d, total = (kp.einsum(SUM, a, b, out_dtype=each, device="emulated:sm_90a") for each in ("float16", "float32"))
    assert same(d, total.astype(np.float16))


@pytest.mark.parametrize("expression", ["bhr, hdr -> bhd", " BHR,HDR->BHD", "tnk,nmk->tnm"])
def test_letters_do_not_matter(expression: str) -> None:
    a, w = normal(B, H, R), normal(H, D, R)
    assert same(kp.einsum(expression, a, w), kp.einsum(OUT, a, w))


@pytest.mark.parametrize("expression", ["bhr,hdr->bdh", "bhr,hdr", "mk,nk->mn", "...k,nk->...n", "", None])
def test_other_expressions(expression: Any) -> None:
    with pytest.raises(ValueError, match=r"expression is .*; one of 'bhr,hdr->bhd', 'bhd,hdr->bhr', 'bmk,bnk->mn'"):
        kp.einsum(expression, normal(B, H, R), normal(H, D, R))


def test_nothing_to_multiply() -> None:
    assert kp.einsum(OUT, normal(0, H, R), normal(H, D, R)).shape == (0, H, D)
    assert kp.einsum(OUT, normal(B, 0, R), normal(0, D, R)).shape == (B, 0, D)
    assert not kp.einsum(OUT, normal(B, H, 0), normal(H, D, 0)).astype(np.float32).any()
    c = normal(4, 8, dtype=np.float32)
    for batch, k in ((0, 16), (3, 0)):
        assert same(kp.einsum(SUM, normal(batch, 4, k), normal(batch, 8, k), c=c), c)


@pytest.mark.parametrize("device", ["cpu", "emulated:sm_90a"])
@pytest.mark.parametrize(
    "expression, a, b, given, error, message",
    [
        (OUT, normal(B, R), normal(H, D, R), {}, ValueError, r"a has shape \[5, 144\]; \[M, G, K\] is wanted"),
        (OUT, normal(B, 2, R), normal(H, D, R), {}, ValueError, r"a is \[5, 2, 144\] .*, with one G"),
        (OUT, scaled(B, H, R, scaling="tensor"), scaled(H, D, R), {}, ValueError, "a is scaled tensor; scales for"),
        (SUM, scaled(2, 4, 16), normal(2, 8, 16), {}, TypeError, "a is a ScaledTensor; a bfloat16 array is wanted"),
        (SUM, normal(2, 4, 16), normal(2, 8, 16), {"alpha": 2}, ValueError, "alpha is 2; None is wanted"),
        (SUM, normal(2, 4, 16), normal(2, 8, 16), {"order": 1}, ValueError, "order is 1; 'ascending' or 'fast'"),
    ],
)
def test_refusals(
    device: str, expression: str, a: Any, b: Any, given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kp.einsum(expression, a, b, **given, device=device)
