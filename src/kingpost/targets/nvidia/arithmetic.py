"""What Hopper's tensor cores (wgmma) compute into float32 and float16, bit for bit.

The model is T-FDPA ("truncated fused dot-product-add") of arXiv 2511.10909. Operands are significand * 2^exponent,
1 <= |significand| < 2; subnormals keep the smallest normal exponent. A product has the sum of its operands' exponents
(its significand, below 4, is not normalised). Within one instruction step every addend, the accumulator too, is
truncated toward zero to F fraction bits relative to 2^(largest exponent of the step); these integers are summed
exactly; and the sum is truncated to a number of mantissa bits:

operands             products in a step    F     mantissa bits of a float32 sum
e4m3, e5m2           32                    13    13
bfloat16, float16    16                    25    23, float32 subnormals kept

A float16 sum is rounded to nearest even instead, once, subnormals kept; there the largest exponent of a step counts as
-21 at least.

Zeros have no exponent and come out as +0, NaN as 0x7fffffff (float16: 0x7fff), sums beyond the largest number as
infinity, and an infinite accumulator stays infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from kingpost import formats
from kingpost.formats import BF16, E4M3, E5M2, F16, F32, Format, converted
from kingpost.targets.promoted import promoted

STEP_BYTES = 32  # of K, of each operand, in one instruction
_FP8_FRACTION_BITS, _HALF_FRACTION_BITS = 13, 25

_NO_PRODUCT = -40  # an fp8 product of two non-zeros has at least exponent -28 (e5m2), one with a zero at most -49
_LEAST = -133  # what addends of 16-bit operands are aligned to at least: the exponent of a zero accumulator
_LEAST_F16 = -21  # the same for float16 accumulators, whatever the operands
_TILE = 8192  # outputs computed at once: their products take 1 MiB, about what a core has in its second cache


class _Operand(NamedTuple):
    """One operand's rows, K first, ready to multiply. special: whether NaN or infinity was there (now zero)."""

    values: np.ndarray  # [K, rows]
    exponents: np.ndarray  # [K, rows]
    exact: np.ndarray  # [K, rows], NaN and infinities kept
    special: bool


class _Scratch(NamedTuple):
    """Where a tile's products and their exponents go, [step, height, width]: reused, since fresh pages are slow."""

    products: np.ndarray
    exponents: np.ndarray


class _Unit(NamedTuple):
    """How the products of some formats are added. zero: the exponent of a zero operand, of which two still fit."""

    step: int  # products in one instruction step
    values: type  # in which they are exact
    exponents: type
    zero: int
    total: Format  # of accumulators and sums
    add: Callable[[list[np.ndarray], list[np.ndarray], np.ndarray, _Scratch], np.ndarray]


def wgmma_step(
    a_codes: np.ndarray,
    b_codes: np.ndarray,
    c: np.ndarray | None = None,
    a_format: Format = E4M3,
    b_format: Format = E4M3,
    d_format: Format = F32,
) -> np.ndarray:
    """One step of wgmma: c + a @ b.T, as the hardware rounds it.

    a_codes: [M, step], b_codes: [N, step], any strides: uint8 and 32 for E4M3 and E5M2, which may be mixed, or uint16
    and 16 for BF16 and F16, which may not. c: [M, N] of d_format, None for zero. d_format: F32, or, but for BF16, F16.
    Returns a new [M, N] of d_format. M and N are free, since each output depends on its own row and column alone.
    """
    step = _unit(a_format, b_format, d_format).step
    if a_codes.shape[1:] != (step,) or b_codes.shape[1:] != (step,):
        raise ValueError(f"a_codes are {a_codes.shape}, b_codes {b_codes.shape}; wanted [M, {step}] and [N, {step}]")
    return chain(a_codes, b_codes, c, a_format, b_format, d_format)


def wgmma_f32(
    a_codes: np.ndarray,
    b_codes: np.ndarray,
    c: np.ndarray | None = None,
    a_format: Format = E4M3,
    b_format: Format = E4M3,
) -> np.ndarray:
    """`wgmma_step` with float32 accumulators."""
    return wgmma_step(a_codes, b_codes, c, a_format, b_format)


