"""Products of groups: of rows, as in a mixture of experts, and over K, as in the gradients of its weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost import arrays
from kingpost.arrays import View
from kingpost.formats import F32
from kingpost.ops import operands as check
from kingpost.ops.mm import extras
from kingpost.ops.run import gathered, k_major, problem, solve
from kingpost.registry import Device
from kingpost.scaling import BLOCK, ScaledTensor, group_sizes

MOST_GROUPS = 512
K_GRID = 16  # of the sizes of groups of K


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
    rows [M]: the group of each row, -1 for none. Right in any order; rows of a group should be neighbours.
    ends [G]: group g has rows ends[g - 1] (0 for the first) to ends[g]. Groups need no padding and may be empty; the
        last may end before M.
    counts [G]: a is [G, M, K], and group g has the first counts[g] rows of a[g]; the result is [G, M, N].
    expected: how many rows a group has, about, where the host knows (with counts, the default is M).

    Rows of no group are not written: in a new result they hold whatever the memory held. bias: [G, N]. Everything else,
    the arithmetic included, is as for `kingpost.mm`: a row has the bits that it has there alone. Data of the host are
    checked: ends that fall, counts above M and groups past G are refused; on a GPU they are cut off at M, and rows of a
    group past G are skipped.
    """
    by, index = _one_of(rows=rows, ends=ends, counts=counts)
    left = check.operand(a, "a", 3 if by == "counts" else 2, turned=False)
    right = check.operand(b, "b", 3, turned=True)
    check.check_pair(left, right)
    check.check_order(order)
    groups, n, k = right.data.shape
    m = left.data.shape[-2]
    if not 1 <= groups <= MOST_GROUPS:
        raise ValueError(f"b has {groups} groups; 1 to {MOST_GROUPS} are wanted")
    if by == "counts" and left.data.shape[0] != groups:
        raise ValueError(f"a has {left.data.shape[0]} groups, b {groups}; as many are wanted")
    table = check.index_view(by, index, (m if by == "rows" else groups,), left)
    _check_index(by, table, m, groups)
    chosen = check.device_of(device, left)
    given = out is not None
    out, d = check.result((*left.data.shape[:-1], n), out, out_dtype, left, stream)
    more = extras(left, c, bias, d, n, groups)
    factor = None if alpha is None else check.number(alpha)
    handle = chosen.stream(stream, not isinstance(left.array, np.ndarray))
    if m == 0 or n == 0:
        return out
    if k == 0:
        raise ValueError("K, the columns of a, is 0; at least 16 are wanted in a product of groups")
    if given:
        check.check_apart(d, {**left.views, **right.views, by: table, **more})
    check.check_values((left, a), (right, b))
    left, right = (k_major(x, chosen, handle, stream) for x in (left, right))
    asked = problem("grouped_mm", left, right, d.format, more, factor, order, by, groups)
    each = expected if expected is not None else m if by == "counts" else -(-m // groups)
    solve(asked, gathered(left, right, {by: table, **more}, d, max(1, int(each)), factor), chosen, handle)
    return out


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

    a, b: bfloat16 arrays, any of the dimensions contiguous (tokens x [T, M] are passed as `x.T`); or e4m3 or e5m2
    scaled "1x128" along K, each group starting a new block of scales (`kingpost.quantize(x, "1x128", transpose=True,
    ends=ends)`; of groups that are multiples of 128, plain "1x128" tensors are the same).
    ends: int32 [G], up to 512, on a's device, read by the kernel there; sizes are multiples of 16, 0 included, and the
    last may end before K. Data of the host are checked; on a GPU, ends past K are cut off there.
    c: [G, M, N], of the result's format; may be `out` itself. out_dtype: "float32" (default), "bfloat16" or "float16".
    Everything else is as for `kingpost.mm`, a group's arithmetic too. An empty group's product is zeros.
    """
    left, right = check.operand(a, "a", 2, turned=False), check.operand(b, "b", 2, turned=True)
    check.check_order(order)
    for operand, given_operand in ((left, a), (right, b)):
        if operand.scaling is not None and operand.scaling != "1x128":
            wanted = "1x128 along K is wanted"
            raise ValueError(f"{operand.name} is scaled {given_operand.scaling}; {wanted}")
    check.check_pair(left, right)
    (m, k), n = left.data.shape, right.data.shape[0]
    table = check.index_view("ends", ends, (None,), left)
    groups = table.shape[0]
    if not 1 <= groups <= MOST_GROUPS:
        raise ValueError(f"ends has {groups} groups; 1 to {MOST_GROUPS} are wanted")
    _check_k_groups(table, k, (a, b))
    chosen = check.device_of(device, left)
    given = out is not None
    out, d = check.result((groups, m, n), out, out_dtype, left, stream, default=F32)
    more = extras(left, c, None, d, n, None)
    factor = None if alpha is None else check.number(alpha)
    handle = chosen.stream(stream, not isinstance(left.array, np.ndarray))
    if m == 0 or n == 0:
        return out
    if k == 0:
        with arrays.on_stream(left.array, stream):
            if c is not out:
                out[...] = 0 if c is None else c
        return out
    if given:
        check.check_apart(d, {**left.views, **right.views, "ends": table, **more})
    check.check_values((left, a), (right, b))
    left, right = (k_major(x, chosen, handle, stream) for x in (left, right))
    asked = problem("grouped_mm_k", left, right, d.format, more, factor, order, groups=groups)
    solve(asked, gathered(left, right, {"ends": table, **more}, d, m, factor), chosen, handle)
    return out


def _one_of(**given: Any) -> tuple[str, Any]:
    """The name and value of the one argument that is not None."""
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) != 1:
        names = " and ".join(name for name, _ in found) or "none"
        raise ValueError(f"{names} of rows, ends and counts given; exactly one of them is wanted")
    return found[0]


def _host_values(table: View) -> np.ndarray | None:
    """The numbers, if they are on the host or KINGPOST_CHECK asks for them."""
    if table.device == "cpu":
        return table.numpy()
    if check.examined():
        return np.asarray(table.owner.cpu().numpy())  # type: ignore[attr-defined]
    return None


def _check_index(by: str, table: View, m: int, groups: int) -> None:
    values = _host_values(table)
    if values is None or not values.size:
        return
    if by == "ends":
        group_sizes(values, m, "ends")
    elif by == "counts" and not (values.min() >= 0 and values.max() <= m):
        raise ValueError(f"counts are {values.min()} to {values.max()}; 0 to {m}, the rows of a[g], are wanted")
    elif by == "rows" and not (values.min() >= -1 and values.max() < groups):
        raise ValueError(f"rows are {values.min()} to {values.max()}; -1 to {groups - 1}, the last group, are wanted")


def _check_k_groups(table: View, k: int, operands: tuple[Any, Any]) -> None:
    """Sizes that kernels take, and scales that start anew with each group."""
    values = _host_values(table)
    if values is not None:
        sizes = group_sizes(values, k, "ends")
        if (sizes % K_GRID).any():
            raise ValueError(f"ends are {values.tolist()[:8]}; sizes that are multiples of {K_GRID} are wanted")
    for name, t in zip("ab", operands):
        if not isinstance(t, ScaledTensor):
            continue
        if t.ends is None:
            if values is not None and (group_sizes(values, k, "ends")[:-1] % BLOCK).any():
                raise ValueError(
                    f"{name} has no ends, and groups are no multiples of {BLOCK}; scales that start anew with each "
                    "group are wanted (kingpost.quantize with ends)"
                )
        elif tuple(t.ends.shape) != table.shape:
            raise ValueError(f"{name} has {t.ends.shape[0]} groups of scales; {table.shape[0]}, as ends, are wanted")
        elif values is not None and not np.array_equal(_numbers(t.ends), values):
            raise ValueError(f"{name} was quantised with other ends; the same are wanted")


def _numbers(ends: Any) -> np.ndarray:
    return ends if isinstance(ends, np.ndarray) else ends.cpu().numpy()
