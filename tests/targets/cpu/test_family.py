"""Every product of the family on the CPU: within its bound, with the stated bits, whatever rows come with a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kingpost as kp
from kingpost import formats, reference
from kingpost.arrays import view
from kingpost.formats import BF16, F32
from kingpost.registry import Operands, Problem
from kingpost.targets import family
from kingpost.targets.cpu.arithmetic import Exact

from ...ops.operands import int32, normal, same, scaled

FORMATS = [(a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
SCALED = [(a, b) for a in ("1x128", "row", "tensor") for b in ("1x128", "128x128", "row", "tensor")]
PAIRS = [*SCALED, ("1x32:ue8m0", "1x32:ue8m0")]
BY_ROWS = [pair for pair in PAIRS if pair[0] != "tensor"]  # the scales of a that a product for every head takes
OUTS = "bfloat16", "float16", "float32"
K_BFLOAT16 = ("bfloat16", "bfloat16"), (None, None)

kinds = st.one_of(st.tuples(st.sampled_from(FORMATS), st.sampled_from(PAIRS)), st.just(K_BFLOAT16))
depths = st.sampled_from([16, 144, 512, 2112])
widths = st.sampled_from([8, 72, 576])
layouts = st.sampled_from(["rows", "columns", "padded", "spread"])
some_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=8)
group_sizes = st.one_of(some_sizes, st.just([0, 0, 150, 0]), st.just([1, 0, 2] * 100))
finishes = st.fixed_dictionaries(
    {
        "out": st.sampled_from(OUTS),
        "alpha": st.sampled_from([None, 0.3, -2]),
        "c": st.booleans(),
        "bias": st.sampled_from([None, "bfloat16", "float16", "float32"]),
    }
)


def operand(*shape: int, format: str, scaling: str | None, seed: int = 0) -> Any:
    return normal(*shape, seed=seed) if scaling is None else scaled(*shape, scaling=scaling, format=format, seed=seed)


def turned(x: Any) -> Any:
    return x.mT if isinstance(x, kp.ScaledTensor) else x.swapaxes(-1, -2)


def laid(x: Any, layout: str) -> Any:
    """The same tensor, its scales in other places of memory."""
    if not isinstance(x, kp.ScaledTensor) or layout == "rows":
        return x
    *planes, rows, blocks = x.scales.shape
    if layout == "columns":
        scales = np.empty((*planes, blocks, rows), x.scales.dtype).swapaxes(-1, -2)
    elif layout == "padded":
        scales = np.empty((*planes, blocks, rows + 3), x.scales.dtype)[..., :rows].swapaxes(-1, -2)
    else:
        scales = np.empty((*planes, 2 * rows, 3 * blocks), x.scales.dtype)[..., ::2, ::3]
    scales[...] = x.scales
    return kp.ScaledTensor(x.data, scales, x.scaling)


def part(x: Any, rows: Any) -> Any:
    """Some rows of [rows, K], or planes of [planes, rows, K]."""
    if not isinstance(x, kp.ScaledTensor):
        return x[rows]
    whole = x.scaling.block[0] is None and x.data.ndim == 2
    return kp.ScaledTensor(x.data[rows], x.scales if whole else x.scales[rows], x.scaling)


def finish(given: dict[str, Any], shape: tuple[int, ...], bias_shape: tuple[int, ...]) -> dict[str, Any]:
    """The arguments for what becomes of a total."""
    out = formats.named(given["out"]).dtype
    bias = None if given["bias"] is None else normal(*bias_shape, seed=4, dtype=formats.named(given["bias"]).dtype)
    return {
        "out_dtype": given["out"],
        "alpha": given["alpha"],
        "c": normal(*shape, seed=3, dtype=out) if given["c"] else None,
        **({} if bias is None else {"bias": bias}),
    }


def check(d: np.ndarray, a: Any, b: Any, how: dict[str, Any], place: Any = ..., group: int | None = None) -> None:
    """d [M, N], or some 12 rows of it, lies within the bound; c is cut at `place`, bias at `group`."""
    rows = slice(None, None, max(1, len(d) // 12))
    c, bias = how["c"], how.get("bias")
    c = None if c is None else c[place][rows]
    bias = bias if bias is None or group is None else bias[group]
    alpha = 1.0 if how["alpha"] is None else how["alpha"]
    reference.check(d[rows], part(a, rows), b, alpha=alpha, c=c, bias=bias)


def unwritten(*shape: int, like: str) -> np.ndarray:
    return np.full(shape, -77, formats.named(like).dtype)


@given(m=st.integers(0, 300), n=widths, k=depths, kind=kinds, layout=layouts, given_finish=finishes)
@settings(max_examples=25)
def test_dense(m: int, n: int, k: int, kind: Any, layout: str, given_finish: dict[str, Any]) -> None:
    (a_format, b_format), (a_scaling, b_scaling) = kind
    a = laid(operand(m, k, format=a_format, scaling=a_scaling), layout)
    b = turned(laid(operand(n, k, format=b_format, scaling=b_scaling, seed=1), layout))
    how = finish(given_finish, (m, n), (n,))
    d = kp.mm(a, b, **how)
    assert d.shape == (m, n) and d.dtype == formats.named(given_finish["out"]).dtype
    check(d, a, b, how)
    if how["c"] is not None:
        own = how["c"].copy()
        assert same(kp.mm(a, b, **{**how, "c": own, "out": own}), d)


@given(
    sizes=group_sizes, spare=st.integers(0, 5), n=st.sampled_from([8, 72]), k=st.sampled_from([16, 144, 272]),
    kind=kinds, layout=layouts, given_finish=finishes, by=st.sampled_from(["rows", "shuffled rows", "ends"]),
)  # fmt: skip
@settings(max_examples=25)
@example([0, 0, 150, 0], 3, 72, 144, (("e5m2", "e4m3"), ("tensor", "tensor")), "spread", {"out": "float32", "alpha": 0.3, "c": True, "bias": "float16"}, "shuffled rows")  # fmt: skip # noqa: E501
def test_groups_of_rows(
    sizes: list[int], spare: int, n: int, k: int, kind: Any, layout: str, given_finish: dict[str, Any], by: str
) -> None:
    """A group has the bits of its product alone, and lies within the bound; rows of none are left."""
    (a_format, b_format), (a_scaling, b_scaling) = kind
    m = sum(sizes) + spare
    a = laid(operand(m, k, format=a_format, scaling=a_scaling), layout)
    b = turned(laid(operand(len(sizes), n, k, format=b_format, scaling=b_scaling, seed=1), layout))
    how = finish(given_finish, (m, n), (len(sizes), n))
    group_of = np.repeat(np.arange(-1, len(sizes)), [0, *sizes]).astype(np.int32)
    group_of = np.concatenate([group_of, np.full(spare, -1, np.int32)])
    if by == "shuffled rows":
        np.random.default_rng(m).shuffle(group_of)
    index = {"ends": np.cumsum(sizes, dtype=np.int32)} if by == "ends" else {"rows": group_of}
    out = unwritten(m, n, like=given_finish["out"])
    assert kp.grouped_mm(a, b, **index, **how, out=out) is out
    assert (out[group_of < 0] == -77).all()
    for g in np.unique(group_of[group_of >= 0])[:5].tolist():
        rows = np.flatnonzero(group_of == g)
        alone = {**how, "c": None if how["c"] is None else how["c"][rows]}
        if "bias" in how:
            alone["bias"] = how["bias"][g]
        assert same(kp.mm(part(a, rows), part(b, g), **alone), out[rows])
        check(out[rows], part(a, rows), part(b, g), how, rows, g)


@given(
    counts=st.one_of(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.just([0, 1] * 150)),
    n=st.sampled_from([8, 72]), k=st.sampled_from([16, 144, 272]), kind=kinds, layout=layouts, given_finish=finishes,
)  # fmt: skip
@settings(max_examples=20)
def test_groups_with_room(
    counts: list[int], n: int, k: int, kind: Any, layout: str, given_finish: dict[str, Any]
) -> None:
    (a_format, b_format), (a_scaling, b_scaling) = kind
    groups, m = len(counts), max(counts) + 2
    a = laid(operand(groups, m, k, format=a_format, scaling=a_scaling), layout)
    b = turned(laid(operand(groups, n, k, format=b_format, scaling=b_scaling, seed=1), layout))
    how = finish(given_finish, (groups, m, n), (groups, n))
    out = unwritten(groups, m, n, like=given_finish["out"])
    assert kp.grouped_mm(a, b, counts=int32(*counts), **how, out=out) is out
    for g, count in enumerate(counts):
        assert (out[g, count:] == -77).all()
        if count and g < 5:
            left = part(part(a, g), slice(0, count))
            check(out[g, :count], left, part(b, g), how, np.s_[g, :count], g)
            alone = {**how, "c": None if how["c"] is None else how["c"][g, :count]}
            if "bias" in how:
                alone["bias"] = how["bias"][g]
            assert same(kp.mm(left, part(b, g), **alone), out[g, :count])


@given(
    m=st.integers(0, 40), heads=st.integers(1, 4), n=st.sampled_from([8, 72]), k=st.sampled_from([16, 144, 272]),
    kind=st.one_of(st.tuples(st.sampled_from(FORMATS), st.sampled_from(BY_ROWS)), st.just(K_BFLOAT16)),
    layout=layouts, given_finish=finishes, back=st.booleans(),
)  # fmt: skip
@settings(max_examples=20)
def test_heads(
    m: int, heads: int, n: int, k: int, kind: Any, layout: str, given_finish: dict[str, Any], back: bool
) -> None:
    """back: by "bhd,hdr->bhr", b [heads, K, N]."""
    (a_format, b_format), (a_scaling, b_scaling) = kind
    a = laid(operand(m, heads, k, format=a_format, scaling=a_scaling), layout)
    b = laid(operand(heads, n, k, format=b_format, scaling=b_scaling, seed=1), layout)
    how = finish({**given_finish, "bias": None}, (m, heads, n), (n,))
    d = kp.einsum("bhd,hdr->bhr", a, turned(b), **how) if back else kp.einsum("bhr,hdr->bhd", a, b, **how)
    for h in range(heads):
        if isinstance(a, kp.ScaledTensor):
            left = kp.ScaledTensor(a.data[:, h], a.scales[:, h], a.scaling)
        else:
            left = a[:, h]
        check(d[:, h], left, turned(part(b, h)), how, np.s_[:, h])
        alone = {**how, "c": None if how["c"] is None else how["c"][:, h]}
        assert same(kp.mm(left, turned(part(b, h)), **alone), np.ascontiguousarray(d[:, h]))


def wild(*shape: int, seed: int = 0) -> np.ndarray:
    """bfloat16 of such spread that another order of sums gives other float32 numbers."""
    random = np.random.default_rng([seed, *shape])
    return np.ldexp(random.standard_normal(shape), random.integers(-40, 40, shape)).astype(BF16.dtype)


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8), spare=st.integers(0, 2), out=st.sampled_from(OUTS))
@settings(max_examples=15)
@example([16], 0, "float32")
@example([0, 0, 20, 0], 2, "float32")
@example([1, 0, 2] * 100, 0, "bfloat16")
def test_groups_of_k(sizes: list[int], spare: int, out: str) -> None:
    """Each has the bits of the product of its slice, of as many numbers as it has; bfloat16, in units of 16 of K."""
    ends, k = np.cumsum(sizes, dtype=np.int32) * 16, 16 * (sum(sizes) + spare)
    a, b = wild(5, k), wild(8, k, seed=1)
    c = normal(len(sizes), 5, 8, dtype=formats.named(out).dtype)
    d = kp.grouped_mm_k(a, b.T, ends=ends, c=c, alpha=0.5, out_dtype=out)
    for g, (begin, end) in enumerate(zip([0, *ends], ends)):
        left, right = a[:, begin:end], b[:, begin:end].T
        assert same(kp.mm(left, right, c=c[g], alpha=0.5, out_dtype=out), d[g])
        reference.check(d[g], left, right, c=c[g], alpha=0.5)


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6), spare=st.integers(0, 2), pair=st.sampled_from(FORMATS),
    layout=layouts,
)  # fmt: skip
@settings(max_examples=15)
@example([1, 0, 2] * 100, 0, ("e4m3", "e4m3"), "rows")
def test_scaled_groups_of_k(sizes: list[int], spare: int, pair: tuple[str, str], layout: str) -> None:
    """Each starts a new block of scales, and has the bits of the product of its slice."""
    ends, k = np.cumsum(sizes, dtype=np.int32) * 16, 16 * (sum(sizes) + spare)
    blocks = sum(-(-16 * size // 128) for size in sizes)
    tensors = []
    for rows, format in ((5, pair[0]), (24, pair[1])):
        random = np.random.default_rng([rows, blocks])
        codes = kp.quantize(normal(rows, k, dtype=np.float32), "tensor", format=format).data
        scales = laid(scaled(rows, 128 * blocks), layout).scales
        scales[...] = random.uniform(0.1, 2, (rows, blocks))
        tensors.append(kp.ScaledTensor(codes, scales, "1x128", ends))
    a, b = tensors
    d = kp.grouped_mm_k(a, b.T, ends=ends)
    assert d.dtype == np.float32
    for left, right, product in zip(a.groups(), b.groups(), d):
        assert same(kp.mm(left, right.T, out_dtype="float32"), product)
        reference.check(product, left, right.T)


def test_whole_blocks_of_k_need_no_ends() -> None:
    a, b, ends = scaled(5, 528), scaled(24, 528), int32(128, 384, 528)
    own = [kp.ScaledTensor(x.data, x.scales, "1x128", ends) for x in (a, b)]
    d = kp.grouped_mm_k(a, b.T, ends=ends)
    assert same(kp.grouped_mm_k(own[0], own[1].T, ends=ends), d)
    assert same(kp.grouped_mm_k(own[0], b.T, ends=ends), d)


def rounded(numerator: int, exponent: int) -> float:
    """numerator * 2^exponent, rounded once to 24 bits, ties to even, in integers."""
    size = abs(numerator)
    dropped = max(size.bit_length() - 24, 0)
    kept, rest = divmod(size, 1 << dropped)
    kept += 2 * rest > 1 << dropped or (2 * rest == 1 << dropped and kept % 2)
    return float(np.sign(numerator)) * kept * 2.0 ** (dropped + exponent)


def integers(codes: np.ndarray) -> np.ndarray:
    """float8 numbers in units of 2^-16, as Python's integers."""
    return np.ldexp(formats.decode(codes, dtype=np.float64), 16).astype(np.int64).astype(object)


