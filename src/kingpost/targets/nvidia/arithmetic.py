"""What Hopper's tensor cores compute for FP8 operands, bit for bit.

The model is T-FDPA ("truncated fused dot-product-add") of arXiv 2511.10909, with 13 fraction bits and 32 products to a
step. Operands are significand * 2^exponent, 1 <= |significand| < 2; subnormals keep the smallest normal exponent. A
product has the sum of its operands' exponents (its significand, below 4, is not normalised). Within one k32 step every
addend, the accumulator too, is truncated toward zero to 13 fraction bits relative to 2^(largest exponent of the step);
these integers are summed exactly; and the sum is truncated to 13 mantissa bits. Zeros have no exponent and come out as
+0, NaN as 0x7fffffff, and an infinite accumulator stays infinite.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from kingpost import formats
from kingpost.formats import E4M3, E5M2, Format, canonical_nan
from kingpost.targets.promoted import promoted

STEP = 32  # products in one instruction step
FRACTION_BITS = 13

_ZERO = -64  # the exponent of a zero operand: two of them still fit int8, and lie below every product's
_NO_PRODUCT = -40  # a product of two non-zeros has at least exponent -28 (e5m2), one with a zero at most -49
_TILE = 8192  # outputs computed at once: their products take 1 MiB, about what a core has in its second cache


class _Operand(NamedTuple):
    """One operand's rows, K first, ready to multiply. special: whether NaN or infinity was there (now zero)."""

    values: np.ndarray  # float32 [K, rows]
    exponents: np.ndarray  # int8 [K, rows]
    exact: np.ndarray  # float32 [K, rows], NaN and infinities kept
    special: bool


class _Scratch(NamedTuple):
    """Where a tile's products and their exponents go, [32, height, width]: reused, since fresh pages are slow."""

    products: np.ndarray  # float32
    exponents: np.ndarray  # int8


def wgmma_f32(
    a_codes: np.ndarray,
    b_codes: np.ndarray,
    c: np.ndarray | None = None,
    a_format: Format = E4M3,
    b_format: Format = E4M3,
) -> np.ndarray:
    """One k32 step of wgmma with float32 accumulators: c + a @ b.T, as the hardware rounds it.

    a_codes: uint8 [M, 32], b_codes: uint8 [N, 32], any strides; c: float32 [M, N], None for zero; formats: E4M3 or
    E5M2. Returns a new float32 [M, N]. M and N are free, since each output depends on its own row and column alone.
    """
    if a_codes.shape[1:] != (STEP,) or b_codes.shape[1:] != (STEP,):
        raise ValueError(f"a_codes are {a_codes.shape}, b_codes {b_codes.shape}; wanted [M, {STEP}] and [N, {STEP}]")
    return _chain(_operand(a_codes, a_format), _operand(b_codes, b_format), c)


def block_product(
    a_codes: np.ndarray, b_codes: np.ndarray, a_format: Format = E4M3, b_format: Format = E4M3
) -> np.ndarray:
    """a @ b.T by a chain of k32 steps that starts from zero.

    a_codes: uint8 [M, K], b_codes: uint8 [N, K], any K (zeros fill the last step). Returns float32 [M, N].
    """
    return _chain(_operand(a_codes, a_format), _operand(b_codes, b_format), None)


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


@cache
def _exponents(format: Format) -> np.ndarray:
    """The exponent of each of a format's 256 codes, int8."""
    fraction_bits, bias = {E4M3: (3, 7), E5M2: (2, 15)}[format]
    codes = np.arange(256) & 0x7F
    exponents = np.maximum(codes >> fraction_bits, 1) - bias
    exponents[codes == 0] = _ZERO
    return exponents.astype(np.int8)


