"""The product as it should be, in float64, and how far from it a correct kernel may be.

The bound is a proof, not a tolerance. It follows the coarsest arithmetic in use, Hopper's tensor cores, through the
operands at hand and counts what each truncation can lose. A step adds some products to the accumulator: every addend is
truncated toward zero to some fraction bits below the largest exponent among them, the exact sum of these to some
mantissa bits (arXiv 2511.10909): float8 32 products, 13 and 13 bits; bfloat16 16 products, 25 and 23.

What a step can lose depends on the accumulator, which is known to lie in an interval around the exact sum. Its largest
magnitude there, or the largest product, bounds the weight of the last bit kept; an addend with bits below that loses at
most one such weight, others nothing; and the sum loses its relative share, or float32's smallest number. So the
interval grows by what positive addends can lose below, by what negative ones can lose above. Arithmetic that truncates
less stays within, and so does a float64 sum in any order: n terms err by less than n * 2^-53 times the sum of their
magnitudes, which is added unless float64 is exact, as it is for a block of e4m3. Then come the roundings to float32,
each of 2^-24 of what was added up so far, or 2^-150, and at last the one to the result's format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kingpost import formats
from kingpost.arrays import library_of
from kingpost.formats import BF16, E4M3, E4M3FNUZ, E5M2, F16, F32, Format
from kingpost.scaling import BLOCK, ScaledTensor


class _Unit(NamedTuple):
    """How a tensor core adds: products in a step, fraction bits that it keeps of each addend, mantissa bits of the sum.
    And how exponents are stored here: their type, and that of a zero, which with any other's lies below every
    product's."""

    step: int
    kept: int
    mantissa: int
    type: type
    zero: int


_NOTHING = -2000  # the exponent of an empty sum
_FLOAT8, _BFLOAT16 = _Unit(32, 13, 13, np.int8, -60), _Unit(16, 25, 23, np.int16, -1000)
_FRACTION_BITS = {E4M3: 3, E4M3FNUZ: 3, E5M2: 2, BF16: 7, F16: 10, F32: 23}
_SMALLEST_EXPONENT = {E4M3: -6, E4M3FNUZ: -7, E5M2: -14, BF16: -126, F16: -14, F32: -126}
_OUT_FORMATS = BF16, F16, F32
_STEP = 32  # of K that share a scale in "1x32:ue8m0"
_SMALLEST = 2.0**-148  # more than a step loses at the end of float32's range: 2^-149, and 2^-158 of each addend
_TILE = 64, 256  # outputs bounded at once, so that the temporaries stay in cache


def truth(a: Any, b: Any, *, alpha: float = 1.0, c: Any = None, bias: Any = None) -> np.ndarray:
    """alpha * a @ b + c + bias in float64 from the exact operands, alpha rounded to float32.

    a: [M, K], b: [K, N] (a weight [N, K] goes in as w.T); scaled tensors, or bfloat16 arrays; numpy or torch. c [M, N]
    and bias [N]: arrays of any float format. Returns float64 [M, N], on the host; of tensors with groups along K (both,
    of equal ends) [G, M, N], a product for each, and so is c then. Raises ValueError if they do not multiply: rank, K,
    or scales that change within a block of K.

    The sums of e4m3 codes over 128 of K are exact, as are the products of two scales. So what cancels within a block
    gives 0, and the bound need not allow for roundings of scaled codes that do not quite cancel.
    """
    if _grouped(a, b):
        return _by_group(lambda x, y, c: truth(x, y, alpha=alpha, c=c, bias=bias), a, b, c)
    left, right, span = _operands(a, b)
    total = np.zeros((left.values.shape[1], right.values.shape[1]))
    with np.errstate(invalid="ignore"):
        for block in range(len(left.scales)):
            k = slice(block * span, (block + 1) * span)
            total += (left.values[k].T @ right.values[k]) * (left.scales[block, :, None] * right.scales[block])
        total *= np.float32(alpha)
        for added in (c, bias):
            if added is not None:
                total += formats.decode(_host(added), dtype=np.float64)
    return total