def exact_block(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    sums = integers(a) @ integers(b).T
    return np.array([[rounded(each, -32) for each in row] for row in sums], np.float32).reshape(len(a), len(b))


def finite_codes(random: np.random.Generator, *shape: int, format: str) -> np.ndarray:
    codes = np.arange(256, dtype=np.uint8)
    codes = codes[np.isfinite(formats.decode(codes, format))]
    return random.choice(codes, shape).view(formats.named(format).dtype)


@given(seed=st.integers(0, 2**32), pair=st.sampled_from(FORMATS), few=st.booleans())
@settings(max_examples=20)
def test_a_block_is_exact(seed: int, pair: tuple[str, str], few: bool) -> None:
    """Of any codes; few: of so few that sums often lie halfway between two float32, or a little beside."""
    random = np.random.default_rng(seed)
    a, b = (finite_codes(random, rows, 128, format=format) for rows, format in zip((4, 6), pair))
    if few:
        a[:, 3:] = 0
    unit = Exact()
    assert same(unit.block(a, b), exact_block(a, b) + np.float32(0))


@pytest.mark.parametrize("least, wanted", [(-1, 0), (0, 0), (1, 1)])
def test_a_block_that_float64_would_round_twice(least: int, wanted: int) -> None:
    """2^24 and half a unit, and least * 2^-32: up, down, or to even, by what lies 56 bits below."""
    a, b = np.zeros((2, 1, 128), np.float32)
    a[0, :3], b[0, :3] = (2.0**12, 1, 2.0**-16), (2.0**12, 1, least * 2.0**-16)
    a, b = (x.astype(ml_dtypes.float8_e5m2) for x in (a, b))
    unit = Exact()
    assert unit.block(a, b)[0, 0] == 2.0**24 + 2 * wanted


def test_infinities_and_nan_of_e5m2_stay_in_their_rows() -> None:
    random = np.random.default_rng(0)
    a, b = (finite_codes(random, rows, 128, format="e5m2") for rows in (6, 8))
    a[1, 5] = np.inf
    a[2, 5], a[2, 6] = np.inf, -np.inf
    a[3, 7] = np.nan
    b[:, 5] = b[:, 6] = 1
    b[4, 5] = 0
    b[5, 5] = -1
    unit = Exact()
    d = unit.block(a, b)
    with np.errstate(invalid="ignore"):
        finite = np.where(np.isfinite(formats.decode(a)), a, 0).astype(a.dtype)
    want = exact_block(finite, b)
    want[1] = [np.inf] * 4 + [np.nan, -np.inf] + [np.inf] * 2
    want[2:4] = np.nan
    want[2, 5] = -np.inf
    np.testing.assert_array_equal(d, want)


@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize("a_scaling, b_scaling", PAIRS)
@pytest.mark.parametrize("a_format, b_format", FORMATS)
def test_bits_are_the_stated_ones(a_format: str, b_format: str, a_scaling: str, b_scaling: str, out: str) -> None:
    """Blocks exact, promoted in ascending K, then alpha, c and bias, each rounded to float32, then the result."""
    a, w = operand(3, 272, format=a_format, scaling=a_scaling), operand(8, 272, format=b_format, scaling=b_scaling)
    a_scales, b_scales = a.expanded(), w.expanded()
    total, span = np.zeros((3, 8), np.float32), 32 if ":" in a_scaling else 128
    for k in range(0, 272, span):
        partial = exact_block(a.data[:, k : k + span], w.data[:, k : k + span])
        total = formats.fma32(partial, a_scales[:, k, None] * b_scales[None, :, k], total)
    c, bias = normal(3, 8, dtype=formats.named(out).dtype), normal(8)
    want = total * np.float32(0.3) + c.astype(np.float32) + bias.astype(np.float32)
    assert same(kp.mm(a, w.T, alpha=0.3, c=c, bias=bias, out_dtype=out), formats.cast(want, out, saturate=False))


M, N, K, G = 150, 16, 272, 3
Some = Callable[[Any], np.ndarray]  # the result of some rows of a, by their numbers


def dense(scaling: str | None, format: str) -> Some:
    a, w = _stacked((M, K), (N, K), scaling, format)
    return lambda rows: kp.mm(part(a, rows), turned(w), out_dtype="float32")


def by_rows(scaling: str | None, format: str) -> Some:
    a, w = _stacked((M, K), (G, N, K), scaling, format)
    group = np.random.default_rng(0).integers(0, G, M).astype(np.int32)
    return lambda rows: kp.grouped_mm(part(a, rows), turned(w), rows=group[rows], out_dtype="float32")


def with_room(scaling: str | None, format: str) -> Some:
    a, w = _stacked((G, M, K), (G, N, K), scaling, format)

    def some(rows: np.ndarray) -> np.ndarray:
        if scaling is None:
            few: Any = a[:, rows]
        else:
            scales = a.scales if a.scaling.block[0] is None else a.scales[:, rows]
            few = kp.ScaledTensor(a.data[:, rows], scales, a.scaling)
        d = kp.grouped_mm(few, turned(w), counts=int32(*[len(rows)] * G), out_dtype="float32")
        return d.swapaxes(0, 1)

    return some


def by_heads(scaling: str | None, format: str) -> Some:
    a, w = _stacked((M, G, K), (G, N, K), scaling, format)
    return lambda rows: kp.einsum("bhr,hdr->bhd", part(a, rows), w, out_dtype="float32")


def over_k(scaling: str | None, format: str) -> Some:
    a, w = _stacked((M, K), (N, K), scaling, format)
    ends = int32(128, 128, 272)
    return lambda rows: kp.grouped_mm_k(part(a, rows), turned(w), ends=ends).swapaxes(0, 1)


def summed(scaling: str | None, format: str) -> Some:
    a, w = wild(40, M, 24), wild(40, N, 24, seed=1)
    return lambda rows: slices_of(np.ascontiguousarray(a[:, rows]), w).swapaxes(0, 1)


def _stacked(a: tuple[int, ...], b: tuple[int, ...], scaling: str | None, format: str) -> tuple[Any, Any]:
    if scaling is None:
        return wild(*a), wild(*b)
    return scaled(*a, scaling=scaling, format=format), scaled(*b, scaling=scaling, format=format)


def slices_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The slices of the sum over planes of a [B, M, K] by b [B, N, K]."""
    (planes, m, k), n = a.shape, b.shape[1]
    d = np.empty((family.slices(planes), m, n), np.float32)
    problem = Problem("summed_mm", n, k, BF16, BF16, None, None, F32, groups=planes)
    family.solve(problem, Operands({"a": view(a), "b": view(b), "d": view(d)}, ("d",), m), Exact())
    return d


MEMBERS = [
    *[(dense, scaling) for scaling in (None, "1x128", "tensor", "1x32:ue8m0")],
    *[(by_rows, scaling) for scaling in (None, "1x128", "tensor", "1x32:ue8m0")],
    *[(with_room, scaling) for scaling in (None, "1x128", "row")],
    *[(by_heads, scaling) for scaling in (None, "1x128", "row")],
    *[(over_k, scaling) for scaling in (None, "1x128")],
    (summed, None),
]


@pytest.mark.parametrize("member, scaling", MEMBERS)
@pytest.mark.parametrize("format", ["e4m3", "e5m2"])
def test_bits_of_a_row_do_not_depend_on_the_others(
    member: Callable[[str | None, str], Some], scaling: str | None, format: str
) -> None:
    some = member(scaling, format)
    whole = some(np.arange(M))
    assert np.isfinite(whole).all() and whole.any()
    shuffled = np.random.default_rng(1).permutation(M)
    for rows in (np.arange(1), np.arange(7), np.arange(65), shuffled, np.array([149, 3])):
        assert same(np.ascontiguousarray(some(rows)), np.ascontiguousarray(whole[rows]))


@pytest.mark.parametrize("planes, slices", [(1, 1), (3, 3), (32, 32), (33, 17), (64, 32), (70, 24)])
@pytest.mark.parametrize("k", [8, 40])
def test_slices_of_a_sum_are_the_stated_ones(planes: int, slices: int, k: int) -> None:
    """Integers that float64 sums exactly, too large for float32 to do so."""
    random = np.random.default_rng(planes)
    shifts = 4 * random.integers(0, 4, (planes, 1, k))
    a, b = (random.integers(-255, 256, (planes, rows, k)) << shifts for rows in (5, 8))
    products, each = np.einsum("bmk,bnk->bmn", a, b), -(-planes // 32)
    d = slices_of(*(x.astype(BF16.dtype) for x in (a, b)))
    assert d.shape == (slices, 5, 8)
    for i, found in enumerate(d):
        assert same(found, products[i * each : (i + 1) * each].sum(axis=0).astype(np.float32))


def test_orders_in_memory_do_not_change_a_chain() -> None:
    a, w = wild(72, 272), wild(16, 272)
    want = kp.mm(a, w.T, out_dtype="float32")
    for left in (a, np.asfortranarray(a)):
        for right in (w.T, np.ascontiguousarray(w.T)):
            assert same(kp.mm(left, right, out_dtype="float32"), want)
