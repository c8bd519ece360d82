"""Products of several matrices at once, written as sums over indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost import arrays, plan
from kingpost.arrays import View, view
from kingpost.formats import F32
from kingpost.ops import operands as check
from kingpost.ops.mm import extras, without_products
from kingpost.ops.operands import Operand
from kingpost.ops.run import gathered, k_major, problem, solve
from kingpost.registry import Device, Elementwise, Operands
from kingpost.scaling import ScaledTensor

SLICES = 32  # of a sum over planes
PLANES_FIRST = {"bhr,hdr->bhd": "k", "bhd,hdr->bhr": "mn"}  # and what is contiguous in a weight [h, d, r]
SUM = "bmk,bnk->mn"


def einsum(
    expression: str,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: float | None = None,
    out: Any = None,
    out_dtype: Any = None,
    order: str = "ascending",
    device: str | Device | None = None,
    stream: Any = None,
) -> Any:
    """A product for every head, or a sum of products; arguments as for `kingpost.mm`.

    "bhr,hdr->bhd", "bhd,hdr->bhr": for each h, a[:, h] times the matrix b[h] or its transpose. bfloat16 arrays, or
        scaled tensors, a "1x128" (or "row", "tensor") along its last dimension, b "128x128" (or, along r, "1x128",
        "row", "tensor"). float8 codes of b are copied first for the second form: see `kingpost.mm`.
    "bmk,bnk->mn": the sum over b of a[b] @ b[b].T, bfloat16 arrays. b is cut into at most 32 slices of equal size; each
        slice is one chain of the tensor core, b and K ascending, and slices are added in float32, c first, then the
        first slice. Takes memory for the slices from the caller's allocator: float32 [slices, M, N].

    Raises ValueError for any other expression.
    """
    text = expression.replace(" ", "") if isinstance(expression, str) else expression
    check.check_order(order)
    if text in PLANES_FIRST:
        return _by_head(text, a, b, c, alpha, out, out_dtype, order, device, stream)
    if text == SUM:
        return _sum(a, b, c, alpha, out, out_dtype, order, device, stream)
    raise ValueError(f"expression is {expression!r}; one of {', '.join(map(repr, (*PLANES_FIRST, SUM)))} is wanted")


def _by_head(
    text: str,
    a: Any,
    b: Any,
    c: Any,
    alpha: float | None,
    out: Any,
    out_dtype: Any,
    order: str,
    device: str | Device | None,
    stream: Any,
) -> Any:
    left = check.operand(_heads_first(a), "a", 3, turned=False)
    right = check.operand(_weight(b, text), "b", 3, turned=True)
    check.check_pair(left, right)
    (heads, m, k), n = left.data.shape, right.data.shape[1]
    if right.data.shape[0] != heads:
        raise ValueError(f"a has {heads} heads, b {right.data.shape[0]}; as many are wanted")
    chosen = check.device_of(device, left)
    given = out is not None
    out, d = check.result((m, heads, n), out, out_dtype, left, stream)
    more = extras(left, c, None, d, n, None)
    factor = None if alpha is None else check.number(alpha)
    handle = chosen.stream(stream, not isinstance(left.array, np.ndarray))
    if 0 in (m, n, heads):
        return out
    if k == 0:
        return without_products(out, left, c, None, stream)
    if given:
        check.check_apart(d, {**left.views, **right.views, **more})
    check.check_values((left, a), (right, b))
    left, right = (k_major(x, chosen, handle, stream) for x in (left, right))
    planes = {name: _exchanged(each) for name, each in more.items()}
    asked = problem("batched_mm", left, right, d.format, planes, factor, order, groups=heads)
    solve(asked, gathered(left, right, planes, _exchanged(d), m, factor), chosen, handle)
    return out


def _heads_first(x: Any) -> Any:
    """[b, h, ...] as [h, b, ...]."""
    if isinstance(x, ScaledTensor):
        if x.scaling.block[0] not in (1, None):
            raise ValueError(f"a is scaled {x.scaling}; one scale for several heads is not possible: 1x128 is wanted")
        if len(x.shape) != 3:
            return x
        rows_as_planes = x.scales.shape[0] == x.shape[0] and x.scaling.block[0] == 1
        scales = x.scales.swapaxes(0, 1) if rows_as_planes else x.scales
        return ScaledTensor(x.data.swapaxes(0, 1), scales, x.scaling)
    return x.swapaxes(0, 1) if len(x.shape) == 3 else x


def _weight(b: Any, text: str) -> Any:
    """A weight [h, d, r] as [h, K, N]."""
    if PLANES_FIRST[text] == "mn" or len(b.shape) != 3:
        return b
    return b.mT if isinstance(b, ScaledTensor) else b.swapaxes(-1, -2)


def _exchanged(x: View) -> View:
    """[b, h, n] as [h, b, n]."""
    (b, h, n), (along_b, along_h, along_n) = x.shape, x.strides
    return View(x.pointer, (h, b, n), (along_h, along_b, along_n), x.format, x.device, x.owner)


def _sum(
    a: Any,
    b: Any,
    c: Any,
    alpha: float | None,
    out: Any,
    out_dtype: Any,
    order: str,
    device: str | Device | None,
    stream: Any,
) -> Any:
    for name, x in (("a", a), ("b", b)):
        if isinstance(x, ScaledTensor):
            raise TypeError(f"{name} is a ScaledTensor; a bfloat16 array is wanted in {SUM!r}")
    left = check.operand(a, "a", 3, turned=False)
    right = check.operand(b.swapaxes(-1, -2) if len(b.shape) == 3 else b, "b", 3, turned=True)
    check.check_pair(left, right)
    (planes, m, k), n = left.data.shape, right.data.shape[1]
    if right.data.shape[0] != planes:
        raise ValueError(f"a has {planes} matrices, b {right.data.shape[0]}; as many are wanted")
    if alpha is not None:
        raise ValueError(f"alpha is {alpha!r}; None is wanted in {SUM!r}")
    chosen = check.device_of(device, left)
    given = out is not None
    out, d = check.result((m, n), out, out_dtype, left, stream)
    more = extras(left, c, None, d, n, None)
    handle = chosen.stream(stream, not isinstance(left.array, np.ndarray))
    if 0 in (m, n):
        return out
    if 0 in (planes, k):
        return without_products(out, left, c, None, stream)
    if given:
        check.check_apart(d, {**left.views, **right.views, **more})
    slices = _slices(planes, m, n, left, stream)
    asked = problem("summed_mm", left, right, F32, {}, None, order, groups=planes)
    solve(asked, gathered(left, right, {}, slices, m, None), chosen, handle)
    views = {"x": slices, **more, "d": d}
    formats = tuple((name, each.format) for name, each in views.items())
    plan.run(Elementwise("add_slices", formats), Operands(views, ("d",), m), chosen, handle)
    return out


def _slices(planes: int, m: int, n: int, a: Operand, stream: Any) -> View:
    """New memory for the slices of a sum over so many planes."""
    count = -(-planes // -(-planes // SLICES))
    with arrays.on_stream(a.array, stream):
        return view(arrays.empty((count, m, n), F32, like=a.array))
