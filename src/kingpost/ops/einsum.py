"""Products of several matrices at once, written as sums over indices."""

from __future__ import annotations

import functools
import string
from typing import Any

from kingpost import plan
from kingpost.arrays import view
from kingpost.formats import F32
from kingpost.ops.operands import Signature
from kingpost.ops.product import Product
from kingpost.registry import Device, Elementwise, Operands
from kingpost.scaling import ScaledTensor

MOST_SLICES = 32  # of a sum over matrices
SIGNATURES = {
    "bhr,hdr->bhd": Signature("batched_mm", "MGK", "GNK", "MGN"),
    "bhd,hdr->bhr": Signature("batched_mm", "MGK", "GKN", "MGN"),
    "bmk,bnk->mn": Signature("summed_mm", "GMK", "GNK", "MN"),
}


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
    """A product for every head, or a sum of products; spaces and the choice of letters do not matter.

    "bhr,hdr->bhd", "bhd,hdr->bhr": for each h, a[:, h] times the matrix b[h] or its transpose. bfloat16 arrays, or
        scaled tensors: a with scales for single rows ("1x128", "row"), b "128x128" or as `kingpost.mm` has it.
        Arguments and arithmetic are as there; of the second, float8 codes of b are copied first.
    "bmk,bnk->mn": the sum over b of a[b] @ b[b].T, bfloat16 arrays; no alpha. The b are cut into at most 32 slices of
        one size, ceil(B / 32), the last of fewer; each slice is one chain of the tensor core, b and K ascending. Slices
        are added in float32: c, if there is one, then the first slice, and so on. They take memory from the caller's
        allocator, float32 [slices, M, N].

    Raises TypeError or ValueError naming the argument, what it is and what is wanted.
    """
    signature = _signature(expression) if isinstance(expression, str) else None
    if signature is None:
        raise ValueError(f"expression is {expression!r}; one of {', '.join(map(repr, SIGNATURES))} is wanted")
    if signature.op == "summed_mm":
        return _sum(signature, a, b, c, alpha, out, out_dtype, order, device, stream)
    product = Product(signature, a, b, order, device, stream)
    product.write(out, out_dtype, c)
    product.add(c, alpha)
    return product.run(product.sizes["M"])


def _sum(
    signature: Signature,
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
            raise TypeError(f"{name} is a ScaledTensor; a bfloat16 array is wanted where matrices are summed")
    if alpha is not None:
        raise ValueError(f"alpha is {alpha!r}; None is wanted where matrices are summed")
    product = Product(signature, a, b, order, device, stream)
    product.write(out, out_dtype, c)
    product.add(c, None)
    if not product.check():
        return product.out
    m = product.sizes["M"]
    slices = view(product.empty((_slices(product.sizes["G"]), *product.shape), F32))
    problem, operands = product.described(m, {}, slices, F32)
    plan.run(problem, operands, product.device, product.stream)
    views = {"x": slices, **product.more, "d": product.d}
    formats = tuple([(name, each.format) for name, each in views.items()])
    plan.run(Elementwise("add_slices", formats), Operands(views, ("d",), m), product.device, product.stream)
    return product.out


def _slices(matrices: int) -> int:
    """How many slices a sum of so many matrices has: each of as many as the first, the last of fewer."""
    matrices = max(matrices, 1)
    return -(-matrices // -(-matrices // MOST_SLICES))


@functools.lru_cache(maxsize=64)
def _signature(expression: str) -> Signature | None:
    return _BY_LETTERS.get(_renamed(expression))


def _renamed(expression: str) -> str:
    """The expression without spaces, its letters those of the alphabet in the order in which they come."""
    text = "".join(expression.split())
    letters = dict.fromkeys(each for each in text if each.isalpha())
    return text.translate({ord(old): new for old, new in zip(letters, string.ascii_lowercase)})


_BY_LETTERS = {_renamed(expression): signature for expression, signature in SIGNATURES.items()}
