"""What single AMDGCN instructions compute, from the CDNA3 ISA: tables by mnemonic for the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from kingpost.formats import fma32

LANES, ALL = 64, (1 << 64) - 1
U32, U64, F32, S32 = np.uint32, np.uint64, np.float32, np.int32

SIZES = {
    "ubyte": 1, "byte": 1, "ushort": 2, "short": 2, "dword": 4, "dwordx2": 8, "dwordx4": 16,
    "u8": 1, "b8": 1, "u16": 2, "b16": 2, "b32": 4, "b64": 8, "b128": 16,
}  # fmt: skip
RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lg": lambda a, b: a != b, "neq": lambda a, b: a != b,
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip


def _signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


SCALAR: dict[str, Callable[..., tuple[int, bool]]] = {  # of the carry and the operands: the result, the carry
    "mov": lambda c, a: (a, c), "not": lambda c, a: (~a, c),
    "add_u32": lambda c, a, b: (a + b, a + b > 0xFFFFFFFF), "add": lambda c, a, b: (a + b, a + b > 0xFFFFFFFF),
    "addc": lambda c, a, b: (a + b + c, a + b + c > 0xFFFFFFFF),
    "sub": lambda c, a, b: (a - b, a < b), "subb": lambda c, a, b: (a - b - c, a < b + c),
    "mul": lambda c, a, b: (a * b, c), "mul_hi": lambda c, a, b: (a * b >> 32, c),
    "and": lambda c, a, b: (a & b, c), "or": lambda c, a, b: (a | b, c), "xor": lambda c, a, b: (a ^ b, c),
    "andn2": lambda c, a, b: (a & ~b, c), "lshl": lambda c, a, b: (a << b, c), "lshr": lambda c, a, b: (a >> b, c),
    "min": lambda c, a, b: (min(a, b), a < b), "max": lambda c, a, b: (max(a, b), a > b),
}  # fmt: skip


def _f32(does: Callable[..., Any]) -> Callable[..., np.ndarray]:
    return lambda *x: np.asarray(does(*(each.view(F32) for each in x)), F32).view(U32)


def _s32(does: Callable[..., Any]) -> Callable[..., np.ndarray]:
    return lambda *x: np.asarray(does(*(each.view(S32) for each in x)), S32).view(U32)


def _number(pick: Callable[[Any, Any], Any], zero: bool) -> Callable[..., np.ndarray]:
    """V_MIN_F32, V_MAX_F32 without IEEE mode: the number if the other is NaN; of zeros, -0 is the smaller."""

    def does(a: Any, b: Any) -> Any:
        zeros = (a == 0) & (b == 0)
        signs = np.signbit(a) & np.signbit(b) if zero else np.signbit(a) | np.signbit(b)
        return np.where(zeros, np.where(signs, F32(-0.0), F32(0.0)), pick(a, b))

    return _f32(does)


def _to_integer(x: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.clip(np.nan_to_num(np.trunc(x.view(F32).astype(float)), nan=0.0), low, high).astype(np.int64)


def _bytes_picked(a: np.ndarray, b: np.ndarray, pattern: np.ndarray) -> np.ndarray:
    """V_PERM_B32: bytes 0 to 3 are b's, 4 to 7 a's."""
    both, result = a.astype(U64) << U64(32) | b, np.zeros(LANES, U64)
    for byte in range(4):
        result |= (both >> (U64(8) * (pattern >> U32(8 * byte) & 7)) & U64(255)) << U64(8 * byte)
    return result.astype(U32)


def _pack_bf16(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    low, high = (x.view(F32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(U32) for x in (a, b))
    return low | high << 16


VECTOR: dict[str, Callable[..., Any]] = {
    "v_mov_b32": lambda a: a, "v_accvgpr_read_b32": lambda a: a, "v_accvgpr_write_b32": lambda a: a,
    "v_add_u32": lambda a, b: a + b, "v_sub_u32": lambda a, b: a - b,
    "v_add3_u32": lambda a, b, c: a + b + c, "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: (a.astype(U64) * b.astype(U64) >> U64(32)).astype(U32),
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_and_b32": lambda a, b: a & b, "v_or_b32": lambda a, b: a | b, "v_xor_b32": lambda a, b: a ^ b,
    "v_lshlrev_b32": lambda a, b: b << (a & 31), "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_min_u32": np.minimum, "v_max_u32": np.maximum, "v_min_i32": _s32(np.minimum), "v_max_i32": _s32(np.maximum),
    "v_bfe_u32": lambda a, b, c: a >> (b & 31) & ((U32(1) << (c & 31)) - U32(1)),
    "v_bfi_b32": lambda a, b, c: (a & b) | (~a & c), "v_perm_b32": _bytes_picked,
    "v_add_f32": _f32(lambda a, b: a + b), "v_sub_f32": _f32(lambda a, b: a - b),
    "v_mul_f32": _f32(lambda a, b: a * b), "v_fma_f32": _f32(fma32), "v_div_fmas_f32": _f32(fma32),
    "v_min_f32": _number(np.fmin, False), "v_max_f32": _number(np.fmax, True),
    "v_med3_f32": _f32(lambda a, b, c: np.fmax(np.fmin(a, np.fmax(b, c)), np.fmin(b, c))),
    "v_rcp_f32": _f32(lambda a: F32(1) / a), "v_rcp_iflag_f32": _f32(lambda a: F32(1) / a),
    "v_trunc_f32": _f32(np.trunc), "v_cvt_f32_u32": lambda a: a.astype(F32).view(U32),
    "v_cvt_f32_i32": lambda a: a.view(S32).astype(F32).view(U32),
    "v_cvt_u32_f32": lambda a: _to_integer(a, 0, 0xFFFFFFFF).astype(U32),
    "v_cvt_i32_f32": lambda a: _to_integer(a, -(1 << 31), (1 << 31) - 1).astype(S32).view(U32),
    "v_cvt_pk_bf16_f32": _pack_bf16,
    "v_cvt_f16_f32": lambda a: a.view(F32).astype(np.float16).view(np.uint16).astype(U32),
    "v_cvt_f32_f16": lambda a: a.astype(np.uint16).view(np.float16).astype(F32).view(U32),
}  # fmt: skip