def bound(
    a: Any,
    b: Any,
    out_format: Any = BF16,
    *,
    alpha: float = 1.0,
    c: Any = None,
    bias: Any = None,
    chain: int | None = None,
) -> np.ndarray:
    """How far each element of a correct product may be from `truth(a, b, ...)`: float64 of its shape.

    a, b, alpha, c, bias: as for truth. out_format: bfloat16, float16 or float32, to which the result was rounded. Holds
    for any kernel that sums each block of K from zero, in float64 or on tensor cores, and adds these to one float32
    total in any order, times the float32 product of their scales; and then does alpha, c and bias in float32. chain: of
    bfloat16, how many of K are summed at once where it is not all; c may then be added first. Infinite where float32
    or the result may overflow though the truth is finite.

    Takes some three nanoseconds for each of the M * N * K products: of a large problem, bound some rows.
    """
    target = formats.named(out_format)
    if target not in _OUT_FORMATS:
        raise ValueError(f"out_format is {target}; wanted {' or '.join(map(str, _OUT_FORMATS))}")
    if _grouped(a, b):
        return _by_group(lambda x, y, c: bound(x, y, target, alpha=alpha, c=c, bias=bias), a, b, c)
    left, right, span = _operands(a, b, chain)
    rows, columns = left.values.shape[1], right.values.shape[1]
    total, reach, lost = np.zeros((3, rows, columns))
    with np.errstate(over="ignore", invalid="ignore"):
        for m in range(0, rows, _TILE[0]):
            for n in range(0, columns, _TILE[1]):
                tile = slice(m, m + _TILE[0]), slice(n, n + _TILE[1])
                parts = _bound_tile(left.cut(tile[0]), right.cut(tile[1]), span)
                total[tile], reach[tile], lost[tile] = parts
        total, reach, lost = total * np.float32(alpha), reach * abs(np.float32(alpha)), lost * abs(np.float32(alpha))
        steps = int(alpha != 1)
        for added, times in ((c, max(1, len(left.scales) if chain else 1)), (bias, 1)):
            if added is not None:
                values = formats.decode(_host(added), dtype=np.float64)
                total, reach, steps = total + values, reach + np.abs(values), steps + times
        lost = (lost + _rounded(reach, steps)) * (1 + 2.0**-10)  # the roundings of up to 2^13 roundings
        exponent = np.maximum(_exponent(np.abs(total) + lost), _SMALLEST_EXPONENT[target])
        allowed = lost + np.ldexp(0.5, exponent - _FRACTION_BITS[target])
        overflow = np.isnan(allowed) | (reach + lost >= _limit(F32)) | (np.abs(total) + lost >= _limit(target))
    return np.where(np.isfinite(total) & overflow, np.inf, allowed)


def check(
    result: Any,
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    c: Any = None,
    bias: Any = None,
    chain: int | None = None,
) -> float:
    """The largest error of `result` as a share of its bound: from 0 to 1.

    result: bfloat16, float16 or float32, of the truth's shape, numpy or torch, what some product of a and b gave. The
    rest is as for bound. Raises ValueError, with the worst place, if an element lies outside its bound.
    """
    codes = _host(result)
    want = truth(a, b, alpha=alpha, c=c, bias=bias)
    allowed = bound(a, b, codes.dtype, alpha=alpha, c=c, bias=bias, chain=chain)
    if codes.shape != want.shape:
        raise ValueError(f"result has shape {codes.shape}; wanted {want.shape}")
    if not codes.size:
        return 0.0
    values = formats.decode(codes, dtype=np.float64)
    nearest = formats.decode(formats.cast(want, codes.dtype, saturate=False), dtype=np.float64)
    equal = (values == nearest) | (np.isnan(values) & np.isnan(nearest))  # infinities and NaN have no error to measure
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(values - want) / allowed
    ratio[~np.isfinite(ratio)] = np.inf
    ratio[equal & ~np.isfinite(values)] = 0
    ratio[(values == want) | (np.isposinf(allowed) & np.isfinite(want))] = 0
    worst = np.unravel_index(np.argmax(ratio), ratio.shape)
    if ratio[worst] > 1:
        raise ValueError(
            f"result at {tuple(map(int, worst))} is {values[worst]:.9g}; wanted {want[worst]:.9g} within "
            f"{allowed[worst]:.3g} ({np.count_nonzero(ratio > 1)} of {ratio.size} elements are outside their bound)"
        )
    return float(ratio[worst])