def chain(
    a_codes: np.ndarray,
    b_codes: np.ndarray,
    c: np.ndarray | None = None,
    a_format: Format = E4M3,
    b_format: Format = E4M3,
    d_format: Format = F32,
) -> np.ndarray:
    """c + a @ b.T by a chain of steps over all of K, ascending.

    a_codes: [M, K], b_codes: [N, K], any K (zeros fill the last step); else as for `wgmma_step`. Returns a new [M, N]
    of d_format.
    """
    unit = _unit(a_format, b_format, d_format)
    return _chain(unit, _operand(unit, a_codes, a_format), _operand(unit, b_codes, b_format), c)


def chain_bf16(a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> np.ndarray:
    """c + a @ b.T for bfloat16 a [M, K] and b [N, K] (or their codes, uint16) by one chain over K: what every Hopper
    kernel must give, bit for bit. c: float32 [M, N], None for zero. Returns a new float32 [M, N]."""
    return chain(a.view(np.uint16), b.view(np.uint16), c, BF16, BF16)


def block_product(
    a_codes: np.ndarray, b_codes: np.ndarray, a_format: Format = E4M3, b_format: Format = E4M3
) -> np.ndarray:
    """a @ b.T from zero, for codes uint8 [M, K] and [N, K], any K. Returns float32 [M, N]."""
    return chain(a_codes, b_codes, None, a_format, b_format)


def promoted_product(
    a_codes: np.ndarray,
    a_scales: np.ndarray,
    b_codes: np.ndarray,
    b_scales: np.ndarray,
    a_format: Format = E4M3,
    b_format: Format = E4M3,
) -> np.ndarray:
    """The block-scaled product: what every Hopper kernel must give, bit for bit.

    a_codes: uint8 [M, K], a_scales: float32 [M, ceil(K/128)]; b_codes: uint8 [N, K], b_scales: float32
    [N, ceil(K/128)] (a "128x128" scaling expanded along N). Returns float32 [M, N]: for each 128-block of K, ascending,
    total = fma(block_product, rn32(a_scale * b_scale), total).
    """

    def product(a_block: np.ndarray, b_block: np.ndarray) -> np.ndarray:
        return block_product(a_block, b_block, a_format, b_format)

    return promoted(product, a_codes, a_scales, b_codes, b_scales)


def _unit(a_format: Format, b_format: Format, d_format: Format) -> _Unit:
    for name, format in (("a_format", a_format), ("b_format", b_format)):
        if format not in (E4M3, E5M2, BF16, F16):
            raise ValueError(f"{name} is {format.name}; Hopper multiplies e4m3, e5m2, bfloat16 and float16")
    if a_format is not b_format and (a_format.bits, b_format.bits) != (8, 8):
        raise ValueError(f"a_format is {a_format.name}, b_format {b_format.name}; two of fp8 or the same are wanted")
    if d_format not in (F32, F16) or (a_format, d_format) == (BF16, F16):
        wanted = "float32" if a_format is BF16 else "float32 or float16"
        raise ValueError(f"d_format is {d_format.name}; {wanted} is wanted for {a_format.name}")
    return _UNITS[a_format.bits, d_format]


@cache
def _exponents(format: Format) -> np.ndarray:
    """The exponent of each of a format's codes."""
    unit = _unit(format, format, F32)
    fraction_bits, bias = {E4M3: (3, 7), E5M2: (2, 15), BF16: (7, 127), F16: (10, 15)}[format]
    magnitudes = np.arange(1 << format.bits) & (1 << format.bits - 1) - 1
    exponents = np.maximum(magnitudes >> fraction_bits, 1) - bias
    exponents[magnitudes == 0] = unit.zero
    return exponents.astype(unit.exponents)


def _operand(unit: _Unit, codes: np.ndarray, format: Format) -> _Operand:
    if codes.dtype != f"u{format.itemsize}" or codes.ndim != 2:
        raise ValueError(f"codes are {codes.dtype} {codes.shape}; wanted uint{format.bits} [rows, K]")
    codes = codes.T
    missing = -codes.shape[0] % unit.step
    if missing:
        codes = np.concatenate([codes, np.zeros((missing, codes.shape[1]), codes.dtype)])
    codes = np.ascontiguousarray(codes)
    exact = formats.decode(codes, format, unit.values)
    finite = np.isfinite(exact)
    special = not finite.all()
    return _Operand(
        np.where(finite, exact, unit.values(0)) if special else exact, _exponents(format).take(codes), exact, special
    )


def _chain(unit: _Unit, a: _Operand, b: _Operand, c: np.ndarray | None) -> np.ndarray:
    """c + a @ b.T over all of K, a step at a time, in tiles that fit the cache."""
    depth, rows = a.values.shape
    columns = b.values.shape[1]
    if b.values.shape[0] != depth:
        raise ValueError(f"a has K = {depth}, b {b.values.shape[0]}; the same K is wanted")
    total = np.zeros((rows, columns), unit.total.dtype) if c is None else np.array(c, unit.total.dtype)
    if total.shape != (rows, columns):
        raise ValueError(f"c is {total.shape}; wanted {(rows, columns)}")
    step = unit.step
    width = max(1, min(columns, 256))
    height = max(1, min(rows, _TILE // width))
    scratch = _Scratch(*(np.empty((step, height, width), type) for type in (unit.values, unit.exponents)))
    for k in range(0, depth, step):
        for m in range(0, rows, height):
            for n in range(0, columns, width):
                tile = total[m : m + height, n : n + width]
                part_a = [x[k : k + step, m : m + height, None] for x in a[:3]]
                part_b = [x[k : k + step, None, n : n + width] for x in b[:3]]
                finite = np.isfinite(tile)
                if a.special or b.special or not finite.all():
                    tile[...] = _special_step(unit, part_a, part_b, tile, finite, scratch)
                else:
                    tile[...] = unit.add(part_a, part_b, tile, scratch)
    return total


def _special_step(
    unit: _Unit, a: list[np.ndarray], b: list[np.ndarray], c: np.ndarray, finite: np.ndarray, scratch: _Scratch
) -> np.ndarray:
    """One step where NaN or infinity may take part: those outputs follow IEEE 754, the others are as ever."""
    with np.errstate(over="ignore", invalid="ignore"):
        ieee = (a[2] * b[2]).sum(axis=0, dtype=np.float64) + c
        ordinary = unit.add(a, b, np.where(finite, c, c.dtype.type(0)), scratch)
        return np.where(np.isfinite(ieee), ordinary, converted(ieee.astype(np.float32), unit.total))


# One step on finite operands: values and exponents of a [step, m, 1] and b [step, 1, n], and c [m, n]


def _add_fp8(a: list[np.ndarray], b: list[np.ndarray], c: np.ndarray, scratch: _Scratch) -> np.ndarray:
    exponents = _largest(a, b, c.shape, scratch)
    alone = exponents < _NO_PRODUCT
    c_exponents = ((c.view(np.int32) >> 23) & 0xFF) - 127
    np.maximum(exponents, c_exponents, out=exponents)
    np.maximum(exponents, _NO_PRODUCT, out=exponents)  # keeps both powers of the sum in the range of normal numbers
    total = _sum_fp8(a, b, c, exponents, scratch)
    if np.count_nonzero(alone):
        total = np.where(alone, c, total)
    total.view(np.int32)[...] &= -1 << (23 - _FP8_FRACTION_BITS)
    total += np.float32(0)  # -0 becomes +0
    return total


def _add_fp8_f16(a: list[np.ndarray], b: list[np.ndarray], c: np.ndarray, scratch: _Scratch) -> np.ndarray:
    exponents = np.maximum(_largest(a, b, c.shape, scratch), _exponents_f16(c))
    return _to_nearest_f16(_sum_fp8(a, b, c.astype(np.float32), exponents, scratch))


def _sum_fp8(
    a: list[np.ndarray], b: list[np.ndarray], c: np.ndarray, exponents: np.ndarray, scratch: _Scratch
) -> np.ndarray:
    """Exact in float32: products have 8 significant bits, the truncated addends are integers that sum to less than
    2^21."""
    products = _products(a, b, scratch)
    to_integers = _power_of_two(_FP8_FRACTION_BITS - exponents)
    np.multiply(products, to_integers, out=products)
    total = np.trunc(products, out=products).sum(axis=0)
    total += np.trunc(c * to_integers)
    with np.errstate(over="ignore"):
        total *= _power_of_two(exponents - _FP8_FRACTION_BITS)
    return total


def _add_half(a: list[np.ndarray], b: list[np.ndarray], c: np.ndarray, scratch: _Scratch) -> np.ndarray:
    exponents = _largest(a, b, c.shape, scratch)
    c_exponents = np.maximum((c.view(np.int32) >> 23) & 0xFF, 1) - 127
    np.maximum(exponents, np.where(c == 0, _LEAST, c_exponents), out=exponents)
    return _toward_zero(_sum_half(a, b, c, exponents, scratch))


def _add_half_f16(a: list[np.ndarray], b: list[np.ndarray], c: np.ndarray, scratch: _Scratch) -> np.ndarray:
    exponents = np.maximum(_largest(a, b, c.shape, scratch), _exponents_f16(c))
    return _to_nearest_f16(_sum_half(a, b, c, exponents, scratch))


def _sum_half(
    a: list[np.ndarray], b: list[np.ndarray], c: np.ndarray, exponents: np.ndarray, scratch: _Scratch
) -> np.ndarray:
    """Exact in float64: products have 16 significant bits (float16: 22), the truncated addends are integers that sum to
    less than 2^32."""
    products = _products(a, b, scratch)
    to_integers = np.ldexp(1.0, _HALF_FRACTION_BITS - exponents)
    np.multiply(products, to_integers, out=products)
    total = np.trunc(products, out=products).sum(axis=0)
    total += np.trunc(c * to_integers)
    total *= np.ldexp(1.0, exponents - _HALF_FRACTION_BITS)
    return total


def _largest(a: list[np.ndarray], b: list[np.ndarray], shape: tuple[int, ...], scratch: _Scratch) -> np.ndarray:
    """The largest exponent of each output's products, int32."""
    return np.add(a[1], b[1], out=scratch.exponents[:, : shape[0], : shape[1]]).max(axis=0).astype(np.int32)


def _products(a: list[np.ndarray], b: list[np.ndarray], scratch: _Scratch) -> np.ndarray:
    return np.multiply(a[0], b[0], out=scratch.products[:, : a[0].shape[1], : b[0].shape[2]])


def _exponents_f16(c: np.ndarray) -> np.ndarray:
    """The exponents of float16 accumulators."""
    exponents = np.maximum((c.view(np.int16) >> 10) & 0x1F, 1).astype(np.int32) - 15
    return np.where(c == 0, _LEAST_F16, exponents)


def _to_nearest_f16(x: np.ndarray) -> np.ndarray:
    """`x` as float16, to nearest even; 65520 and beyond as infinity, -0 as +0."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16) + np.float16(0)


def _toward_zero(x: np.ndarray) -> np.ndarray:
    """float64 `x` (overwritten) as float32, truncated; 2^128 and beyond as infinity, -0 as +0."""
    x.view(np.int64)[...] &= -1 << 29  # the mantissa bits that float32 lacks
    subnormal = np.abs(x) < 2.0**-126
    if np.count_nonzero(subnormal & (x != 0)):
        x[subnormal] = np.ldexp(np.trunc(np.ldexp(x[subnormal], 149)), -149)
    with np.errstate(over="ignore"):
        return x.astype(np.float32) + np.float32(0)


_UNITS = {
    (8, F32): _Unit(STEP_BYTES, np.float32, np.int8, -64, F32, _add_fp8),
    (8, F16): _Unit(STEP_BYTES, np.float32, np.int8, -64, F16, _add_fp8_f16),
    (16, F32): _Unit(STEP_BYTES // 2, np.float64, np.int16, -1024, F32, _add_half),
    (16, F16): _Unit(STEP_BYTES // 2, np.float64, np.int16, -1024, F16, _add_half_f16),
}


def _power_of_two(exponents: np.ndarray) -> np.ndarray:
    """2^exponents as float32, for exponents of normal numbers."""
    return ((exponents + 127) << 23).view(np.float32)
