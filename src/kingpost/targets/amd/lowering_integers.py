"""Portable integer operations on vector and scalar registers, one element at a time.

Each function writes `d` from `operands`; the tables name those that are one instruction. Shifts by 32 (64) and more
give 0, as the portable operations have it, where the chip looks at the low five (six) bits only.
"""

from __future__ import annotations

from collections.abc import Callable

from kingpost.targets.amd.lowering import Lowering, split
from kingpost.targets.amd.machine import Reg, Value, is_inline

Lowered = str | Callable[..., None]


def _power(value: Value) -> int | None:
    """The exponent of a number that is a power of two."""
    return value.bit_length() - 1 if isinstance(value, int) and value > 0 and not value & (value - 1) else None


def _wide(e: Lowering, value: Value) -> Value:
    """A 64-bit operand: a pair of registers, or a number that is inline."""
    return value if is_inline(value) else e.in_vector(value, 2)


# 32 bits


def multiply(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    if _power(a) is not None:
        a, b = b, a
    power = _power(b)
    if power is not None and isinstance(a, Reg):
        e.vector("v_lshlrev_b32", d, power, a)
    else:
        e.vector("v_mul_lo_u32", d, a, b)


def multiply_add(e: Lowering, d: Reg, a: Value, b: Value, c: Value) -> None:
    if _power(a) is not None:
        a, b = b, a
    power = _power(b)
    if power is not None and isinstance(a, Reg):
        e.vector("v_lshl_add_u32", d, a, power, c)
        return
    product = e.temporary()
    e.vector("v_mul_lo_u32", product, a, b)
    e.vector("v_add_u32", d, product, c)


def shift_left(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    _shift(e, d, "v_lshlrev_b32", a, b, 32)


def shift_right(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    _shift(e, d, "v_lshrrev_b32", a, b, 32)


def shift_left_64(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    _shift(e, d, "v_lshlrev_b64", _wide(e, a), b, 64)


def shift_right_64(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    _shift(e, d, "v_lshrrev_b64", _wide(e, a), b, 64)


def _shift(e: Lowering, d: Reg, operation: str, a: Value, b: Value, bits: int) -> None:
    if isinstance(b, int):
        if b < bits:
            e.vector(operation, d, b, a)
        else:
            for index in range(d.count):
                e.vector("v_mov_b32", d[index], 0)
        return
    shifted = e.temporary(d.count)
    e.vector(operation, shifted, b, a)
    e.vector("v_cmp_gt_u32", "vcc", bits, b)
    for index in range(d.count):
        e.vector("v_cndmask_b32", d[index], 0, shifted[index], "vcc")


def divide(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    if (power := _power(b)) is not None:
        e.vector("v_lshrrev_b32", d, power, e.in_vector(a))
    else:
        _divided(e, a, b, quotient=d, remainder=None)


def remainder(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    if _power(b) is not None and isinstance(b, int):
        e.vector("v_and_b32", d, b - 1, e.in_vector(a))
    else:
        _divided(e, a, b, quotient=None, remainder=d)


def _divided(e: Lowering, a: Value, b: Value, quotient: Reg | None, remainder: Reg | None) -> None:
    """A reciprocal in float32 that is never too large, improved once, then a quotient at most two too small: the
    sequence of LLVM's AMDGPU back end."""
    a, b = e.in_vector(a), e.in_vector(b)
    inverse, t, q, r, more = (e.temporary() for _ in range(5))
    e.vector("v_cvt_f32_u32", inverse, b)
    e.vector("v_rcp_iflag_f32", inverse, inverse)
    e.vector("v_mul_f32", inverse, 0x4F7FFFFE, inverse)
    e.vector("v_cvt_u32_f32", inverse, inverse)
    e.vector("v_sub_u32", t, 0, b)
    e.vector("v_mul_lo_u32", t, t, inverse)
    e.vector("v_mul_hi_u32", t, inverse, t)
    e.vector("v_add_u32", inverse, inverse, t)
    e.vector("v_mul_hi_u32", q, a, inverse)
    e.vector("v_mul_lo_u32", t, q, b)
    e.vector("v_sub_u32", r, a, t)
    for last in (False, True):
        e.vector("v_cmp_ge_u32", "vcc", r, b)
        if quotient is not None:
            e.vector("v_add_u32", more, 1, q)
            e.vector("v_cndmask_b32", quotient if last else q, q, more, "vcc")
        if not (last and remainder is None):
            e.vector("v_sub_u32", t, r, b)
            e.vector("v_cndmask_b32", remainder if last and remainder is not None else r, r, t, "vcc")


# 64 bits


def add_64(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    e.vector("v_lshl_add_u64", d, _wide(e, a), 0, _wide(e, b))


def subtract_64(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    a, b = e.in_vector(a, 2), e.in_vector(b, 2)
    e.vector("v_sub_co_u32", (d[0], "vcc"), a[0], b[0])
    e.vector("v_subb_co_u32", (d[1], "vcc"), a[1], b[1], "vcc")


def multiply_64(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    (a_low, a_high), (b_low, b_high) = split(a, 2), split(b, 2)
    product, first, second = e.temporary(2), e.temporary(), e.temporary()
    e.vector("v_mad_u64_u32", (product, "vcc"), a_low, b_low, 0, early=True)
    e.vector("v_mul_lo_u32", first, a_low, b_high)
    e.vector("v_mul_lo_u32", second, a_high, b_low)
    e.vector("v_add3_u32", d[1], product[1], first, second)
    e.vector("v_mov_b32", d[0], product[0])


def wide_multiply_add(e: Lowering, d: Reg, a: Value, b: Value, c: Value) -> None:
    e.vector("v_mad_u64_u32", (d, "vcc"), a, b, _wide(e, c), early=True)


def widen(e: Lowering, d: Reg, a: Value) -> None:
    e.vector("v_mov_b32", d[0], a)
    e.vector("v_mov_b32", d[1], 0)


def _multiply_high(e: Lowering, a: Reg, b: Reg) -> Reg:
    """The upper 64 bits of the product of 64-bit numbers, exactly."""
    low, first, second, d = e.temporary(2), e.temporary(2), e.temporary(2), e.temporary(2)
    e.vector("v_mul_hi_u32", low[0], a[0], b[0])
    e.vector("v_mov_b32", low[1], 0)
    e.vector("v_mad_u64_u32", (first, "vcc"), a[0], b[1], low, early=True)
    # first is below 2^64 - 2^32, so its low word may be added to the other product without a carry
    e.vector("v_mov_b32", low[0], first[0])
    e.vector("v_mad_u64_u32", (second, "vcc"), a[1], b[0], low, early=True)
    e.vector("v_mov_b32", low[0], first[1])
    e.vector("v_lshl_add_u64", low, low, 0, _high_word(e, second))
    e.vector("v_mad_u64_u32", (d, "vcc"), a[1], b[1], low, early=True)
    return d


def _high_word(e: Lowering, a: Reg) -> Reg:
    """a >> 32, of 64 bits."""
    d = e.temporary(2)
    e.vector("v_mov_b32", d[0], a[1])
    e.vector("v_mov_b32", d[1], 0)
    return d


def divide_64(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    quotient, _ = _divided_64(e, a, b)
    _copy(e, d, quotient)


def remainder_64(e: Lowering, d: Reg, a: Value, b: Value) -> None:
    _, remainder = _divided_64(e, a, b)
    _copy(e, d, remainder)


def _copy(e: Lowering, d: Reg, a: Reg) -> None:
    for index in range(2):
        e.vector("v_mov_b32", d[index], a[index])


def _divided_64(e: Lowering, a: Value, b: Value) -> tuple[Reg, Reg]:
    """As for 32 bits: a reciprocal in float32, two improvements in integers, two corrections (LLVM, expandDivRem64)."""
    a, b = e.in_vector(a, 2), e.in_vector(b, 2)
    low, high, scaled, step = e.temporary(), e.temporary(), e.temporary(), e.temporary(2)
    e.vector("v_cvt_f32_u32", low, b[0])
    e.vector("v_cvt_f32_u32", high, b[1])
    e.vector("v_fma_f32", low, high, 0x4F800000, low)
    e.vector("v_rcp_f32", low, low)
    e.vector("v_mul_f32", low, 0x5F7FFFFC, low)
    e.vector("v_mul_f32", scaled, 0x2F800000, low)
    e.vector("v_trunc_f32", scaled, scaled)
    e.vector("v_fma_f32", low, scaled, 0xCF800000, low)
    inverse, negated = e.temporary(2), e.temporary(2)
    e.vector("v_cvt_u32_f32", inverse[0], low)
    e.vector("v_cvt_u32_f32", inverse[1], scaled)
    subtract_64(e, negated, 0, b)
    for _ in range(2):
        multiply_64(e, step, negated, inverse)
        add_64(e, inverse, inverse, _multiply_high(e, inverse, step))
    quotient, remainder = _multiply_high(e, a, inverse), e.temporary(2)
    multiply_64(e, step, quotient, b)
    subtract_64(e, remainder, a, step)
    for _ in range(2):
        more, less = e.temporary(2), e.temporary(2)
        add_64(e, more, quotient, 1)
        subtract_64(e, less, remainder, b)
        e.vector("v_cmp_ge_u64", "vcc", remainder, b)
        for index in range(2):
            e.vector("v_cndmask_b32", quotient[index], quotient[index], more[index], "vcc")
            e.vector("v_cndmask_b32", remainder[index], remainder[index], less[index], "vcc")
    return quotient, remainder


def _extreme(comparison: str) -> Callable[..., None]:
    def extreme(e: Lowering, d: Reg, a: Value, b: Value) -> None:
        a, b = e.in_vector(a, 2), e.in_vector(b, 2)
        e.vector(f"v_cmp_{comparison}_u64", "vcc", a, b)
        for index in range(2):
            e.vector("v_cndmask_b32", d[index], b[index], a[index], "vcc")

    return extreme


def _by_words(operation: str) -> Callable[..., None]:
    def by_words(e: Lowering, d: Reg, *operands: Value) -> None:
        for index, words in enumerate(zip(*(split(operand, d.count) for operand in operands))):
            e.vector(operation, d[index], *words)

    return by_words


def select(e: Lowering, d: Reg, a: Value, b: Value, condition: Value) -> None:
    for index, (first, second) in enumerate(zip(split(a, d.count), split(b, d.count))):
        e.vector("v_cndmask_b32", d[index], second, first, condition)


VECTOR: dict[str, Lowered] = {
    "add.u32": "v_add_u32", "add.s32": "v_add_u32", "add.u64": add_64,
    "sub.u32": "v_sub_u32", "sub.s32": "v_sub_u32", "sub.u64": subtract_64,
    "mul.u32": multiply, "mul.s32": multiply, "mul.u64": multiply_64,
    "mad.u32": multiply_add, "mad_wide.u32": wide_multiply_add, "widen.u32": widen,
    "div.u32": divide, "rem.u32": remainder, "div.u64": divide_64, "rem.u64": remainder_64,
    "min.u32": "v_min_u32", "min.s32": "v_min_i32", "min.u64": _extreme("lt"),
    "max.u32": "v_max_u32", "max.s32": "v_max_i32", "max.u64": _extreme("gt"),
    "and.u32": "v_and_b32", "or.u32": "v_or_b32", "xor.u32": "v_xor_b32",
    "and.u64": _by_words("v_and_b32"), "or.u64": _by_words("v_or_b32"), "xor.u64": _by_words("v_xor_b32"),
    "shl.u32": shift_left, "shr.u32": shift_right, "shl.u64": shift_left_64, "shr.u64": shift_right_64,
    **{f"move.{type}": _by_words("v_mov_b32") for type in ("u32", "s32", "u64", "f32")},
    **{f"select.{type}": select for type in ("u32", "s32", "u64", "f32")},
    "bits.f32": "v_mov_b32", "from_bits.u32": "v_mov_b32",
}  # fmt: skip


# Comparisons write a mask of lanes, as do the operations on predicates

_SUFFIX = {"u32": "u32", "s32": "i32", "u64": "u64", "f32": "f32"}


def compare(e: Lowering, d: Reg, name: str, type: str, a: Value, b: Value) -> None:
    # of float32, "lg" is false of NaN and "neq" is true, as in Python
    relation = "neq" if (name, type) == ("ne", "f32") else name
    if type == "u64":
        a, b = _wide(e, a), _wide(e, b)
    e.vector(f"v_cmp_{relation}_{_SUFFIX[type]}", d, a, b)


def compare_scalar(e: Lowering, d: Reg, name: str, type: str, a: Value, b: Value) -> None:
    relation = "lg" if name == "ne" else name
    e.scalar(f"s_cmp_{relation}_{_SUFFIX[type]}", None, a, b)
    e.scalar("s_cselect_b64", d, -1, 0)


PREDICATES = {"and.pred": "s_and_b64", "or.pred": "s_or_b64", "not.pred": "s_not_b64", "move.pred": "s_mov_b64"}


# On scalar registers: what is not here is computed on a vector register and read from its first lane


def _scalar_by_words(operation: str) -> Callable[..., None]:
    def by_words(e: Lowering, d: Reg, *operands: Value) -> None:
        for index, words in enumerate(zip(*(split(operand, d.count) for operand in operands))):
            e.scalar(operation, d[index], *words)

    return by_words


def _scalar_pair(low: str, high: str) -> Callable[..., None]:
    def pair(e: Lowering, d: Reg, a: Value, b: Value) -> None:
        (a_low, a_high), (b_low, b_high) = split(a, 2), split(b, 2)
        e.scalar(low, d[0], a_low, b_low)
        e.scalar(high, d[1], a_high, b_high)

    return pair


def _scalar_mad(e: Lowering, d: Reg, a: Value, b: Value, c: Value) -> None:
    product = e.fresh("s")
    e.scalar("s_mul_i32", product, a, b)
    e.scalar("s_add_u32", d, product, c)


def _scalar_mad_wide(e: Lowering, d: Reg, a: Value, b: Value, c: Value) -> None:
    product = e.fresh("s", 2)
    e.scalar("s_mul_i32", product[0], a, b)
    e.scalar("s_mul_hi_u32", product[1], a, b)
    _scalar_pair("s_add_u32", "s_addc_u32")(e, d, product, c)


def _scalar_widen(e: Lowering, d: Reg, a: Value) -> None:
    e.scalar("s_mov_b32", d[0], a)
    e.scalar("s_mov_b32", d[1], 0)


def _scalar_select(e: Lowering, d: Reg, a: Value, b: Value, condition: Value) -> None:
    e.scalar("s_and_b64", "vcc", condition, "exec")
    for index, (first, second) in enumerate(zip(split(a, d.count), split(b, d.count))):
        e.scalar("s_cselect_b32", d[index], first, second)


SCALAR: dict[str, Lowered] = {
    "add.u32": "s_add_u32", "add.s32": "s_add_i32", "add.u64": _scalar_pair("s_add_u32", "s_addc_u32"),
    "sub.u32": "s_sub_u32", "sub.s32": "s_sub_i32", "sub.u64": _scalar_pair("s_sub_u32", "s_subb_u32"),
    "mul.u32": "s_mul_i32", "mul.s32": "s_mul_i32", "mad.u32": _scalar_mad, "mad_wide.u32": _scalar_mad_wide,
    "min.u32": "s_min_u32", "min.s32": "s_min_i32", "max.u32": "s_max_u32", "max.s32": "s_max_i32",
    **{f"{name}.{type}": _scalar_by_words(f"s_{name}_b32") for name in ("and", "or", "xor") for type in ("u32", "u64")},
    **{f"move.{type}": _scalar_by_words("s_mov_b32") for type in ("u32", "s32", "u64", "f32")},
    **{f"select.{type}": _scalar_select for type in ("u32", "s32", "u64", "f32")},
    "widen.u32": _scalar_widen, "bits.f32": "s_mov_b32", "from_bits.u32": "s_mov_b32",
}  # fmt: skip
SCALAR_COMPARISONS = {"u32", "s32"}


def scalar_by_constant(name: str, b: Value) -> tuple[str, int] | None:
    """A scalar instruction for shifts by a number, and division by a power of two: its name and second operand."""
    power = _power(b)
    match name:
        case "shl.u32" | "shr.u32" if isinstance(b, int) and b < 32:
            return f"s_l{name[:3]}_b32", b
        case "shl.u64" | "shr.u64" if isinstance(b, int) and b < 64:
            return f"s_l{name[:3]}_b64", b
        case "div.u32" if power is not None:
            return "s_lshr_b32", power
        case "rem.u32" if power is not None and isinstance(b, int):
            return "s_and_b32", b - 1
    return None
