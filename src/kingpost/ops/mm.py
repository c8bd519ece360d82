"""The dense product."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost import arrays, plan
from kingpost.arrays import View
from kingpost.ops import operands as check
from kingpost.ops.operands import Operand
from kingpost.ops.run import gathered, k_major, problem, solve
from kingpost.registry import Device
from kingpost.scaling import ScaledTensor


def mm(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: float | None = None,
    bias: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    order: str = "ascending",
    device: str | Device | None = None,
    stream: Any = None,
) -> Any:
    """alpha * a @ b + c + bias: a [M, K], b [K, N]; [M, N], in the library and on the device of `a`.

    a, b: scaled tensors of e4m3 or e5m2 (also mixed; e4m3fnuz where that is the device's), scaled "1x128", "row" or
    "tensor" (a) and "1x128", "128x128", "row" or "tensor" (b, as [N, K]), or both "1x32:ue8m0"; or bfloat16 arrays. A
    weight kept as w [N, K] is passed as `w.T`. Rows or columns contiguous, the others multiples of 16 bytes apart. N a
    multiple of 8, K of 16 (bfloat16: of 8). Scales in any strides. float8 codes whose K is not contiguous are first
    copied so that it is, which costs a pass over them and memory of their size: keep weights as [N, K].
    c: of the result's shape and format; may be `out` itself. bias: [N], bfloat16, float16 or float32. alpha: a number.
    out: written and returned if given; [M, N], rows contiguous and multiples of 16 bytes apart, in memory that no
    operand but c shares.
    out_dtype: "bfloat16" (default, or that of `out`), "float16" or "float32". device: where to compute; default, where
    `a` is; a GPU works on arrays of the host too, copying them there and back. stream: a CUDA stream (handle or
    torch's); default, torch's current one for torch tensors. With M or N of 0 the result is empty; with K of 0 the
    product is zeros.

    Arithmetic, whatever M, tile or device of a kind. Scaled: each 128-block of K (32-block of "1x32:ue8m0") is summed
    from zero as the device's tensor cores do (on "cpu" exactly), then promoted in ascending K: total = fma(partial,
    rn32(scale_a * scale_b), total). bfloat16: one chain of the tensor core over K, ascending (on "cpu" a float64 sum,
    rounded once). Then alpha, c and bias, each step rounded to float32, and one rounding to the result. order="fast"
    lets a device sum in another order, still the same for every run and M; one that has none keeps to "ascending".

    Raises TypeError or ValueError naming the argument, what it is and what is wanted.
    """
    return _product("mm", a, b, c, alpha, bias, out, out_dtype, order, device, stream)


def tile_product(
    a: ScaledTensor,
    b: ScaledTensor,
    *,
    out: Any = None,
    out_dtype: Any = None,
    device: str | Device | None = None,
    stream: Any = None,
) -> Any:
    """`mm` for what one block of a device takes at once, by the portable kernel: to try a device, not for speed."""
    return _product("tile_product", a, b, None, None, None, out, out_dtype, "ascending", device, stream)


def _product(
    op: str,
    a: Any,
    b: Any,
    c: Any,
    alpha: float | None,
    bias: Any,
    out: Any,
    out_dtype: Any,
    order: str,
    device: str | Device | None,
    stream: Any,
) -> Any:
    left, right = check.operand(a, "a", 2, turned=False), check.operand(b, "b", 2, turned=True)
    check.check_pair(left, right)
    check.check_order(order)
    (m, k), n = left.data.shape, right.data.shape[0]
    chosen = check.device_of(device, left)
    given = out is not None
    out, d = check.result((m, n), out, out_dtype, left, stream)
    more = extras(left, c, bias, d, n, None)
    factor = None if alpha is None else check.number(alpha)
    handle = chosen.stream(stream, not isinstance(left.array, np.ndarray))
    if m == 0 or n == 0:
        return out
    if k == 0:
        return without_products(out, left, c, bias, stream)
    if given:
        check.check_apart(d, {**left.views, **right.views, **more})
    check.check_values((left, a), (right, b))
    left, right = (k_major(x, chosen, handle, stream) for x in (left, right))
    asked = problem(op, left, right, d.format, more, factor, order)
    solve(asked, gathered(left, right, more, d, m, factor), chosen, handle)
    return out


def extras(a: Operand, c: Any, bias: Any, d: View, columns: int, planes: int | None) -> dict[str, View]:
    """c and bias, as far as given, as views."""
    more = {}
    if c is not None:
        more["c"] = check.check_like("c", c, d.shape, d.format, a)
    if bias is not None:
        more["bias"] = check.bias_view(bias, columns, planes, a)
    return more


def without_products(out: Any, a: Operand, c: Any, bias: Any, stream: Any) -> Any:
    """out = c + bias where K is 0; in the array's own library."""
    with arrays.on_stream(a.array, stream):
        if c is None and bias is None:
            out[...] = 0
        elif bias is None:
            if c is not out:
                out[...] = c
        else:
            out[...] = bias_added(c, bias, out)
    return out


def bias_added(c: Any, bias: Any, out: Any) -> Any:
    """c + bias in float32, c zero if there is none."""
    if isinstance(out, np.ndarray):
        total = bias.astype(np.float32) if c is None else c.astype(np.float32) + bias.astype(np.float32)
        return total.astype(out.dtype)
    return bias.float() if c is None else c.float() + bias.float()


def launch_mm(a: ScaledTensor, b: ScaledTensor, out: Any, device: Device) -> Any:
    """The launch that `mm` would run on `device`. Raises ValueError for an empty product, which runs no program, or one
    whose codes are copied first."""
    left, right = check.operand(a, "a", 2, turned=False), check.operand(b, "b", 2, turned=True)
    check.check_pair(left, right)
    (m, k), n = left.data.shape, right.data.shape[0]
    if 0 in (m, n, k):
        raise ValueError(f"M, N, K are {m}, {n}, {k}; at least 1 of each is wanted: an empty product runs no program")
    _, d = check.result((m, n), out, None, left, None)
    asked = problem("mm", left, right, d.format, {}, None, "ascending")
    return plan.planned(asked, device).plan.candidate(m).bind(gathered(left, right, {}, d, m, None))
