"""The table of products: the docs have it as the devices say, and every cell of it is as it says.

`python tests/test_offers.py` writes the table into the docs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kingpost as kp
from kingpost import formats, offers, plan, reference, registry, scaling
from kingpost.formats import E4M3, E4M3FNUZ, Format
from kingpost.offers import Kind, Member

DEVICES = ("cpu", "emulated:sm_90a", "emulated:sm_100a", "emulated:gfx942", "emulated:gfx950")
PAGE = Path(__file__).parents[1] / "docs" / "products.md"
TABLE = re.compile(r"(<!-- kingpost products.*? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
M, N, K, G = 16, 16, 144, 2
CELLS = [(m, kind, d) for m in offers.MEMBERS for kind in offers.KINDS for d in DEVICES]


def table() -> str:
    return offers.markdown([registry.find(name) for name in DEVICES])


def test_the_docs_have_the_table() -> None:
    found = TABLE.search(PAGE.read_text("utf-8"))
    assert found is not None and found[2] == table()


def operand(shape: tuple[int, ...], format: Format, kind: str | None, seed: int) -> Any:
    """An operand [..., rows, K], its codes or numbers contiguous."""
    random = np.random.default_rng(seed)
    if kind is None:
        return random.standard_normal(shape).astype(ml_dtypes.bfloat16)
    how = scaling.named(kind)
    scales = np.exp2(random.integers(-3, 3, how.scales_shape(shape))).astype(np.float32)
    data = random.standard_normal(shape).astype(format.dtype)
    return kp.ScaledTensor(data, formats.cast(scales, how.format), how)


def turned(x: Any) -> Any:
    """The same operand, M or N contiguous."""
    if isinstance(x, kp.ScaledTensor):
        return kp.ScaledTensor(np.ascontiguousarray(x.data.swapaxes(-1, -2)).swapaxes(-1, -2), x.scales, x.scaling)
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def part(x: Any, *place: Any) -> Any:
    """A matrix of an operand, or some rows of it."""
    if not isinstance(x, kp.ScaledTensor):
        return x[place]
    scales = x.scales[place] if x.scaling.block[0] is not None or len(place) < 2 else x.scales[place[0]]
    if len(x.shape) == 2 and x.scaling.block[0] is None:
        scales = x.scales
    return kp.ScaledTensor(x.data[place], scales, x.scaling)


def last_two(x: Any) -> Any:
    return x.mT if isinstance(x, kp.ScaledTensor) else x.swapaxes(-1, -2)


def multiply(member: Member, a: Any, b: Any, device: str) -> list[tuple[np.ndarray, Any, Any]]:
    """The product, as triples of a result and the matrices [M, K] and [K, N] that it is of."""
    given = {"out_dtype": "float32", "device": device}
    if member.op == "mm":
        return [(kp.mm(a, last_two(b), **given), a, last_two(b))]
    if member.op == "batched_mm":
        exchanged = a.data.swapaxes(0, 1) if isinstance(a, kp.ScaledTensor) else a.swapaxes(0, 1)
        if isinstance(a, kp.ScaledTensor):
            scales = a.scales if a.scaling.block[0] is None else a.scales.swapaxes(0, 1)
            exchanged = kp.ScaledTensor(exchanged, scales, a.scaling)
        d = kp.einsum("bhr,hdr->bhd", exchanged, b, **given)
        return [(d[:, g], part(a, g), part(b, g).T) for g in range(G)]
    if member.op == "summed_mm":
        d = kp.einsum("bmk,bnk->mn", a, b, **given)
        left, right = (np.concatenate(list(x), axis=1) for x in (a, b))
        return [(d, left, right.T)]
    if member.op == "grouped_mm_k":
        d = kp.grouped_mm_k(a, last_two(b), ends=np.array([128, K], np.int32), **given)
        columns = slice(0, 128), slice(128, K)
        if isinstance(a, kp.ScaledTensor):
            cut = [[kp.ScaledTensor(x.data[:, c], x.scales[:, g : g + 1], "1x128") for x in (a, b)]
                   for g, c in enumerate(columns)]  # fmt: skip
        else:
            cut = [[x[:, c] for x in (a, b)] for c in columns]
        return [(d[g], left, right.T) for g, (left, right) in enumerate(cut)]
    if member.by == "counts":
        counts = np.array([M, 5], np.int32)
        d = kp.grouped_mm(a, last_two(b), counts=counts, **given)
        return [(d[g, : counts[g]], part(a, g, slice(0, counts[g])), part(b, g).T) for g in range(G)]
    index = {"ends": [7, M], "rows": [0] * 7 + [1] * (M - 7)}[member.by or ""]
    d = kp.grouped_mm(a, last_two(b), **{member.by: np.array(index, np.int32)}, **given)  # type: ignore[arg-type]
    return [(d[rows], part(a, rows), part(b, g).T) for g, rows in enumerate((slice(0, 7), slice(7, M)))]


def operands(member: Member, kind: Kind, device: str) -> tuple[Any, Any]:
    """a and b, b as [N, K], for the device's e4m3."""
    own = E4M3FNUZ if device.endswith("gfx942") else E4M3
    a_format, b_format = (own if format is E4M3 else format for format in (kind.a_format, kind.b_format))
    planes_a = (G,) if member.op in ("batched_mm", "summed_mm") or member.by == "counts" else ()
    planes_b = () if member.op in ("mm", "grouped_mm_k") else (G,)
    a = operand((*planes_a, M, K), a_format, kind.scalings[0], 1)
    return a, operand((*planes_b, N, K), b_format, kind.scalings[1], 2)


@pytest.mark.parametrize("member, kind, name", CELLS, ids=[f"{m.op}-{m.by}-{kind}-{d}" for m, kind, d in CELLS])
def test_every_cell_is_as_it_says(member: Member, kind: Kind, name: str) -> None:
    a, b = operands(member, kind, name)
    offered = offers.offered(registry.find(name), member, kind)
    if offered == offers.NO:
        with pytest.raises((plan.Unsupported, TypeError, ValueError)):
            multiply(member, a, b, name)
        return
    found = multiply(member, a, b, name)
    for d, left, right in found:
        reference.check(np.ascontiguousarray(d), left, right)
    if offered != offers.K_ONLY and kind in (offers.KINDS[0], offers.KINDS[-1]):  # copies do not look at scales
        for (d, _, _), (same, _, _) in zip(multiply(member, turned(a), turned(b), name), found):
            assert d.tobytes() == same.tobytes()


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(TABLE.sub(lambda m: m[1] + table() + m[3], text), "utf-8")
