"""Products of groups: of rows, as in a mixture of experts, and over K, as in the gradients of its weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost.formats import F32
from kingpost.ops import operands as check
from kingpost.ops.operands import Signature
from kingpost.ops.product import Product
from kingpost.registry import Device

MOST_GROUPS = 512
K_GRID = 16  # of the sizes of groups of K
BY = {
    "rows": Signature("grouped_mm", "MK", "GKN", "MN", "rows"),
    "ends": Signature("grouped_mm", "MK", "GKN", "MN", "ends"),
    "counts": Signature("grouped_mm", "GMK", "GKN", "GMN", "counts"),
}
OVER_K = Signature("grouped_mm_k", "MK", "KN", "GMN")


def grouped_mm(
    a: Any,
    b: Any,
    *,
    rows: Any = None,
    ends: Any = None,
    counts: Any = None,
    expected: int | None = None,
    c: Any = None,
    alpha: float | None = None,
    bias: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    order: str = "ascending",
    device: str | Device | None = None,
    stream: Any = None,
) -> Any:
    """Each row of a times the matrix of its group: a [M, K], b [G, K, N]; [M, N]. The forward pass of a mixture of
    experts, or the gradient of its inputs. Up to 512 groups; weights kept as w [G, N, K] are passed as `w.mT`.

    Exactly one of these says which rows are whose, an int32 array on a's device, read by the kernel there:
    rows [M]: the group of each row, -1 for none. Right in any order; fast where the rows of a group are neighbours.
    ends [G]: group g has rows ends[g - 1] (0 for the first) to ends[g]. Groups need no padding and may be empty; the
        last may end before M.
    counts [G]: a is [G, M, K], and group g has the first counts[g] rows of a[g]; the result is [G, M, N].
    expected: how many rows a group has, about, where the host knows; the kernel is chosen by it. Default: M with
        counts, else M / G.

    Rows of no group are not written: in a new result they hold whatever the memory held. bias: [G, N]. Everything else,
    the arithmetic included, is as for `kingpost.mm`: a row has the bits that it has there alone. Indices of the host
    are checked: ends that fall or pass M, counts and groups out of range are refused. On a GPU ends and counts are cut
    off at M and rows of a group past G are skipped, unless KINGPOST_CHECK=1 has them read back and refused.
    """
    by, index = _one_of(rows=rows, ends=ends, counts=counts)
    product = _OverRows(BY[by], a, b, order, device, stream)
    product.index(by, index)
    product.write(out, out_dtype, c)
    product.add(c, alpha, bias)
    groups, m = product.sizes["G"], product.sizes["M"]
    if expected is None:
        expected = m if by == "counts" else -(-m // max(groups, 1))
    elif not isinstance(expected, (int, np.integer)):
        raise TypeError(f"expected is {expected!r}; a number of rows is wanted")
    return product.run(int(expected))


def grouped_mm_k(
    a: Any,
    b: Any,
    *,
    ends: Any,
    c: Any = None,
    alpha: float | None = None,
    out: Any = None,
    out_dtype: Any = None,
    order: str = "ascending",
    device: str | Device | None = None,
    stream: Any = None,
) -> Any:
    """A product for each group of K: a [M, K], b [K, N]; [G, M, N], of which [g] sums over ends[g - 1] (0 for the
    first) to ends[g]. The gradient of the weights of a mixture of experts.

    a, b: bfloat16 arrays, either dimension contiguous (tokens x [T, M] are passed as `x.T`); or e4m3 or e5m2 scaled
    "1x128" along K, each group starting a new block of scales (`kingpost.quantize(x, "1x128", transpose=True,
    ends=ends)`, which gives the tensor `ends`). Plain "1x128" tensors are the same if every group but the last is a
    multiple of 128; they are taken where ends of the host, or KINGPOST_CHECK=1, show that.
    ends: int32 [G], up to 512, on a's device, read by the kernel there; sizes are multiples of 16, 0 included, and the
    last may end before K. Data of the host are checked; on a GPU, ends past K are cut off there.
    c: [G, M, N], of the result's format; may be `out` itself. out_dtype: "float32", "bfloat16" or "float16"; default,
    that of `out` or `c`, else float32. Everything else is as for `kingpost.mm`, a group's arithmetic too. An empty
    group's product is zeros.
    """
    product = _OverK(OVER_K, a, b, order, device, stream)
    product.sizes["G"] = next(iter(product.index("ends", ends).shape), 0)
    product.write(out, out_dtype, c, default=F32)
    product.add(c, alpha)
    return product.run(product.sizes["M"])


class _OverRows(Product):
    """A product for each group of rows."""

    def check(self) -> bool:
        groups, m, by = self.sizes["G"], self.sizes["M"], self.signature.by or ""
        _check_groups(groups)
        check.check_index(by, self.more[by], m if by == "rows" else groups, self.a)
        values = check.known(self.more[by], self.examined)
        if by == "rows":
            check.check_range("rows", values, -1, groups - 1, "-1 or a group")
        elif by == "counts":
            check.check_range("counts", values, 0, m, "rows that each group has room for")
        else:
            _check_ends(values, m, "M")
        return super().check() and groups > 0

    def check_values(self) -> None:
        """Only what belongs to a group need hold numbers: the rest may be memory that nobody has written."""
        values = check.known(self.more[self.signature.by or ""], examined=False)
        if values is None or self.a.scales is None or self.b.scales is None:
            return
        m, groups = self.sizes["M"], self.sizes["G"]
        if self.signature.by == "counts":
            rows, used = np.arange(m) < values[:, None], values > 0
        elif self.signature.by == "ends":
            rows, used = np.arange(m) < (values[-1] if groups else 0), np.diff(values, prepend=0) > 0
        else:
            rows, used = values >= 0, np.isin(np.arange(groups), values)
        for x, owned in ((self.a, rows), (self.b, used)):
            if x.scales is not None and x.scales.device == "cpu":
                scales = x.scales.numpy()
                check.check_numbers(x, scales[owned] if scales.shape[: owned.ndim] == owned.shape else scales)


class _OverK(Product):
    """A product for each group of K."""

    def check(self) -> bool:
        _check_groups(self.sizes["G"])
        check.check_index("ends", self.more["ends"], None, self.a)
        _check_ends(check.known(self.more["ends"], self.examined), self.sizes["K"], "K", K_GRID)
        return super().check()

    def check_scales(self) -> None:
        ends = self.more["ends"]
        for x in (self.a, self.b):
            check.check_blocks(x, ends, check.known(ends, self.examined))


def _one_of(**given: Any) -> tuple[str, Any]:
    """The name and value of the one argument that is not None."""
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) != 1:
        names = " and ".join(name for name, _ in found) or "none"
        raise ValueError(f"{names} of rows, ends and counts given; exactly one of them is wanted")
    return found[0]


def _check_groups(groups: int) -> None:
    if groups > MOST_GROUPS:
        raise ValueError(f"G, the number of groups, is {groups}; at most {MOST_GROUPS} are wanted")


def _check_ends(values: np.ndarray | None, most: int, of: str, grid: int = 1) -> None:
    """Ends rise from 0 to `most`, `of` what they divide, in multiples of `grid`."""
    if values is None:
        return
    check.check_range("ends", values, 0, most, f"{of} at most")
    sizes = np.diff(values, prepend=0)
    for wrong, wanted in ((sizes < 0, "ends that do not fall"), (sizes % grid != 0, f"sizes in multiples of {grid}")):
        if wrong.any():
            g = int(np.argmax(wrong))
            before = values[g - 1] if g else 0
            raise ValueError(f"ends[{g}] is {values[g]}, after {before}; {wanted} are wanted")
