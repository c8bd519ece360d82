"""The dense product."""

from __future__ import annotations

from typing import Any

from kingpost import plan
from kingpost.ops.operands import Signature
from kingpost.ops.product import Product
from kingpost.registry import Device
from kingpost.scaling import ScaledTensor

MM = Signature("mm", "MK", "KN", "MN")
TILE_PRODUCT = Signature("tile_product", "MK", "KN", "MN")


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
    weight kept as w [N, K] is passed as `w.T`. N a multiple of 8, K of 16 (bfloat16: of 8). Either dimension
    contiguous, the other a multiple of 16 bytes apart; scales in any strides. float8 codes whose K is not contiguous
    are first copied so that it is, by a pass of the device's own: it reads and writes each byte once and takes memory
    of their size from the caller's allocator, at each call. So keep weights as [N, K].
    c: of the result's shape and format; `out` itself, or in other memory. bias: [N], bfloat16, float16 or float32. Both
    with contiguous rows that start at multiples of two elements. alpha: a number.
    out: written and returned if given; [M, N], rows contiguous and multiples of 16 bytes apart, in memory that no
    operand but c shares.
    out_dtype: "bfloat16", "float16" or "float32"; default, that of `out` or `c`, else bfloat16. device: where to
    compute; default, where `a` is; a GPU works on arrays of the host too, copying them there and back. stream: a CUDA
    stream (handle or torch's); default, torch's current one for torch tensors. With M or N of 0 the result is empty;
    with K of 0 the product is zeros.

    Arithmetic, whatever M, tile or device of a kind. Scaled: each 128-block of K (32-block of "1x32:ue8m0") is summed
    from zero as the device's tensor cores do (on "cpu" exactly, rounded once), then promoted in ascending K: total =
    fma(partial, rn32(scale_a * scale_b), total). bfloat16: one chain of the tensor core over K, ascending (on "cpu" a
    float64 sum, rounded once). Then alpha, c and bias, each step rounded to float32, and one rounding to the result.
    order: "ascending", as above; "fast" lets a device sum in another order, still the same for every run; a device that
    has none keeps to "ascending".

    Raises TypeError or ValueError naming the argument, what it is and what is wanted.
    """
    product = Product(MM, a, b, order, device, stream)
    product.write(out, out_dtype, c)
    product.add(c, alpha, bias)
    return product.run(product.sizes["M"])


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
    product = Product(TILE_PRODUCT, a, b, "ascending", device, stream)
    product.write(out, out_dtype)
    return product.run(product.sizes["M"])


def launch_mm(a: Any, b: Any, out: Any, device: Device) -> Any:
    """The launch that `mm` would run on `device`, operands that it copies first being copied. Raises ValueError for an
    empty product, which runs no program."""
    product = Product(MM, a, b, "ascending", device, None)
    m, n, k = (product.sizes[label] for label in "MNK")
    if 0 in (m, n, k):
        raise ValueError(f"M, N, K are {m}, {n}, {k}; at least 1 of each is wanted: an empty product runs no program")
    product.write(out, None)
    product.check()
    problem, operands = product.described(m, {}, product.d, product.format)
    return plan.planned(problem, device).plan.candidate(m).bind(operands)