def _grouped(a: Any, b: Any) -> bool:
    """Whether a and b have groups along K."""
    ends = [_host(t.ends) for t in (a, b) if getattr(t, "ends", None) is not None]
    if len(ends) == 1 or (ends and not np.array_equal(ends[0], ends[1])):
        raise ValueError("a and b have groups of different ends; equal ones, or none, are wanted")
    return bool(ends)


def _by_group(of_one: Callable[[Any, Any, Any], np.ndarray], a: ScaledTensor, b: ScaledTensor, c: Any) -> np.ndarray:
    """What `of_one` says of each group's a, b and c: [G, M, N]."""
    pairs = enumerate(zip(a.groups(), b.groups()))
    each = [of_one(x, y, None if c is None else c[group]) for group, (x, y) in pairs]
    return np.array(each).reshape(len(each), a.shape[0], b.shape[1])


class _Operand(NamedTuple):
    """The rows of one operand, K first."""

    values: np.ndarray  # float64 [K, rows], codes without scales
    exponents: np.ndarray  # [K, rows], as a tensor core sees them: subnormals keep the smallest
    signs: np.ndarray  # int8 [K, rows]: -1, 0 or 1
    scales: np.ndarray  # float64 [blocks of K, rows]
    format: Format

    @property
    def unit(self) -> _Unit:
        return _BFLOAT16 if self.format is BF16 else _FLOAT8

    def cut(self, rows: slice) -> _Operand:
        """Some of the rows."""
        return self._replace(**{name: getattr(self, name)[:, rows] for name in self._fields[:4]})


def _operands(a: Any, b: Any, chain: int | None = None) -> tuple[_Operand, _Operand, int]:
    """a and b.T as operands, and how many of K are summed from zero."""
    for name, t in (("a", a), ("b", b)):
        if len(t.shape) != 2:
            raise ValueError(f"{name} has shape {tuple(t.shape)}; wanted two dimensions")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a is {tuple(a.shape)} and b {tuple(b.shape)}; wanted [M, K] and [K, N] with one K")
    scaled = [isinstance(t, ScaledTensor) for t in (a, b)]
    if scaled[0] != scaled[1]:
        raise TypeError("one of a and b is a ScaledTensor; both or neither are wanted")
    if not scaled[0]:
        span = chain or max(a.shape[1], 1)
    else:
        spans = {t.scaling.block[along] for t, along in ((a, 1), (b, 0))}
        if chain:
            raise ValueError(f"chain is {chain}; wanted None for scaled tensors, whose blocks are summed from zero")
        if not (spans <= {BLOCK, None} or spans == {_STEP}):
            raise ValueError(
                f"a is scaled {a.scaling} and b {b.scaling}; wanted one scale for each {BLOCK} of K, or for all of it, "
                f"or for each {_STEP} on both sides"
            )
        span = _STEP if spans == {_STEP} else BLOCK
    return _operand(a, "a", span), _operand(b.T, "b", span), span


