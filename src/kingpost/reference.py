"""The product as it should be, in float64, and how far from it a correct kernel may be.

The bound is a proof, not a tolerance. It follows the coarsest arithmetic in use, Hopper's FP8 tensor cores, through the
operands at hand and counts what each truncation can lose: a step adds 32 products to the accumulator, each truncated
to 13 fraction bits below the largest exponent among them, and truncates the sum to 13 mantissa bits (arXiv 2511.10909).
Arithmetic that keeps more bits stays within it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kingpost import formats
from kingpost.arrays import library_of
from kingpost.formats import BF16, E4M3, E4M3FNUZ, E5M2, F32, Format
from kingpost.scaling import BLOCK, ScaledTensor

STEP = 32  # products that one tensor-core step adds

_KEPT = 13  # fraction bits that a step keeps
_FRACTION_BITS = {E4M3: 3, E4M3FNUZ: 3, E5M2: 2, BF16: 7, F32: 23}
_SMALLEST_EXPONENT = {E4M3: -6, E4M3FNUZ: -7, E5M2: -14, BF16: -126, F32: -126}
_ZERO = -60  # the exponent of a zero: with any other's it still fits int8 and lies below every product's
_NOTHING = -2000  # the exponent of an empty sum
_TILE = 64, 256  # outputs bounded at once, so that the temporaries stay in cache


def truth(a: ScaledTensor, b: ScaledTensor) -> np.ndarray:
    """a @ b in float64 from the exact operands.

    a: [M, K], b: [K, N] (a weight [N, K] goes in as w.T); numpy or torch. Returns float64 [M, N], on the host. Raises
    ValueError if they do not multiply: rank, K, or scales that change within a 128-block of K.

    The sums of e4m3 codes over 128 of K are exact, as are the products of two scales. So what cancels within a block
    gives 0, and the bound need not allow for roundings of scaled codes that do not quite cancel.
    """
    _check(a, b)
    (left, left_scales), (right, right_scales) = _codes(a), _codes(b.T)
    total = np.zeros((len(left), len(right)))
    for block in range(left_scales.shape[1]):
        k = slice(block * BLOCK, (block + 1) * BLOCK)
        total += (left[:, k] @ right[:, k].T) * (left_scales[:, block, None] * right_scales[None, :, block])
    return total


def bound(a: ScaledTensor, b: ScaledTensor, out_format: Any = BF16) -> np.ndarray:
    """How far each element of a correct product may be from `truth(a, b)`: float64 [M, N].

    a, b: as for truth. out_format: bfloat16 or float32, to which the result was rounded. Holds for any kernel that sums
    128-blocks of K exactly or on tensor cores, and promotes them to float32 in any order, scales before or after. Takes
    some three nanoseconds for each of the M * N * K products: of a large problem, bound some rows.
    """
    target = formats.named(out_format)
    if target not in (BF16, F32):
        raise ValueError(f"out_format is {target}; wanted bfloat16 or float32")
    _check(a, b)
    left, right = _operand(a), _operand(b.T)
    (rows, _), (_, columns) = a.shape, b.shape
    allowed = np.zeros((rows, columns))
    for m in range(0, rows, _TILE[0]):
        for n in range(0, columns, _TILE[1]):
            tile = slice(m, m + _TILE[0]), slice(n, n + _TILE[1])
            allowed[tile] = _bound_tile(left.cut(tile[0]), right.cut(tile[1]), target)
    return allowed


def check(result: Any, a: ScaledTensor, b: ScaledTensor) -> float:
    """The largest error of `result` as a share of its bound: from 0 to 1.

    result: bfloat16 or float32 [M, N], numpy or torch, what some product of a and b gave. Raises ValueError, with the
    worst place, if an element lies outside its bound.
    """
    codes = _host(result)
    want, allowed = truth(a, b), bound(a, b, codes.dtype)
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
    exponents: np.ndarray  # int8 [K, rows], as a tensor core sees them: subnormals keep the smallest
    signs: np.ndarray  # int8 [K, rows]: -1, 0 or 1
    scales: np.ndarray  # float64 [blocks of K, rows]
    fraction_bits: int

    def cut(self, rows: slice) -> _Operand:
        """Some of the rows."""
        return self._replace(**{name: getattr(self, name)[:, rows] for name in self._fields[:4]})


def _operand(t: ScaledTensor) -> _Operand:
    """[rows, K] as an _Operand."""
    codes, scales = _codes(t)
    values = np.ascontiguousarray(codes.T)
    exponents = np.maximum(_exponent(np.abs(values)), _SMALLEST_EXPONENT[t.format])
    exponents[values == 0] = _ZERO
    signs = np.nan_to_num(np.sign(values)).astype(np.int8)
    return _Operand(values, exponents.astype(np.int8), signs, scales.T, _FRACTION_BITS[t.format])


def _bound_tile(a: _Operand, b: _Operand, out_format: Format) -> np.ndarray:
    """The bound of one tile: what its blocks lose, scaled, what promotion rounds, and the rounding to out_format."""
    blocks = a.scales.shape[0]
    total, reach, below, above = np.zeros((4, a.values.shape[1], b.values.shape[1]))
    for block in range(blocks):
        exact, block_below, block_above = _block_loss(a, b, block * BLOCK)
        scale = a.scales[block, :, None] * b.scales[block, None, :]
        total += exact * scale
        reach += (np.abs(exact) + np.maximum(block_below, block_above)) * np.abs(scale)
        below += np.where(scale > 0, block_below, block_above) * np.abs(scale)
        above += np.where(scale > 0, block_above, block_below) * np.abs(scale)
    # each block's partial, scale and sum are rounded to float32: 2^-24 of less than reach, or 2^-150 if subnormal
    lost = np.maximum(below, above) + (blocks + 3) * (reach * 2.0**-24 + 2.0**-150)
    lost *= 1 + 2.0**-16  # the roundings of roundings
    exponent = np.maximum(_exponent(np.abs(total) + lost), _SMALLEST_EXPONENT[out_format])
    return lost + np.ldexp(0.5, exponent - _FRACTION_BITS[out_format])


def _block_loss(a: _Operand, b: _Operand, start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The exact sum of the block of K at `start`, without scales, and how far below and above it truncation may end.

    Truncation is toward zero: it moves a sum down by what its positive addends lose, up by what its negative ones do.
    """
    total, below, above = np.zeros((3, a.values.shape[1], b.values.shape[1]))
    product_bits = a.fraction_bits + b.fraction_bits
    for k in range(start, min(start + BLOCK, len(a.values)), STEP):
        step = slice(k, k + STEP)
        products = a.exponents[step, :, None] + b.exponents[step, None, :]
        largest = products.max(axis=0).astype(np.int32)
        spread = np.maximum(below, above)
        most, least = _exponent(np.abs(total) + spread), _exponent(np.abs(total) - spread)  # of the accumulator
        shared = np.maximum(largest, most)
        # a product's last bit is product_bits below its exponent: only these reach below the last bit kept
        threshold = np.clip(shared - _KEPT + product_bits, -128, 127).astype(np.int8)
        short = a.signs[step, :, None] * b.signs[step, None, :]
        short *= (products < threshold).view(np.int8)
        balance = short.sum(axis=0, dtype=np.int8)
        count = np.abs(short, out=short).sum(axis=0, dtype=np.int8)
        accumulator_short = (least < largest) & (most > _NOTHING)
        ulp = np.ldexp(1.0, shared - _KEPT)
        positive = (count + balance) / 2 + (accumulator_short & (total + above > 0))
        negative = (count - balance) / 2 + (accumulator_short & (total - below < 0))
        below += ulp * positive
        above += ulp * negative
        total += a.values[step].T @ b.values[step]
        high, low = total + above, total - below
        below += np.maximum(high, 0) * 2.0**-_KEPT  # the sum, truncated
        above += np.maximum(-low, 0) * 2.0**-_KEPT
    return total, below, above


