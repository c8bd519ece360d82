"""Portable operations: defined once here, lowered by each target's table of texts.

An operation on registers of type T is looked up as ("name", T) by `portable`; `PORTABLE` lists them all. Integer
arithmetic wraps; division and remainder truncate; float32 arithmetic rounds to nearest even, subnormals kept, and a
NaN that it gives is 0x7fffffff, whatever NaN a CPU's own arithmetic would give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kingpost.formats import BF16, E4M3FNUZ, F16, Format, canonical_nan, cast, converted, decode, fma32
from kingpost.program.instruction import DELETE, Operation, operation
from kingpost.program.registers import Registers
from kingpost.program.types import Type, f32, pred, s32, u32, u64

PORTABLE: dict[tuple[str, Type], Operation] = {}


def _portable(
    name: str, types: tuple[Type, ...], does: Callable[..., Any], result: Type | None = None, **others: Type
) -> None:
    """Define an operation on each of `types`: of all its operands, but for those that `others` gives a type."""
    operands = [name for name in does.__code__.co_varnames[: does.__code__.co_argcount] if name != "warp"]
    for type in types:
        uses = {"issue": 1.0 if type.bits <= 32 else 2.0, "fma" if type is f32 else "alu": 1.0}
        PORTABLE[name, type] = operation(
            None,
            name=f"{name}.{type.name}",
            reads=dict.fromkeys(operands, type) | others,
            writes={"d": result or type},
            uses=uses,
            lanewise=True,
        )(does)


def _one_nan(x: Any) -> Any:
    return canonical_nan(x) if x.dtype == f32.dtype else x


def _smaller(a: Any, b: Any) -> Any:
    """The number where the other is NaN, and -0 below +0 (IEEE 754-2019, minimumNumber)."""
    found = np.fmin(a, b)
    if found.dtype != f32.dtype:
        return found
    return np.where((a == b) & (found == 0) & (np.signbit(a) | np.signbit(b)), np.float32(-0.0), _one_nan(found))


def _larger(a: Any, b: Any) -> Any:
    found = np.fmax(a, b)
    if found.dtype != f32.dtype:
        return found
    return np.where((a == b) & (found == 0) & ~(np.signbit(a) & np.signbit(b)), np.float32(0.0), _one_nan(found))


_NUMBERS = (u32, s32, u64, f32)
_portable("add", _NUMBERS, lambda warp, a, b: _one_nan(a + b))
_portable("sub", _NUMBERS, lambda warp, a, b: _one_nan(a - b))
_portable("mul", _NUMBERS, lambda warp, a, b: _one_nan(a * b))
_portable("div", (u32, u64), lambda warp, a, b: a // b)
_portable("rem", (u32, u64), lambda warp, a, b: a % b)
_portable("min", _NUMBERS, lambda warp, a, b: _smaller(a, b))
_portable("max", _NUMBERS, lambda warp, a, b: _larger(a, b))
_portable("and", (u32, u64), lambda warp, a, b: a & b)
_portable("or", (u32, u64), lambda warp, a, b: a | b)
_portable("xor", (u32, u64), lambda warp, a, b: a ^ b)
_portable("shl", (u32, u64), lambda warp, a, b: a << b, b=u32)
_portable("shr", (u32, u64), lambda warp, a, b: a >> b, b=u32)
_portable("and", (pred,), lambda warp, a, b: a & b)
_portable("or", (pred,), lambda warp, a, b: a | b)
_portable("not", (pred,), lambda warp, a: ~a)
_portable("div", (f32,), lambda warp, a, b: _one_nan(a / b))
_portable("abs", (f32,), lambda warp, a: _one_nan(np.abs(a)))
_portable("neg", (f32,), lambda warp, a: _one_nan(-a))
_portable("move", (*_NUMBERS, pred), lambda warp, a: a)
_portable("lt", _NUMBERS, lambda warp, a, b: a < b, pred)
_portable("le", _NUMBERS, lambda warp, a, b: a <= b, pred)
_portable("gt", _NUMBERS, lambda warp, a, b: a > b, pred)
_portable("ge", _NUMBERS, lambda warp, a, b: a >= b, pred)
_portable("eq", _NUMBERS, lambda warp, a, b: a == b, pred)
_portable("ne", _NUMBERS, lambda warp, a, b: a != b, pred)
_portable("select", _NUMBERS, lambda warp, a, b, condition: np.where(condition, a, b), condition=pred)
_portable("fma", (f32,), lambda warp, a, b, c: _one_nan(fma32(a, b, c)))
_portable("mad", (u32,), lambda warp, a, b, c: a * b + c)


def _wide(value: Any) -> Any:
    return np.uint64(value) if isinstance(value, int) else value.astype(np.uint64)


# (name, type of the first operand): the result is wider
_portable("mad_wide", (u32,), lambda warp, a, b, c: _wide(a) * _wide(b) + c, u64, c=u64)
_portable("widen", (u32,), lambda warp, a: _wide(a), u64)
_portable("bits", (f32,), lambda warp, a: a.view(np.uint32), u32)
_portable("from_bits", (u32,), lambda warp, a: a.view(np.float32), f32)


# Conversions


def _truncated(x: Any, type: Type) -> Any:
    limits = np.iinfo(type.dtype)
    return np.clip(np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0), limits.min, limits.max).astype(type.dtype)


def _packed(low: Any, high: Any, format: Format) -> Any:
    halves = [converted(half, format).view(np.uint16).astype(np.uint32) for half in (low, high)]
    return halves[0] | halves[1] << np.uint32(16)


def _pack_float8(warp: Any, a: Any, b: Any, c: Any, e: Any, *, format: Format) -> Any:
    """NaN becomes 0x7f, or 0x80 in FNUZ."""
    nan = np.uint32(0x80 if format is E4M3FNUZ else 0x7F)
    packed: Any = np.uint32(0)
    for byte, x in enumerate((a, b, c, e)):
        codes = np.where(np.isnan(x), nan, cast(x, format).view(np.uint8).astype(np.uint32))
        packed = packed | codes << np.uint32(8 * byte)
    return packed


def _unpack_float8(warp: Any, a: Any, *, index: int, format: Format) -> Any:
    codes = (a >> np.uint32(8 * index)).astype(np.uint8)
    return _one_nan(decode(codes, format))


def _unpack_f16(warp: Any, a: Any) -> Any:
    return _one_nan(decode(a.astype(np.uint16), F16))


_portable("to_f32", (u32, s32), lambda warp, a: a.astype(np.float32), f32)
_portable("to_u32", (f32,), lambda warp, a: _truncated(a, u32), u32)
_portable("to_s32", (f32,), lambda warp, a: _truncated(a, s32), s32)
_portable("pack_bf16", (f32,), lambda warp, low, high: _packed(low, high, BF16), u32)
_portable("pack_f16", (f32,), lambda warp, low, high: _packed(low, high, F16), u32)
_portable("unpack_f16", (u32,), _unpack_f16, f32)
_portable("pack_float8", (f32,), _pack_float8, u32)
_portable("unpack_float8", (u32,), _unpack_float8, f32)


@operation(None, name="lane_index", writes={"d": u32})
def lane_index(warp):  # type: ignore[no-untyped-def]
    return warp.lanes


@operation(None, name="warp_index", writes={"d": u32}, converged=True)
def warp_index(warp):  # type: ignore[no-untyped-def]
    """The warp's index in its block, in a form that the assembler knows to be uniform."""
    return warp.broadcast(np.uint32(warp.index))