def _operand(t: Any, name: str, span: int) -> _Operand:
    """[rows, K] as an _Operand."""
    if isinstance(t, ScaledTensor):
        format, codes = t.format, _host(t.data)
        scales = t.scaling.by_block(_host(t.scales), t.shape).astype(np.float64)
    else:
        codes = _host(t)
        format = formats.of(codes.dtype)
        if format is not BF16:
            raise TypeError(f"{name} is {format}; wanted bfloat16, or a ScaledTensor")
        scales = np.ones((len(codes), -(-codes.shape[1] // span)))
    unit = _BFLOAT16 if format is BF16 else _FLOAT8
    values = np.ascontiguousarray(formats.decode(codes, dtype=np.float64).T)
    exponents = np.maximum(_exponent(np.abs(values)), _SMALLEST_EXPONENT[format])
    exponents[values == 0] = unit.zero
    signs = np.nan_to_num(np.sign(values)).astype(np.int8)
    return _Operand(values, exponents.astype(unit.type), signs, scales.T, format)


def _bound_tile(a: _Operand, b: _Operand, span: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one tile the product, the sum of its blocks' magnitudes, and the bound of its float32 total."""
    blocks = a.scales.shape[0]
    total, reach, below, above, scaled_wrong = np.zeros((5, a.values.shape[1], b.values.shape[1]))
    for block in range(blocks):
        exact, block_below, block_above = _block_loss(a, b, block * span, span)
        scale = a.scales[block, :, None] * b.scales[block, None, :]
        rounding = np.abs(scale.astype(np.float32) - scale)  # of a kernel's product of two scales
        size = np.abs(exact) + np.maximum(block_below, block_above)
        total += exact * scale
        reach += size * (np.abs(scale) + rounding)
        scaled_wrong += size * rounding
        below += np.where(scale > 0, block_below, block_above) * np.abs(scale)
        above += np.where(scale > 0, block_above, block_below) * np.abs(scale)
    # a rounding for each partial, one for each sum, and one that stands for all of the truth's
    lost = np.maximum(below, above) + scaled_wrong + _rounded(reach, blocks + 2)
    return total, reach, lost


def _rounded(reach: np.ndarray, times: int) -> np.ndarray:
    """What so many roundings to float32 lose at most of sums that reach so far."""
    return times * (reach * 2.0**-24 + 2.0**-150)


def _block_loss(a: _Operand, b: _Operand, start: int, span: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sum of the block of K at `start`, without scales, and how far below and above it a kernel's may be.

    Truncation is toward zero: it moves a sum down by what its positive addends lose, up by what its negative ones do.
    """
    unit, limits = a.unit, np.iinfo(a.unit.type)
    total, below, above = np.zeros((3, a.values.shape[1], b.values.shape[1]))
    product_bits = _FRACTION_BITS[a.format] + _FRACTION_BITS[b.format]
    stop = min(start + span, len(a.values))
    exact = {a.format, b.format} <= {E4M3, E4M3FNUZ}
    for k in range(start, stop, unit.step):
        step = slice(k, min(k + unit.step, stop))
        products = a.exponents[step, :, None] + b.exponents[step, None, :]
        largest = products.max(axis=0).astype(np.int32)
        spread = np.maximum(below, above)
        most, least = _exponent(np.abs(total) + spread), _exponent(np.abs(total) - spread)  # of the accumulator
        shared = np.maximum(largest, most)
        # a product's last bit is product_bits below its exponent: only these reach below the last bit kept
        threshold = np.clip(shared - unit.kept + product_bits, limits.min, limits.max).astype(unit.type)
        short = a.signs[step, :, None] * b.signs[step, None, :]
        short *= (products < threshold).view(np.int8)
        balance = short.sum(axis=0, dtype=np.int8)
        count = np.abs(short, out=short).sum(axis=0, dtype=np.int8)
        accumulator_short = (least < largest) & (most > _NOTHING)
        ulp = np.ldexp(1.0, shared - unit.kept)
        positive = (count + balance) / 2 + (accumulator_short & (total + above > 0))
        negative = (count - balance) / 2 + (accumulator_short & (total - below < 0))
        below += ulp * positive
        above += ulp * negative
        total += a.values[step].T @ b.values[step]
        if not exact:  # this total, the truth's, and that of a kernel in float64
            rounding = np.abs(a.values[step]).T @ np.abs(b.values[step]) * (3 * (stop - start) * 2.0**-53)
            below += rounding
            above += rounding
        high, low = total + above, total - below
        below += np.maximum(high, 0) * 2.0**-unit.mantissa + _SMALLEST  # the sum, truncated
        above += np.maximum(-low, 0) * 2.0**-unit.mantissa + _SMALLEST
    return total, below, above


def _exponent(x: np.ndarray) -> np.ndarray:
    """floor(log2 x), int32; of what is not positive, less than any."""
    return np.where(x > 0, np.frexp(x)[1] - 1, _NOTHING)


def _limit(format: Format) -> float:
    """The least magnitude that overflows: halfway from the largest number to the next."""
    assert format.maximum is not None
    return format.maximum + float(np.ldexp(0.25, np.frexp(format.maximum)[1] - _FRACTION_BITS[format]))


def _host(x: Any) -> np.ndarray:
    """`x` as numpy, from wherever it is."""
    if library_of(x) == "numpy":
        return x
    from kingpost.arrays import view

    return view(x.detach().cpu()).numpy()
