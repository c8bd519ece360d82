"""Products of groups: each row, or each group of K, has the bits that it has alone; what is nobody's stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kingpost as kp
from kingpost import reference
from kingpost.arrays import View, view
from kingpost.formats import I32
from kingpost.ops import operands as checks

from .operands import in_order, int32, normal, same, scaled, stored
from .recorder import Recorder

G, N, K = 3, 24, 272
KINDS = ("bfloat16", "1x128 128x128", "1x128 1x128", "row row", "tensor tensor", "1x32:ue8m0 1x32:ue8m0")
Factor = Any


def factors(kind: str, m: int, counts: bool = False, groups: int = G, k: int = K) -> tuple[Factor, Factor]:
    """a [M, K] or [G, M, K] and weights [G, N, K]."""
    shape = (groups, m, k) if counts else (m, k)
    if kind == "bfloat16":
        return normal(*shape), normal(groups, N, k)
    a_scaling, b_scaling = kind.split()
    return scaled(*shape, scaling=a_scaling), scaled(groups, N, k, scaling=b_scaling)


def part(x: Factor, index: Any) -> Factor:
    """Some of the rows, or one of the matrices."""
    if not isinstance(x, kp.ScaledTensor):
        return x[index]
    whole = x.scaling.block == (None, None) and len(x.shape) == 2
    return kp.ScaledTensor(x.data[index], x.scales if whole else x.scales[index], x.scaling)


def nan(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def turned(w: Factor) -> Factor:
    """Weights as b [G, K, N]."""
    return w.mT if isinstance(w, kp.ScaledTensor) else w.swapaxes(1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_any_order(kind: str) -> None:
    a, w = factors(kind, 40)
    rows = np.random.default_rng(0).integers(-1, G, 40).astype(np.int32)
    bias = normal(G, N, dtype=np.float32)
    d = kp.grouped_mm(a, turned(w), rows=rows, bias=bias, out=nan(40, N))
    assert np.isnan(d[rows == -1]).all() and (rows == -1).any()
    for group in range(G):
        mine = np.flatnonzero(rows == group)
        want = kp.mm(part(a, mine), part(w, group).T, bias=bias[group], out_dtype="float32")
        assert same(d[mine], want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", [(0, 7, 33), (40, 40, 40), (0, 0, 0), (13, 13, 40)])
def test_ends_without_padding(kind: str, ends: tuple[int, ...]) -> None:
    a, w = factors(kind, 40)
    d = kp.grouped_mm(a, turned(w), ends=int32(*ends), out=nan(40, N))
    assert np.isnan(d[ends[-1] :]).all()
    for group, (begin, end) in enumerate(zip((0, *ends), ends)):
        want = kp.mm(part(a, slice(begin, end)), part(w, group).T, out_dtype="float32")
        assert same(d[begin:end], want)


@pytest.mark.parametrize("kind", KINDS)
def test_counts(kind: str) -> None:
    a, w = factors(kind, 9, counts=True)
    counts = 4, 0, 9
    c = normal(G, 9, N, dtype=np.float32)
    d = kp.grouped_mm(a, turned(w), counts=int32(*counts), c=c, alpha=0.5, out=nan(G, 9, N))
    for group, count in enumerate(counts):
        assert np.isnan(d[group, count:]).all()
        x = part(part(a, group), slice(0, count))
        want = kp.mm(x, part(w, group).T, c=c[group, :count], alpha=0.5)
        assert same(d[group, :count], want)


@given(data=st.data())
@settings(max_examples=30)
def test_groups_of_any_size(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 6))
    sizes = data.draw(st.lists(st.integers(0, 12), min_size=groups, max_size=groups))
    spare = data.draw(st.integers(0, 3))
    kind = data.draw(st.sampled_from(["bfloat16", "1x128 128x128"]))
    m = sum(sizes) + spare
    a, w = factors(kind, m, groups=groups, k=144)
    ends = np.cumsum(sizes, dtype=np.int32)
    rows = np.repeat(np.arange(groups + 1, dtype=np.int32), [*sizes, spare])
    rows[m - spare :] = -1
    out = nan(m, N)
    assert same(kp.grouped_mm(a, turned(w), ends=ends, out=out), kp.grouped_mm(a, turned(w), rows=rows, out=nan(m, N)))
    for group, (size, end) in enumerate(zip(sizes, ends)):
        if size:
            mine = slice(end - size, end)
            reference.check(out[mine], part(a, mine), part(w, group).T)


def test_weights_in_any_order_and_up_to_512() -> None:
    a, w = factors("bfloat16", 24, groups=512, k=16)
    rows = np.random.default_rng(0).integers(0, 512, 24).astype(np.int32)
    want = kp.grouped_mm(a, turned(w), rows=rows)
    assert same(kp.grouped_mm(in_order(a, 1, 0), turned(w), rows=rows), want)
    assert same(kp.grouped_mm(a, in_order(turned(w), 0, 1, 2), rows=rows), want)
    many = np.zeros((513, 16, 8), w.dtype)
    with pytest.raises(ValueError, match="G, the number of groups, is 513; at most 512 are wanted"):
        kp.grouped_mm(a, many, rows=rows)


def test_codes_in_any_order_give_the_same_bits() -> None:
    a, w = factors("1x128 128x128", 20)
    rows = np.random.default_rng(0).integers(0, G, 20).astype(np.int32)
    want = kp.grouped_mm(a, w.mT, rows=rows)
    device = Recorder()
    for other in (stored(w, 0, 2, 1), stored(w, 2, 0, 1)):
        assert same(kp.grouped_mm(stored(a, 1, 0), other.mT, rows=rows), want)
        kp.grouped_mm(a, other.mT, rows=rows, device=device)
        assert [problem.op for problem, _ in device.asked[-G - 1 :]] == ["transpose"] * G + ["grouped_mm"]


def test_what_a_device_is_asked() -> None:
    device = Recorder()
    a, w = factors("1x128 128x128", 40)
    kp.grouped_mm(a, w.mT, ends=int32(0, 7, 33), bias=normal(G, N), device=device)
    problem, operands = device.last
    assert (problem.op, problem.by, problem.groups, problem.n, problem.k) == ("grouped_mm", "ends", G, N, K)
    assert list(operands.views) == ["a", "scale_a", "b", "scale_b", "ends", "bias", "d"]
    assert operands["b"].shape == (G, N, K) and operands.rows == 14
    kp.grouped_mm(a, w.mT, rows=np.zeros(40, np.int32), expected=3, device=device)
    assert device.last[1].rows == 3
    a, w = factors("bfloat16", 64, counts=True)
    for expected, rows in ((None, 64), (5, 5)):
        kp.grouped_mm(a, turned(w), counts=int32(1, 2, 3), expected=expected, device=device)
        assert device.last[1].rows == rows and list(device.last[1].views) == ["a", "b", "counts", "d"]


def test_nothing_to_multiply() -> None:
    a, w = factors("bfloat16", 0)
    assert kp.grouped_mm(a, turned(w), ends=int32(0, 0, 0)).shape == (0, N)
    assert kp.grouped_mm(normal(5, K), normal(0, K, N), ends=int32()).shape == (5, N)
    a, w = factors("1x128 128x128", 4, k=0)
    d = kp.grouped_mm(a, w.mT, rows=int32(0, -1, 2, 1), bias=normal(G, N), out=nan(4, N))
    assert np.isnan(d[1]).all() and np.array_equal(d[[0, 2, 3]], normal(G, N)[[0, 2, 1]].astype(np.float32))


@pytest.mark.parametrize("device", ["cpu", "emulated:sm_90a"])
@pytest.mark.parametrize(
    "given, error, message",
    [
        ({}, ValueError, "none of rows, ends and counts given; exactly one of them is wanted"),
        ({"rows": int32(0), "ends": int32(0)}, ValueError, "rows and ends of rows, ends and counts given; exactly one"),
        ({"rows": np.zeros(5, np.int64)}, TypeError, r"rows is int64; int32 is wanted: rows\.astype\('int32'\)"),
        ({"ends": np.zeros(3, np.float32)}, TypeError, "ends is float32; int32 is wanted"),
        ({"rows": int32(0, 0, 0)}, ValueError, r"rows has shape \[3\]; \[5\] is wanted"),
        ({"ends": int32(0, 0)}, ValueError, r"ends has shape \[2\]; \[3\] is wanted"),
        ({"rows": np.zeros(10, np.int32)[::2]}, ValueError, r"rows starts at .* strides \(8,\) bytes; neighbours"),
        ({"rows": int32(0, 1, 3, 2, 0)}, ValueError, r"rows\[2\] is 3; -1 to 2, -1 or a group, is wanted"),
        ({"rows": int32(0, 1, 0, -2, 0)}, ValueError, r"rows\[3\] is -2; -1 to 2"),
        ({"ends": int32(0, 4, 6)}, ValueError, r"ends\[2\] is 6; 0 to 5, M at most, is wanted"),
        ({"ends": int32(0, 4, 2)}, ValueError, r"ends\[2\] is 2, after 4; ends that do not fall are wanted"),
        ({"rows": [0] * 5}, TypeError, r"rows is builtins\.list; wanted a numpy array"),
        ({"rows": int32(0, 1, 0, 0, 0), "expected": 1.5}, TypeError, "expected is 1.5; a number of rows is wanted"),
        ({"rows": int32(0, 1, 0, 0, 0), "bias": normal(N)}, ValueError, r"bias has shape \[24\]; \[3, 24\] is wanted"),
    ],
)
def test_groups_that_are_refused(device: str, given: dict[str, Any], error: type[Exception], message: str) -> None:
    a, w = factors("bfloat16", 5)
    with pytest.raises(error, match=message):
        kp.grouped_mm(a, turned(w), **given, device=device)


def test_counts_that_are_refused() -> None:
    a, w = factors("bfloat16", 5, counts=True)
    with pytest.raises(ValueError, match=r"counts\[1\] is 6; 0 to 5, rows that each group has room for, is wanted"):
        kp.grouped_mm(a, turned(w), counts=int32(5, 6, -1))
    with pytest.raises(ValueError, match=r"a has shape \[3, 5, 272\]; \[M, K\] is wanted"):
        kp.grouped_mm(a, turned(w), ends=int32(1, 2, 3))
    with pytest.raises(ValueError, match=r"a is \[2, 5, 272\] .*\[G, M, K\] and \[G, K, N\] are wanted, with one G"):
        kp.grouped_mm(a[:2], turned(w), counts=int32(1, 2, 3))
    with pytest.raises(ValueError, match=r"pass a weight kept as \[N, K\] as w\.mT"):
        kp.grouped_mm(a, w, counts=int32(1, 2, 3))


def test_torch_is_told_how_to_convert() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.zeros((4, 32), dtype=torch.bfloat16), torch.zeros((2, 32, 8), dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=r"ends is torch\.int64; int32 is wanted: ends\.to\(torch\.int32\)"):
        kp.grouped_mm(a, b, ends=torch.tensor([1, 4]))
    assert kp.grouped_mm(a, b, ends=torch.tensor([1, 4], dtype=torch.int32)).shape == (4, 8)


def test_indices_on_a_gpu_are_read_on_request_only() -> None:
    torch = pytest.importorskip("torch")
    there = View(0, (2,), (4,), I32, "cuda:0", torch.tensor([1, 4], dtype=torch.int32))
    assert checks.known(there, examined=False) is None
    values = checks.known(there, examined=True)
    assert values is not None and values.tolist() == [1, 4]


def over_k(kind: str, m: int, k: int, ends: np.ndarray) -> tuple[Factor, Factor, list[tuple[Factor, Factor]]]:
    """a [M, K], b [K, N], and both of each group alone."""
    spans = [slice(begin, end) for begin, end in zip((0, *ends.tolist()), ends.tolist())]
    if kind == "bfloat16":
        a, b = in_order(normal(m, k), 1, 0), normal(k, N)
        return a, b, [(a[:, span], b[span]) for span in spans]
    x, y = normal(m, k, dtype=np.float32), normal(N, k, dtype=np.float32)
    alone = [[kp.quantize(t[:, span], "1x128") for span in spans] for t in (x, y)]
    whole = []
    for t, parts in zip((x, y), alone):
        codes = np.zeros(t.shape, parts[0].data.dtype)
        for span, each in zip(spans, parts):
            codes[:, span] = each.data
        scales = np.concatenate([each.scales for each in parts], axis=1)
        whole.append(kp.ScaledTensor(codes, scales, "1x128", ends))
    return whole[0], whole[1].T, [(left, right.T) for left, right in zip(*alone)]


@pytest.mark.parametrize("kind", ["bfloat16", "1x128"])
@pytest.mark.parametrize("sizes", [(16, 0, 272, 32), (0, 0, 0, 0), (144,)])
@pytest.mark.parametrize("out_dtype", [None, "bfloat16"])
def test_groups_of_k(kind: str, sizes: tuple[int, ...], out_dtype: str | None) -> None:
    ends = np.cumsum(sizes, dtype=np.int32)
    a, b, alone = over_k(kind, 8, max(int(ends[-1]), 16), ends)
    c = normal(len(sizes), 8, N, dtype=np.float32 if out_dtype is None else "bfloat16")
    d = kp.grouped_mm_k(a, b, ends=ends, alpha=2, c=c, out_dtype=out_dtype)
    assert kp.grouped_mm_k(a, b, ends=ends).dtype == np.float32
    for group, (left, right) in enumerate(alone):
        assert same(d[group], kp.mm(left, right, alpha=2, c=c[group], out_dtype=out_dtype))
    assert same(kp.grouped_mm_k(a, b, ends=ends, alpha=2, c=c, out=c), d)


def test_plain_scales_serve_groups_of_whole_blocks() -> None:
    t, w = scaled(8, 400), scaled(N, 400)
    d = kp.grouped_mm_k(t, w.T, ends=int32(128, 128, 400))
    own = [kp.ScaledTensor(x.data, x.scales, "1x128", int32(128, 128, 400)) for x in (t, w)]
    assert same(kp.grouped_mm_k(own[0], own[1].T, ends=int32(128, 128, 400)), d)
    with pytest.raises(ValueError, match=r"a has no ends, and groups have \[144, 256\] of K; scales that start"):
        kp.grouped_mm_k(t, w.T, ends=int32(144, 400))
    with pytest.raises(ValueError, match=r"a\.ends are not ends; the same groups are wanted"):
        kp.grouped_mm_k(own[0], own[1].T, ends=int32(128, 256, 400))
    with pytest.raises(ValueError, match=r"a\.ends has shape \[3\]; \[2\], that of ends, is wanted"):
        kp.grouped_mm_k(own[0], own[1].T, ends=int32(128, 400))
    with pytest.raises(ValueError, match=r"b is scaled 128x128; 1x128 along K is wanted"):
        kp.grouped_mm_k(t, scaled(N, 400, scaling="128x128").T, ends=int32(128, 400))


def test_plain_scales_on_a_gpu_prove_nothing() -> None:
    x = checks.factor("a", scaled(8, 384))
    checks.arrange(x, "MK", None)
    ends = view(int32(128, 384))
    checks.check_blocks(x, ends, int32(128, 384))
    with pytest.raises(ValueError, match="a has no ends, and those on a GPU are not read back"):
        checks.check_blocks(x, ends, None)


def test_nothing_of_k() -> None:
    c = normal(2, 8, N, dtype=np.float32)
    assert same(kp.grouped_mm_k(normal(8, 0), normal(0, N), ends=int32(0, 0), c=c), c)
    assert kp.grouped_mm_k(normal(8, 32), normal(32, N), ends=int32()).shape == (0, 8, N)


@pytest.mark.parametrize("device", ["cpu", "emulated:sm_90a"])
@pytest.mark.parametrize(
    "ends, message",
    [
        (int32(16, 24, 48), r"ends\[1\] is 24, after 16; sizes in multiples of 16 are wanted"),
        (int32(16, 64), r"ends\[1\] is 64; 0 to 48, K at most, is wanted"),
        (int32(32, 16), r"ends\[1\] is 16, after 32; ends that do not fall are wanted"),
        (np.zeros((2, 2), np.int32), r"ends has shape \[2, 2\]; \[G\] is wanted"),
        (np.zeros((), np.int32), r"ends has shape \[\]; \[G\] is wanted"),
        (np.zeros(513, np.int32), "G, the number of groups, is 513"),
    ],
)
def test_groups_of_k_that_are_refused(device: str, ends: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kp.grouped_mm_k(normal(8, 48), normal(48, N), ends=ends, device=device)


@pytest.mark.parametrize("by, index", [("counts", [3, 0]), ("ends", [3, 3]), ("rows", [0, 0, 0, -1, -1, -1, -1, -1])])
def test_rows_and_matrices_of_nobody_may_hold_anything(by: str, index: list[int]) -> None:
    x, groups = np.ones((2, 8, 256) if by == "counts" else (8, 256), np.float32), np.array(index, np.int32)
    a, w = kp.quantize(x, "1x128"), kp.quantize(np.ones((2, 16, 256), np.float32), "128x128")
    first = a.scales[0] if by == "counts" else a.scales
    first[3:] = w.scales[1] = np.nan
    d = kp.grouped_mm(a, w.mT, **{by: groups})  # type: ignore[arg-type]
    assert np.isfinite((d[0] if by == "counts" else d)[:3].astype(np.float32)).all()
    first[1] = np.nan
    with pytest.raises(ValueError, match=r"a\.scales holds NaN; numbers are wanted"):
        kp.grouped_mm(a, w.mT, **{by: groups})  # type: ignore[arg-type]