def _operand(codes: np.ndarray, format: Format) -> _Operand:
    if format not in (E4M3, E5M2):
        raise ValueError(f"format is {format.name}; Hopper multiplies e4m3 and e5m2")
    if codes.dtype != np.uint8 or codes.ndim != 2:
        raise ValueError(f"codes are {codes.dtype} {codes.shape}; wanted uint8 [rows, K]")
    codes = codes.T
    missing = -codes.shape[0] % STEP
    if missing:
        codes = np.concatenate([codes, np.zeros((missing, codes.shape[1]), np.uint8)])
    codes = np.ascontiguousarray(codes)
    exact = formats.decode(codes, format)
    finite = np.isfinite(exact)
    special = not finite.all()
    return _Operand(
        np.where(finite, exact, np.float32(0)) if special else exact, _exponents(format).take(codes), exact, special
    )


def _chain(a: _Operand, b: _Operand, c: np.ndarray | None) -> np.ndarray:
    """c + a @ b.T over all of K, 32 at a time, in tiles that fit the cache."""
    depth, rows = a.values.shape
    columns = b.values.shape[1]
    total = np.zeros((rows, columns), np.float32) if c is None else np.array(c, np.float32)
    if total.shape != (rows, columns):
        raise ValueError(f"c is {total.shape}; wanted {(rows, columns)}")
    width = max(1, min(columns, 256))
    height = max(1, min(rows, _TILE // width))
    scratch = _Scratch(np.empty((STEP, height, width), np.float32), np.empty((STEP, height, width), np.int8))
    for k in range(0, depth, STEP):
        for m in range(0, rows, height):
            for n in range(0, columns, width):
                tile = total[m : m + height, n : n + width]
                part_a = [x[k : k + STEP, m : m + height, None] for x in a[:3]]
                part_b = [x[k : k + STEP, None, n : n + width] for x in b[:3]]
                finite = np.isfinite(tile)
                if a.special or b.special or not finite.all():
                    tile[...] = _special_step(part_a, part_b, tile, finite, scratch)
                else:
                    tile[...] = _step(part_a, part_b, tile, scratch)
    return total


def _step(a: list[np.ndarray], b: list[np.ndarray], c: np.ndarray, scratch: _Scratch) -> np.ndarray:
    """One step on finite operands: values and exponents of a [32, m, 1] and b [32, 1, n], and c [m, n].

    Every operation here is exact in float32: products have 8 significant bits, and the truncated addends are integers
    that sum to less than 2^21.
    """
    height, width = c.shape
    products, sums = (buffer[:, :height, :width] for buffer in scratch)
    exponents = np.add(a[1], b[1], out=sums).max(axis=0).astype(np.int32)
    alone = exponents < _NO_PRODUCT
    c_exponents = ((c.view(np.int32) >> 23) & 0xFF) - 127
    np.maximum(exponents, c_exponents, out=exponents)
    np.maximum(exponents, _NO_PRODUCT, out=exponents)  # keeps both powers below in the range of normal numbers
    to_integers = _power_of_two(FRACTION_BITS - exponents)
    np.multiply(a[0], b[0], out=products)
    np.multiply(products, to_integers, out=products)
    total = np.trunc(products, out=products).sum(axis=0)
    total += np.trunc(c * to_integers)
    with np.errstate(over="ignore"):
        total *= _power_of_two(exponents - FRACTION_BITS)
    if np.count_nonzero(alone):
        total = np.where(alone, c, total)
    total.view(np.int32)[...] &= -1 << (23 - FRACTION_BITS)
    total += np.float32(0)  # -0 becomes +0
    return total


def _special_step(
    a: list[np.ndarray], b: list[np.ndarray], c: np.ndarray, finite: np.ndarray, scratch: _Scratch
) -> np.ndarray:
    """One step where NaN or infinity may take part: those outputs follow IEEE 754, the others are as ever."""
    with np.errstate(invalid="ignore"):
        ieee = (a[2] * b[2]).sum(axis=0, dtype=np.float64) + c
    ordinary = _step(a, b, np.where(finite, c, np.float32(0)), scratch)
    return canonical_nan(np.where(np.isfinite(ieee), ordinary, ieee.astype(np.float32)))


def _power_of_two(exponents: np.ndarray) -> np.ndarray:
    """2^exponents as float32, for exponents of normal numbers."""
    return ((exponents + 127) << 23).view(np.float32)