@operation(None, name="block_index", writes={"d": u32})
def block_index(warp):  # type: ignore[no-untyped-def]
    return warp.broadcast(np.uint32(warp.block.index))


@operation(None, name="grid_size", writes={"d": u32})
def grid_size(warp):  # type: ignore[no-untyped-def]
    return warp.broadcast(np.uint32(warp.block.grid))


@operation(None, name="shared_base", writes={"d": u32})
def shared_base(warp):  # type: ignore[no-untyped-def]
    """The address of the block's shared memory, as declared by the program."""
    return warp.broadcast(np.uint32(warp.block.shared.base))


def _parameter(type: Type) -> Operation:
    @operation(None, name=f"parameter.{type.name}", writes={"d": type})
    def parameter(warp, *, parameter):  # type: ignore[no-untyped-def]
        return warp.broadcast(type.dtype.type(warp.block.argument(parameter)))

    return parameter


def _scalars(type: Type, space: str, address: Type) -> tuple[Operation, Operation]:
    """Loads and stores of one register of a type."""
    bytes = 32.0 * type.bits // 8

    @operation(
        None,
        name=f"load_{space}.{type.name}",
        reads={"address": address},
        writes={"d": type},
        uses={"issue": 1.0, f"{space} load bytes": bytes},
    )
    def load(warp, address, *, offset=0):  # type: ignore[no-untyped-def]
        at = warp.broadcast(address) + address.dtype.type(offset)
        return warp.memory(space).load(warp, at, type.dtype)

    @operation(
        None,
        name=f"store_{space}.{type.name}",
        reads={"address": address, "value": type},
        uses={"issue": 1.0, f"{space} store bytes": bytes},
    )
    def store(warp, address, value, *, offset=0):  # type: ignore[no-untyped-def]
        at = warp.broadcast(address) + address.dtype.type(offset)
        warp.memory(space).store(warp, at, warp.broadcast(value, type))

    return load, store


