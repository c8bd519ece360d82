"""The product as it should be, in float64, and how far from it a correct kernel may be.

The bound is a proof, not a tolerance. It follows the coarsest arithmetic in use, Hopper's tensor cores, through the
operands at hand and counts what each truncation can lose: a step adds 32 float8 products to the accumulator, each
truncated to 13 fraction bits below the largest exponent among them, and truncates the sum to 13 mantissa bits; of
bfloat16 it adds 16, truncated to 25 and the sum to 23 (arXiv 2511.10909). Arithmetic that keeps more bits stays within.
Operands are scaled tensors, or bfloat16 arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kingpost import formats
from kingpost.arrays import library_of
from kingpost.formats import BF16, E4M3, E4M3FNUZ, E5M2, F16, F32
from kingpost.scaling import BLOCK, ScaledTensor


class _Unit(NamedTuple):
    """How a tensor core adds: products in a step, fraction bits that it keeps of each, mantissa bits of the sum; and
    how exponents are stored here: their type, and that of a zero, which with any other's lies below every product's."""

    step: int
    kept: int
    mantissa: int
    type: type
    zero: int


_FLOAT8, _BFLOAT16 = _Unit(32, 13, 13, np.int8, -60), _Unit(16, 25, 23, np.int16, -1000)
_FRACTION_BITS = {E4M3: 3, E4M3FNUZ: 3, E5M2: 2, BF16: 7, F16: 10, F32: 23}
_SMALLEST_EXPONENT = {E4M3: -6, E4M3FNUZ: -7, E5M2: -14, BF16: -126, F16: -14, F32: -126}
_OUT_FORMATS = BF16, F16, F32
STEP = 32  # of K that share a scale in "1x32:ue8m0"
_NOTHING = -2000  # the exponent of an empty sum
_TILE = 64, 256  # outputs bounded at once, so that the temporaries stay in cache


def truth(a: Any, b: Any, *, alpha: float = 1.0, c: Any = None, bias: Any = None) -> np.ndarray:
    """alpha * a @ b + c + bias in float64 from the exact operands.

    a: [M, K], b: [K, N] (a weight [N, K] goes in as w.T); scaled tensors, or bfloat16 arrays; numpy or torch. c [M, N]
    and bias [N]: arrays of any float format. Returns float64 [M, N], on the host. Raises ValueError if they do not
    multiply: rank, K, or scales that change within a block of K.

    The sums of e4m3 codes over 128 of K are exact, as are the products of two scales. So what cancels within a block
    gives 0, and the bound need not allow for roundings of scaled codes that do not quite cancel.
    """
    left, right, span = _operands(a, b)
    total = np.zeros((left.values.shape[1], right.values.shape[1]))
    for block in range(len(left.scales)):
        k = slice(block * span, (block + 1) * span)
        total += (left.values[k].T @ right.values[k]) * (left.scales[block, :, None] * right.scales[block])
    total *= np.float32(alpha)
    for added in (c, bias):
        if added is not None:
            total += formats.decode(_host(added), dtype=np.float64)
    return total


def bound(a: Any, b: Any, out_format: Any = BF16, *, alpha: float = 1.0, c: Any = None, bias: Any = None) -> np.ndarray:
    """How far each element of a correct product may be from `truth(a, b, ...)`: float64 [M, N].

    a, b, alpha, c, bias: as for truth. out_format: bfloat16, float16 or float32, to which the result was rounded. Holds
    for any kernel that sums blocks of K exactly or on tensor cores, and promotes them to float32 in any order, scales
    before or after. Takes some three nanoseconds for each of the M * N * K products: of a large problem, bound some
    rows.
    """
    target = formats.named(out_format)
    if target not in _OUT_FORMATS:
        raise ValueError(f"out_format is {target}; wanted {' or '.join(map(str, _OUT_FORMATS))}")
    left, right, span = _operands(a, b)
    rows, columns = left.values.shape[1], right.values.shape[1]
    total, lost = np.zeros((2, rows, columns))
    for m in range(0, rows, _TILE[0]):
        for n in range(0, columns, _TILE[1]):
            tile = slice(m, m + _TILE[0]), slice(n, n + _TILE[1])
            total[tile], lost[tile] = _bound_tile(left.cut(tile[0]), right.cut(tile[1]), span)
    total, lost = total * np.float32(alpha), lost * abs(np.float32(alpha))
    reach = np.abs(total) + lost
    for added in (c, bias):
        if added is not None:
            values = formats.decode(_host(added), dtype=np.float64)
            total, reach = total + values, reach + np.abs(values)
    # each of up to three steps is rounded to float32: 2^-24 of less than reach
    lost = (lost + 3 * (reach * 2.0**-24 + 2.0**-150)) * (1 + 2.0**-16)
    exponent = np.maximum(_exponent(np.abs(total) + lost), _SMALLEST_EXPONENT[target])
    return lost + np.ldexp(0.5, exponent - _FRACTION_BITS[target])


def check(result: Any, a: Any, b: Any, *, alpha: float = 1.0, c: Any = None, bias: Any = None) -> float:
    """The largest error of `result` as a share of its bound: from 0 to 1.

    result: bfloat16, float16 or float32 [M, N], numpy or torch, what some product of a and b gave. Raises ValueError,
    with the worst place, if an element lies outside its bound.
    """
    codes = _host(result)
    finish = {"alpha": alpha, "c": c, "bias": bias}
    want, allowed = truth(a, b, **finish), bound(a, b, codes.dtype, **finish)
    if codes.shape != want.shape:
        raise ValueError(f"result has shape {codes.shape}; wanted {want.shape}")
    if not codes.size:
        return 0.0
    values = formats.decode(codes, dtype=np.float64)
    nearest = formats.decode(formats.cast(want, codes.dtype), dtype=np.float64)
    equal = (values == nearest) | (np.isnan(values) & np.isnan(nearest))  # infinities and NaN have no error to measure
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(values - want) / allowed
    ratio[~np.isfinite(ratio)] = np.inf
    ratio[equal & ~np.isfinite(values)] = 0
    ratio[values == want] = 0
    worst = np.unravel_index(np.argmax(ratio), ratio.shape)
    if ratio[worst] > 1:
        raise ValueError(
            f"result at {tuple(map(int, worst))} is {values[worst]:.9g}; wanted {want[worst]:.9g} within "
            f"{allowed[worst]:.3g} ({np.count_nonzero(ratio > 1)} of {ratio.size} elements are outside their bound)"
        )
    return float(ratio[worst])


class _Operand(NamedTuple):
    """The rows of one operand, K first."""

    values: np.ndarray  # float64 [K, rows], codes without scales
    exponents: np.ndarray  # [K, rows], as a tensor core sees them: subnormals keep the smallest
    signs: np.ndarray  # int8 [K, rows]: -1, 0 or 1
    scales: np.ndarray  # float64 [blocks of K, rows]
    fraction_bits: int
    unit: _Unit

    def cut(self, rows: slice) -> _Operand:
        """Some of the rows."""
        return self._replace(**{name: getattr(self, name)[:, rows] for name in self._fields[:4]})


def _operands(a: Any, b: Any) -> tuple[_Operand, _Operand, int]:
    """a and b.T as operands, and how many of K share a scale."""
    for name, t in (("a", a), ("b", b)):
        if len(t.shape) != 2:
            raise ValueError(f"{name} has shape {tuple(t.shape)}; wanted two dimensions")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a is {tuple(a.shape)} and b {tuple(b.shape)}; wanted [M, K] and [K, N] with one K")
    scaled = [isinstance(t, ScaledTensor) for t in (a, b)]
    if scaled[0] != scaled[1]:
        raise TypeError("one of a and b is a ScaledTensor; both or neither are wanted")
    if not scaled[0]:
        span = max(a.shape[1], 1)
    else:
        spans = {t.scaling.block[along] for t, along in ((a, 1), (b, 0))}
        if not (spans <= {BLOCK, None} or spans == {STEP}):
            raise ValueError(
                f"a is scaled {a.scaling} and b {b.scaling}; wanted one scale for each {BLOCK} of K, or for all of it, "
                f"or for each {STEP} on both sides"
            )
        span = STEP if spans == {STEP} else BLOCK
    return _operand(a, "a"), _operand(b.T, "b"), span


def _operand(t: Any, name: str) -> _Operand:
    """[rows, K] as an _Operand."""
    if isinstance(t, ScaledTensor):
        format, unit, codes = t.format, _FLOAT8, _host(t.data)
        scales = t.scaling.by_block(_host(t.scales), t.shape).astype(np.float64)
    else:
        codes = _host(t)
        format, unit = formats.of(codes.dtype), _BFLOAT16
        if format is not BF16:
            raise TypeError(f"{name} is {format}; wanted bfloat16, or a ScaledTensor")
        scales = np.ones((len(codes), min(codes.shape[1], 1)))
    values = np.ascontiguousarray(formats.decode(codes, dtype=np.float64).T)
    exponents = np.maximum(_exponent(np.abs(values)), _SMALLEST_EXPONENT[format])
    exponents[values == 0] = unit.zero
    signs = np.nan_to_num(np.sign(values)).astype(np.int8)
    return _Operand(values, exponents.astype(unit.type), signs, scales.T, _FRACTION_BITS[format], unit)


def _bound_tile(a: _Operand, b: _Operand, span: int) -> tuple[np.ndarray, np.ndarray]:
    """The exact product of one tile, and its bound: what its blocks lose, scaled, and what promotion rounds."""
    blocks = a.scales.shape[0]
    total, reach, below, above = np.zeros((4, a.values.shape[1], b.values.shape[1]))
    for block in range(blocks):
        exact, block_below, block_above = _block_loss(a, b, block * span, span)
        scale = a.scales[block, :, None] * b.scales[block, None, :]
        total += exact * scale
        reach += (np.abs(exact) + np.maximum(block_below, block_above)) * np.abs(scale)
        below += np.where(scale > 0, block_below, block_above) * np.abs(scale)
        above += np.where(scale > 0, block_above, block_below) * np.abs(scale)
    # each block's partial, scale and sum are rounded to float32: 2^-24 of less than reach, or 2^-150 if subnormal
    lost = np.maximum(below, above) + (blocks + 3) * (reach * 2.0**-24 + 2.0**-150)
    return total, lost * (1 + 2.0**-16)  # the roundings of roundings


def _block_loss(a: _Operand, b: _Operand, start: int, span: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The exact sum of the block of K at `start`, without scales, and how far below and above it truncation may end.

    Truncation is toward zero: it moves a sum down by what its positive addends lose, up by what its negative ones do.
    """
    unit, limits = a.unit, np.iinfo(a.unit.type)
    total, below, above = np.zeros((3, a.values.shape[1], b.values.shape[1]))
    product_bits = a.fraction_bits + b.fraction_bits
    for k in range(start, min(start + span, len(a.values)), unit.step):
        step = slice(k, min(k + unit.step, start + span))
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
        high, low = total + above, total - below
        below += np.maximum(high, 0) * 2.0**-unit.mantissa  # the sum, truncated
        above += np.maximum(-low, 0) * 2.0**-unit.mantissa
    return total, below, above


def _exponent(x: np.ndarray) -> np.ndarray:
    """floor(log2 x), int32; of what is not positive, less than any."""
    return np.where(x > 0, np.frexp(x)[1] - 1, _NOTHING)


def _host(x: Any) -> np.ndarray:
    """`x` as numpy, from wherever it is."""
    if library_of(x) == "numpy":
        return x
    from kingpost.arrays import view

    return view(x.detach().cpu()).numpy()
