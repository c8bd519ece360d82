"""What Blackwell's tensor cores (tcgen05.mma) compute into float32, bit for bit as far as the public model goes.

The model is T-FDPA of arXiv 2511.10909, as mmasim 2.1.1 has it for "Blackwell", with 25 fraction bits and 32 bytes of K
to a step (32 products of 8 bits, 16 of 16). Operands are significand * 2^exponent, 1 <= |significand| < 2; subnormals
keep the smallest normal exponent. A product has the sum of its operands' exponents. Within a step every addend, the
accumulator too, is truncated toward zero to 25 fraction bits relative to 2^(largest exponent of the step, at least
-133); these integers are summed exactly; and the sum is rounded toward zero to float32, subnormals kept. Zeros come out
as +0, NaN as 0x7fffffff, sums of 2^128 and more as infinity.

Block-scaled products (ST-FDPA) differ in one thing: the exponents of both scales (E8M0) count with each product's.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from kingpost import formats
from kingpost.formats import BF16, E4M3, E5M2, F16, UE8M0, Format, canonical_nan
from kingpost.targets.promoted import promoted

STEP_BYTES = 32  # of K, of each operand, in one instruction
SCALED = 32  # elements of K that share a scale
FRACTION_BITS = 25
SMALLEST_EXPONENTS = {E4M3: -6, E5M2: -14, F16: -14, BF16: -126}  # of normal numbers

_LEAST = -133  # the exponent that a step's addends are aligned to at least
_ZERO = -2048  # the exponent of a zero operand: its products lie below every other
_AT_ONCE = 1 << 17  # products computed at once: as much as a core has cache for


class _Operand(NamedTuple):
    """Rows of K, scaled: exact float64 values, their exponents, the values with NaN and infinity made zero, and whether
    there were none of those."""

    exact: np.ndarray
    exponents: np.ndarray
    finite: np.ndarray
    ordinary: bool

    def part(self, at: Any) -> _Operand:
        return _Operand(self.exact[at], self.exponents[at], self.finite[at], self.ordinary)


def tcgen05_f32(
    a_codes: np.ndarray,
    b_codes: np.ndarray,
    c: np.ndarray | None = None,
    a_format: Format = E4M3,
    b_format: Format = E4M3,
    a_scales: np.ndarray | None = None,
    b_scales: np.ndarray | None = None,
) -> np.ndarray:
    """c + a @ b.T by a chain of tcgen05.mma, as the hardware rounds it.

    a_codes: [M, K], b_codes: [N, K], unsigned integers of the formats' width (E4M3 and E5M2, or F16 or BF16); K fills
    whole steps. c: float32 [M, N], None for zero. a_scales: UE8M0 codes, uint8 [M, K/32], b_scales [N, K/32], both or
    neither. Returns a new float32 [M, N].
    """
    (rows, depth), (columns, other) = a_codes.shape, b_codes.shape
    step = STEP_BYTES // a_format.itemsize
    if depth != other or depth % step:
        raise ValueError(f"a_codes are {a_codes.shape}, b_codes {b_codes.shape}; equal K, a multiple of {step}, wanted")
    total = np.zeros((rows, columns), np.float32) if c is None else np.array(c, np.float32)
    if total.shape != (rows, columns):
        raise ValueError(f"c is {total.shape}; wanted {(rows, columns)}")
    a, b = _operand(a_codes, a_format, a_scales), _operand(b_codes, b_format, b_scales)
    height = max(1, _AT_ONCE // (columns * step))
    for k in range(0, depth, step):
        part_b = b.part(np.s_[None, :, k : k + step])
        for m in range(0, rows, height):
            part_a = a.part(np.s_[m : m + height, None, k : k + step])
            total[m : m + height] = _step(part_a, part_b, total[m : m + height])
    return total


def block_product(
    a_codes: np.ndarray, b_codes: np.ndarray, a_format: Format = E4M3, b_format: Format = E4M3
) -> np.ndarray:
    """a @ b.T from zero: uint8 [M, K] and [N, K], any K (zeros fill the last step). Returns float32 [M, N]."""
    return tcgen05_f32(_padded(a_codes), _padded(b_codes), None, a_format, b_format)


def promoted_product(
    a_codes: np.ndarray,
    a_scales: np.ndarray,
    b_codes: np.ndarray,
    b_scales: np.ndarray,
    a_format: Format = E4M3,
    b_format: Format = E4M3,
) -> np.ndarray:
    """The block-scaled product with float32 scales for every 128 of K, promoted outside the tensor core.

    a_codes: uint8 [M, K], a_scales: float32 [M, ceil(K/128)]; b_codes: uint8 [N, K], b_scales: [N, ceil(K/128)].
    Returns float32 [M, N]: for each 128-block of K, ascending, total = fma(partial, rn32(a_scale * b_scale), total).
    """

    def product(a_block: np.ndarray, b_block: np.ndarray) -> np.ndarray:
        return block_product(a_block, b_block, a_format, b_format)

    return promoted(product, a_codes, a_scales, b_codes, b_scales)


def _padded(codes: np.ndarray) -> np.ndarray:
    return np.pad(codes, ((0, 0), (0, -codes.shape[1] % STEP_BYTES)))


def _operand(codes: np.ndarray, format: Format, scales: np.ndarray | None) -> _Operand:
    if format not in SMALLEST_EXPONENTS:
        raise ValueError(f"format is {format.name}; one of {', '.join(f.name for f in SMALLEST_EXPONENTS)} is wanted")
    exact, exponents = (table.take(codes) for table in _tables(format))
    if scales is not None:
        if scales.shape != (len(codes), codes.shape[1] // SCALED) or scales.dtype != np.uint8:
            raise ValueError(
                f"scales are {scales.dtype} {scales.shape}; uint8, one for {SCALED} of {codes.shape}, wanted"
            )
        repeated = np.repeat(scales, SCALED, axis=1)
        exact = exact * formats.decode(repeated, UE8M0, np.float64)
        exponents = exponents + (repeated.astype(np.int16) - 127)
    finite = np.isfinite(exact)
    return _Operand(exact, exponents, exact if finite.all() else np.where(finite, exact, 0.0), bool(finite.all()))


@cache
def _tables(format: Format) -> tuple[np.ndarray, np.ndarray]:
    """The value (float64) and the exponent (int16) of every code of a format."""
    codes = np.arange(1 << format.bits, dtype=f"u{format.itemsize}")
    values = formats.decode(codes, format, np.float64)
    exponents = np.maximum(np.frexp(np.nan_to_num(values))[1] - 1, SMALLEST_EXPONENTS[format])
    return values, np.where(values == 0, _ZERO, exponents).astype(np.int16)


def _step(a: _Operand, b: _Operand, c: np.ndarray) -> np.ndarray:
    """One step: operands a [m, 1, step] and b [1, n, step], accumulators c float32 [m, n]."""
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(c)
        ordinary = _finite_step(a, b, np.where(finite, c, np.float32(0)).astype(np.float64))
        if a.ordinary and b.ordinary and finite.all():
            return ordinary
        ieee = (a.exact * b.exact).sum(axis=-1) + c
        return canonical_nan(np.where(np.isfinite(ieee), ordinary, ieee.astype(np.float32)))


def _finite_step(a: _Operand, b: _Operand, c: np.ndarray) -> np.ndarray:
    exponents = (a.exponents + b.exponents).max(axis=-1).astype(np.int32)
    c_exponents = np.where(c == 0, _LEAST, np.maximum(np.frexp(c)[1] - 1, -126))
    largest = np.maximum(np.maximum(exponents, c_exponents), _LEAST)
    to_integers = np.ldexp(1.0, FRACTION_BITS - largest)
    addends = np.trunc(a.finite * b.finite * to_integers[..., None])
    total = (addends.sum(axis=-1) + np.trunc(c * to_integers)) * np.ldexp(1.0, largest - FRACTION_BITS)
    return _toward_zero(total)


def _toward_zero(x: np.ndarray) -> np.ndarray:
    """float64 `x` as float32, truncated; 2^128 and beyond as infinity, -0 as +0."""
    nearest = x.astype(np.float32)
    outward = (np.abs(nearest.astype(np.float64)) > np.abs(x)) & (np.abs(x) < 2.0**128)
    return np.where(outward, np.nextafter(nearest, np.float32(0)), nearest) + np.float32(0)
