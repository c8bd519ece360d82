"""Portable float32 operations and conversions on vector registers, one element at a time.

A NaN that the arithmetic gives is the chip's own; `one_nan` makes it the portable 0x7fffffff where its bits are seen.
"""

from __future__ import annotations

import struct

from kingpost.formats import Format
from kingpost.targets.amd.lowering import Lowering
from kingpost.targets.amd.lowering_integers import Lowered
from kingpost.targets.amd.machine import Reg, Value

NAN = 0x7FFFFFFF
_HIGH_HALVES = 0x07060302  # v_perm_b32: bytes 3 and 2 of both operands
_LOW_HALVES = 0x05040100


def float_bits(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


def one_nan(e: Lowering, d: Reg, a: Value) -> None:
    """`a`, or 0x7fffffff for any NaN."""
    a, nan = e.in_vector(a), e.in_vector(NAN)
    e.vector("v_cmp_u_f32", "vcc", a, a)
    e.vector("v_cndmask_b32", d, a, nan, "vcc")


def divide(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    """Rounded once: scaled operands, a reciprocal improved twice, the quotient fixed up (CDNA3 ISA, V_DIV_FIXUP_F32;
    the sequence of LLVM's AMDGPU back end with subnormals on)."""
    a, b = e.in_vector(a), e.in_vector(b)
    below, above, inverse, error, quotient = (e.temporary() for _ in range(5))
    unused = e.fresh("s", 2)
    e.vector("v_div_scale_f32", (below, unused), b, b, a)
    e.vector("v_div_scale_f32", (above, "vcc"), a, b, a)
    e.vector("v_rcp_f32", inverse, below)
    negated = e.temporary()
    e.vector("v_xor_b32", negated, 0x80000000, below)
    e.vector("v_fma_f32", error, negated, inverse, "1.0")
    e.vector("v_fma_f32", inverse, error, inverse, inverse)
    e.vector("v_mul_f32", quotient, above, inverse)
    e.vector("v_fma_f32", error, negated, quotient, above)
    e.vector("v_fma_f32", quotient, error, inverse, quotient)
    e.vector("v_fma_f32", error, negated, quotient, above)
    e.vector("v_div_fmas_f32", quotient, error, inverse, quotient, hidden=("vcc",))
    e.vector("v_div_fixup_f32", d, quotient, b, a)


def absolute(e: Lowering, d: Reg, a: Value) -> None:
    e.vector("v_and_b32", d, 0x7FFFFFFF, e.in_vector(a))


def negate(e: Lowering, d: Reg, a: Value) -> None:
    e.vector("v_xor_b32", d, 0x80000000, e.in_vector(a))


def pack_bf16(e: Lowering, d: Reg, low: Value, high: Value) -> None:
    """Rounded to nearest even in integers: half of what is cut off, plus the bit above it. NaN becomes 0x7fff."""
    halves = []
    for half in (low, high):
        half, odd, rounded = e.in_vector(half), e.temporary(), e.temporary()
        e.vector("v_bfe_u32", odd, half, 16, 1)
        e.vector("v_add3_u32", rounded, half, odd, e.in_scalar(0x7FFF))
        e.vector("v_cmp_u_f32", "vcc", half, half)
        e.vector("v_cndmask_b32", rounded, rounded, e.in_vector(NAN), "vcc")
        halves.append(rounded)
    e.vector("v_perm_b32", d, halves[1], halves[0], e.in_scalar(_HIGH_HALVES))


def pack_bf16_in_one(e: Lowering, d: Reg, low: Value, high: Value) -> None:
    """gfx950 converts two at once; the halves of NaN are then set to 0x7fff."""
    low, high, packed, marked = e.in_vector(low), e.in_vector(high), e.temporary(), e.temporary()
    e.vector("v_cvt_pk_bf16_f32", packed, low, high)
    for half, place, nan in ((low, 0x0000FFFF, 0x00007FFF), (high, 0xFFFF0000, 0x7FFF0000)):
        result = packed if half is low else d
        e.vector("v_bfi_b32", marked, e.in_scalar(place), e.in_vector(nan), packed)
        e.vector("v_cmp_u_f32", "vcc", half, half)
        e.vector("v_cndmask_b32", result, packed, marked, "vcc")


def pack_f16(e: Lowering, d: Reg, low: Value, high: Value) -> None:
    """Rounded to nearest even, as the code object asks of the mode; NaN becomes 0x7fff."""
    halves = []
    for half in (low, high):
        half, rounded = e.in_vector(half), e.temporary()
        e.vector("v_cvt_f16_f32", rounded, half)
        e.vector("v_cmp_u_f32", "vcc", half, half)
        e.vector("v_cndmask_b32", rounded, rounded, e.in_vector(0x7FFF), "vcc")
        halves.append(rounded)
    e.vector("v_perm_b32", d, halves[1], halves[0], e.in_scalar(_LOW_HALVES))


def pack_float8(e: Lowering, d: Reg, *values: Value, format: Format) -> None:
    """Clamped first, since the conversion itself overflows to NaN; a NaN passes the clamp as 0x7fffffff."""
    assert format.maximum is not None
    clamped, packed = [], e.temporary()
    largest, smallest = e.in_scalar(float_bits(format.maximum)), e.in_vector(float_bits(-format.maximum))
    for value in values:
        value, within = e.in_vector(value), e.temporary()
        e.vector("v_med3_f32", within, value, largest, smallest)
        e.vector("v_cmp_u_f32", "vcc", value, value)
        e.vector("v_cndmask_b32", within, within, e.in_vector(NAN), "vcc")
        clamped.append(within)
    e.vector("v_cvt_pk_fp8_f32", packed, clamped[0], clamped[1])
    # the second conversion keeps the low half, so it reads what it writes
    e.vector("v_cvt_pk_fp8_f32", packed, clamped[2], clamped[3], suffix=" op_sel:[0,0,1]")
    e.vector("v_mov_b32", d, packed)


def unpack_float8(e: Lowering, d: Reg, codes: Value, *, index: int, format: Format) -> None:
    e.vector("v_cvt_f32_fp8_sdwa", d, e.in_vector(codes), suffix=f" src0_sel:BYTE_{index}")


VECTOR: dict[str, Lowered] = {
    "add.f32": "v_add_f32", "sub.f32": "v_sub_f32", "mul.f32": "v_mul_f32", "div.f32": divide, "fma.f32": "v_fma_f32",
    "min.f32": "v_min_f32", "max.f32": "v_max_f32", "abs.f32": absolute, "neg.f32": negate,
    "to_f32.u32": "v_cvt_f32_u32", "to_f32.s32": "v_cvt_f32_i32",
    "to_u32.f32": "v_cvt_u32_f32", "to_s32.f32": "v_cvt_i32_f32",
    "pack_bf16.f32": pack_bf16, "pack_f16.f32": pack_f16, "unpack_f16.u32": "v_cvt_f32_f16",
    "pack_float8.f32": pack_float8, "unpack_float8.u32": unpack_float8,
}  # fmt: skip
VECTOR_OF_TARGET: dict[str, dict[str, Lowered]] = {"gfx942": {}, "gfx950": {"pack_bf16.f32": pack_bf16_in_one}}

GIVES_NAN = {f"{name}.f32" for name in ("add", "sub", "mul", "div", "fma", "min", "max", "abs", "neg")} | {
    "unpack_float8.u32",
    "unpack_f16.u32",
}
"""The operations whose result may be a NaN of the chip's own."""

TAKES_ANY_NAN = {name for name in GIVES_NAN if name.endswith(".f32")} | {
    f"{name}.f32"
    for name in ("lt", "le", "gt", "ge", "eq", "ne", "to_u32", "to_s32", "pack_bf16", "pack_f16", "pack_float8")
}
"""The operations that do not look at which NaN an operand is."""