def _vectors(type: Type, space: str, address: Type, count: int) -> tuple[Operation, Operation]:
    """Loads and stores of `count` neighbouring registers of a type."""
    uses = {"issue": 1.0, f"{space} bytes": 32.0 * count * type.bits // 8}

    def check(*reads, into=None, offset=0):  # type: ignore[no-untyped-def]
        registers = reads[1] if len(reads) > 1 else into
        if not isinstance(registers, Registers) or len(registers) != count:
            raise ValueError(f"{registers!r} in a vector of {count}; {count} registers are wanted")

    @operation(
        None,
        name=f"load_{space}_x{count}.{type.name}",
        reads={"address": address},
        writes={"d": type},
        uses=uses,
        check=check,
    )
    def load(warp, address, *, offset=0):  # type: ignore[no-untyped-def]
        at = warp.broadcast(address) + address.dtype.type(offset)
        return warp.memory(space).load_vector(warp, at, type.dtype, count)

    @operation(
        None,
        name=f"store_{space}_x{count}.{type.name}",
        reads={"address": address, "values": type},
        uses=uses,
        check=check,
    )
    def store(warp, address, values, *, offset=0):  # type: ignore[no-untyped-def]
        at = warp.broadcast(address) + address.dtype.type(offset)
        warp.memory(space).store_vector(warp, at, values)

    return load, store


def _narrow(space: str, address: Type, bits: int) -> tuple[Operation, Operation]:
    """Loads and stores of 8 or 16 bits in a u32."""
    dtype, uses = np.dtype(f"uint{bits}"), {"issue": 1.0, f"{space} bytes": 32.0 * bits // 8}

    @operation(None, name=f"load_{space}_b{bits}.u32", reads={"address": address}, writes={"d": u32}, uses=uses)
    def load(warp, address, *, offset=0):  # type: ignore[no-untyped-def]
        at = warp.broadcast(address) + address.dtype.type(offset)
        return warp.memory(space).load(warp, at, dtype).astype(np.uint32)

    @operation(None, name=f"store_{space}_b{bits}.u32", reads={"address": address, "value": u32}, uses=uses)
    def store(warp, address, value, *, offset=0):  # type: ignore[no-untyped-def]
        at = warp.broadcast(address) + address.dtype.type(offset)
        warp.memory(space).store(warp, at, warp.broadcast(value, u32).astype(dtype))

    return load, store


def _shuffle(type: Type) -> Operation:
    @operation(None, name=f"shuffle_xor.{type.name}", reads={"a": type}, writes={"d": type}, converged=True)
    def shuffle_xor(warp, a, *, mask):  # type: ignore[no-untyped-def]
        return warp.broadcast(a)[warp.lanes ^ mask]

    return shuffle_xor


def _define(*operations: Operation) -> None:
    for each in operations:
        name, _, type = each.name.partition(".")
        PORTABLE[name, next(t for t in (u32, f32, u64) if t.name == type)] = each


for _type in (u32, f32, u64):
    _define(_parameter(_type))
for _space, _address in (("global", u64), ("shared", u32)):
    for _type in (u32, f32, u64):
        _define(*_scalars(_type, _space, _address))
    _define(*_narrow(_space, _address, 8), *_narrow(_space, _address, 16))
    for _type in (u32, f32):
        _define(*_vectors(_type, _space, _address, 2), *_vectors(_type, _space, _address, 4))
for _type in (u32, f32):
    _define(_shuffle(_type))


@operation(None, name="barrier", converged=True, decides=(DELETE,))
def barrier(warp):  # type: ignore[no-untyped-def]
    """All warps of the block."""
    return warp.block.barrier(warp, 0, warp.block.program.warps)


def portable(name: str, type: Type) -> Operation:
    """The portable operation `name` on registers of `type`; an error names what exists."""
    try:
        return PORTABLE[name, type]
    except KeyError:
        known = sorted(t.name for n, t in PORTABLE if n == name)
        raise TypeError(f"{name} on {type.name} is no portable operation; it exists on {known}") from None