def _exponent(x: np.ndarray) -> np.ndarray:
    """floor(log2 x), int32; of what is not positive, less than any."""
    return np.where(x > 0, np.frexp(x)[1] - 1, _NOTHING)


def _codes(t: ScaledTensor) -> tuple[np.ndarray, np.ndarray]:
    """The values of the codes, float64 [rows, K], and of the scales, float64 [rows, blocks of K]."""
    scales = t.scaling.by_block(_host(t.scales).astype(np.float64), t.shape)
    return formats.decode(_host(t.data), dtype=np.float64), scales


def _check(a: ScaledTensor, b: ScaledTensor) -> None:
    for name, t, along_k in (("a", a, 1), ("b", b, 0)):
        if len(t.shape) != 2:
            raise ValueError(f"{name} has shape {t.shape}; wanted two dimensions")
        if t.scaling.block[along_k] not in (BLOCK, None):
            raise ValueError(f"{name} is scaled {t.scaling}; wanted one scale for each {BLOCK} of K, or for all of it")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a is {a.shape} and b {b.shape}; wanted [M, K] and [K, N] with one K")


def _host(x: Any) -> np.ndarray:
    """`x` as numpy, from wherever it is."""
    if library_of(x) == "numpy":
        return x
    from kingpost.arrays import view

    return view(x.detach().cpu()).numpy()
