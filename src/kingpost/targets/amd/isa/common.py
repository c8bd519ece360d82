"""Instructions that gfx942 and gfx950 share, as AMD's assembler names them: memory, waits, packed arithmetic.

The kernel writes every wait and every `s_nop` itself: nothing inserts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from kingpost.emulate import ASYNCHRONOUS
from kingpost.formats import fma32
from kingpost.program import DELETE, Instruction, Operand, Operation, Registers, Weakening, f32, operation, u32, u64
from kingpost.program.weakening import deleted, moved, with_fields
from kingpost.targets.amd.harmless import nothing_in_flight
from kingpost.targets.amd.isa.registers import place, want, want_range
from kingpost.targets.amd.units.wait_counters import LARGEST, LDS, VECTOR, WaitCounters
from kingpost.targets.amd.units.wait_states import WaitStates

LANES = 64
_WORDS = {"dword": 1, "dwordx2": 2, "dwordx4": 4, "b32": 1, "b64": 2, "b128": 4}
_LARGEST_GLOBAL_OFFSET, _LARGEST_LDS_OFFSET, _LARGEST_BUFFER_OFFSET = 4095, 65535, 4095


# Waiting, and the order of waves


def _check_waits(*, into: Any, vmcnt: int | None, lgkmcnt: int | None) -> None:
    if vmcnt is None and lgkmcnt is None:
        raise ValueError("s_waitcnt waits for nothing; vmcnt or lgkmcnt is wanted")
    for counter, value in ((VECTOR, vmcnt), (LDS, lgkmcnt)):
        if value is not None:
            want_range(f"s_waitcnt: {counter}", value, LARGEST[counter])


def _waits_text(instruction: Instruction, names: Any) -> str:
    waits = [f"{counter}({left})" for counter, left in instruction.fields.items() if left is not None]
    return f"s_waitcnt {' '.join(waits)}"


def _forgotten(counter: str) -> Weakening:
    """One counter of two no longer waited for."""

    def instead(instruction: Instruction) -> Sequence[Instruction] | None:
        both = None not in instruction.fields.values()
        return with_fields(instruction, **{counter: None}) if both else None

    return Weakening(f"no {counter} in", instead, nothing_in_flight)


@operation(
    _waits_text,
    name="s_waitcnt",
    check=_check_waits,
    decides=(
        deleted(nothing_in_flight),
        *moved(VECTOR, 1, harmless=nothing_in_flight),
        *moved(LDS, 1, harmless=nothing_in_flight),
        _forgotten(VECTOR),
        _forgotten(LDS),
    ),
)
def s_waitcnt(warp: Any, *, vmcnt: int | None = None, lgkmcnt: int | None = None) -> Any:
    """Wait until at most `vmcnt` accesses to global memory and at most `lgkmcnt` to LDS are in flight."""
    given = {VECTOR: vmcnt, LDS: lgkmcnt}
    return warp.block.unit(WaitCounters).wait(warp, {name: left for name, left in given.items() if left is not None})


@operation("s_barrier", converged=True, decides=(DELETE,))
def s_barrier(warp: Any) -> Any:
    """Wait for all waves of the block; memory in flight stays in flight."""
    return warp.block.barrier(warp, 0, warp.block.program.warps)


@operation(
    "s_nop {count}",
    check=lambda *, into, count: want_range("s_nop: count", count, 15),
    decides=(DELETE, *moved("count", -1)),
)
def s_nop(warp: Any, *, count: int) -> None:
    """`count` + 1 wait states (and nothing else)."""
    warp.block.unit(WaitStates).idle(warp, count)


@operation("s_setprio {priority}", check=lambda *, into, priority: want_range("s_setprio: priority", priority, 3))
def s_setprio(warp: Any, *, priority: int) -> None:
    """The wave's priority when several can issue; changes no result."""


# Scalar registers


def _check_readfirstlane(value: Operand, *, into: Any) -> None:
    want("v_readfirstlane_b32: source", value, 1)
    want("v_readfirstlane_b32: destination", into, 1, files="s")


@operation("v_readfirstlane_b32 {d}, {value}", reads={"value": u32}, writes={"d": u32}, check=_check_readfirstlane)
def v_readfirstlane_b32(warp: Any, value: Any) -> Any:
    """The value of the first active lane, as a scalar; 5 wait states before a memory instruction may use it."""
    warp.block.unit(WaitStates).scalar(warp)
    return warp.broadcast(value[warp.active.argmax()])


def _check_move(value: Operand, *, into: Any) -> None:
    want("s_mov_b32: destination", into, 1, files="s")
    if isinstance(value, Registers):
        want("s_mov_b32: source", value, 1, files="s")


@operation("s_mov_b32 {d}, {value}", reads={"value": u32}, writes={"d": u32}, check=_check_move)
def s_mov_b32(warp: Any, value: Any) -> Any:
    return warp.broadcast(value, u32)


# Global memory


def _offset(instruction: Instruction) -> str:
    offset = instruction.fields["offset"]
    return f" offset:{offset}" if offset else ""


def _traffic(unit: str, words: int) -> dict[str, float]:
    return {"issue": 1.0, unit: 4.0 * words * LANES}


def _global_load(width: str) -> Operation:
    name, words = f"global_load_{width}", _WORDS[width]

    def check(address: Operand, *, into: Any, offset: int) -> None:
        want(f"{name}: address", address, 2, files="v")
        want(f"{name}: destination", into, words)
        want_range(f"{name}: offset", offset, _LARGEST_GLOBAL_OFFSET)

    def text(instruction: Instruction, names: Any) -> str:
        (address,), (d,) = instruction.reads, instruction.writes
        return f"{name} {names(d)}, {names(address)}, off{_offset(instruction)}"

    @operation(
        text,
        name=name,
        reads={"address": u64},
        writes={"d": u32},
        check=check,
        uses=_traffic("global load bytes", words),
    )
    def load(warp: Any, address: Any, *, offset: int = 0) -> Any:
        return _load(warp, VECTOR, address + np.uint64(offset))

    return load


def _global_store(width: str) -> Operation:
    name, words = f"global_store_{width}", _WORDS[width]

    def check(address: Operand, values: Operand, *, into: Any, offset: int) -> None:
        want(f"{name}: address", address, 2, files="v")
        want(f"{name}: data", values, words)
        want_range(f"{name}: offset", offset, _LARGEST_GLOBAL_OFFSET)

    def text(instruction: Instruction, names: Any) -> str:
        address, values = instruction.reads
        return f"{name} {names(address)}, {names(values)}, off{_offset(instruction)}"

    @operation(text, name=name, reads={"address": u64}, check=check, uses=_traffic("global store bytes", words))
    def store(warp: Any, address: Any, values: Any, *, offset: int = 0) -> None:
        warp.block.unit(WaitCounters).store(warp, VECTOR, address + np.uint64(offset), values)

    return store


def _load(warp: Any, counter: str, addresses: Any, inside: Any = None) -> Any:
    warp.block.unit(WaitCounters).load(warp, counter, addresses, inside)
    return ASYNCHRONOUS


global_load_dword, global_load_dwordx2, global_load_dwordx4 = map(_global_load, ("dword", "dwordx2", "dwordx4"))
global_store_dword, global_store_dwordx2, global_store_dwordx4 = map(_global_store, ("dword", "dwordx2", "dwordx4"))


# Buffers: addresses relative to a descriptor in four scalar registers


def _buffer_load(width: str) -> Operation:
    name, words = f"buffer_load_{width}", _WORDS[width]

    def check(address: Operand, descriptor: Operand, scalar: Operand, *, into: Any, offset: int) -> None:
        want(f"{name}: address", address, 1, files="v")
        want(f"{name}: descriptor", descriptor, 4, files="s", aligned=4)
        if isinstance(scalar, Registers):
            want(f"{name}: scalar offset", scalar, 1, files="s")
        elif not 0 <= scalar <= 64:
            raise ValueError(f"{name}: scalar offset is {scalar}; a scalar register or 0 to 64 is wanted")
        want(f"{name}: destination", into, words)
        want_range(f"{name}: offset", offset, _LARGEST_BUFFER_OFFSET)

    def text(instruction: Instruction, names: Any) -> str:
        (address, descriptor, scalar), (d,) = instruction.reads, instruction.writes
        return f"{name} {names(d)}, {names(address)}, {names(descriptor)}, {names(scalar)} offen{_offset(instruction)}"

    @operation(
        text,
        name=name,
        reads={"address": u32, "descriptor": u32, "scalar": u32},
        writes={"d": u32},
        check=check,
        uses=_traffic("global load bytes", words),
    )
    def load(warp: Any, address: Any, descriptor: Any, scalar: Any, *, offset: int = 0) -> Any:
        """From base + address + scalar + offset; dwords at `address + offset` beyond num_records read as zero.

        descriptor (CDNA3 ISA, "Buffer Resource Descriptor"): base in bits 47:0, stride (0 here) in 61:48, num_records
        in bytes in 95:64, flags in 127:96.
        """
        low, high, records, _ = (_scalar(warp, word, "a buffer descriptor") for word in descriptor)
        if high >> 16:
            warp.fail("buffer", f"a descriptor with a stride or swizzle ({high >> 16:#x}); raw buffers are modelled")
        inner = address.astype(np.int64) + offset
        inside = inner + 4 * np.arange(1, words + 1)[:, None] <= records
        start = (high << 32 | low) + _scalar(warp, warp.broadcast(scalar, u32), "a scalar offset")
        return _load(warp, VECTOR, start + inner, inside)

    return load


def _scalar(warp: Any, value: Any, what: str) -> int:
    if not (value == value[0]).all():
        warp.fail("divergence", f"{what} differs between lanes; scalar registers hold one value")
    return int(value[0])


buffer_load_dword, buffer_load_dwordx2, buffer_load_dwordx4 = map(_buffer_load, ("dword", "dwordx2", "dwordx4"))


# LDS


def _lds_read(width: str) -> Operation:
    name, words = f"ds_read_{width}", _WORDS[width]

    def check(address: Operand, *, into: Any, offset: int) -> None:
        want(f"{name}: address", address, 1, files="v")
        want(f"{name}: destination", into, words)
        want_range(f"{name}: offset", offset, _LARGEST_LDS_OFFSET)

    def text(instruction: Instruction, names: Any) -> str:
        (address,), (d,) = instruction.reads, instruction.writes
        return f"{name} {names(d)}, {names(address)}{_offset(instruction)}"

    @operation(
        text,
        name=name,
        reads={"address": u32},
        writes={"d": u32},
        check=check,
        uses=_traffic("shared load bytes", words),
    )
    def read(warp: Any, address: Any, *, offset: int = 0) -> Any:
        return _load(warp, LDS, address + np.uint32(offset))

    return read


def _lds_write(width: str) -> Operation:
    name, words = f"ds_write_{width}", _WORDS[width]

    def check(address: Operand, values: Operand, *, into: Any, offset: int) -> None:
        want(f"{name}: address", address, 1, files="v")
        want(f"{name}: data", values, words)
        want_range(f"{name}: offset", offset, _LARGEST_LDS_OFFSET)

    def text(instruction: Instruction, names: Any) -> str:
        address, values = instruction.reads
        return f"{name} {names(address)}, {names(values)}{_offset(instruction)}"

    @operation(text, name=name, reads={"address": u32}, check=check, uses=_traffic("shared store bytes", words))
    def write(warp: Any, address: Any, values: Any, *, offset: int = 0) -> None:
        warp.block.unit(WaitCounters).store(warp, LDS, address + np.uint32(offset), values)

    return write


ds_read_b32, ds_read_b64, ds_read_b128 = map(_lds_read, ("b32", "b64", "b128"))
ds_write_b32, ds_write_b64, ds_write_b128 = map(_lds_write, ("b32", "b64", "b128"))


# Two float32 at once, in two neighbouring registers


def _packed(name: str, operands: int, does: Callable[..., Any]) -> Operation:
    def check(*values: Operand, into: Any) -> None:
        for letter, value in zip("abc", values):
            want(f"{name}: {letter}", value, 2, files="v")
        want(f"{name}: destination", into, 2, files="v")

    letters = "abc"[:operands]
    text = f"{name} {{d}}, " + ", ".join(f"{{{letter}}}" for letter in letters)
    define = operation(
        text, reads=dict.fromkeys(letters, f32), writes={"d": f32}, check=check, uses={"issue": 1.0, "fma": 2.0}
    )

    @wraps(does)
    def arithmetic(warp: Any, *values: Any) -> Any:
        warp.block.unit(WaitStates).vector(warp)
        return does(warp, *values)

    return define(arithmetic)


v_pk_add_f32 = _packed("v_pk_add_f32", 2, lambda warp, a, b: a + b)
v_pk_mul_f32 = _packed("v_pk_mul_f32", 2, lambda warp, a, b: a * b)
v_pk_fma_f32 = _packed("v_pk_fma_f32", 3, lambda warp, a, b, c: fma32(a, b, c))


# Accumulation registers


def _check_accumulator(name: str, source: str, destination: str) -> Callable[..., None]:
    def check(value: Operand, *, into: Any) -> None:
        for what, registers, file in (("source", value, source), ("destination", into, destination)):
            placed = place(registers) if isinstance(registers, Registers) else None
            if placed is not None and placed[0] != file:
                raise ValueError(f"{name}: {what} is {registers!r} at {placed[0]}{placed[1]}; file {file} is wanted")

    return check


@operation(
    "v_accvgpr_read_b32 {d}, {a}",
    reads={"a": f32},
    writes={"d": f32},
    lanewise=True,
    check=_check_accumulator("v_accvgpr_read_b32", source="a", destination="v"),
)
def v_accvgpr_read_b32(warp: Any, a: Any) -> Any:
    """From accumulation registers to vector registers."""
    warp.block.unit(WaitStates).vector(warp)
    return a


@operation(
    "v_accvgpr_write_b32 {d}, {a}",
    reads={"a": f32},
    writes={"d": f32},
    lanewise=True,
    check=_check_accumulator("v_accvgpr_write_b32", source="v", destination="a"),
)
def v_accvgpr_write_b32(warp: Any, a: Any) -> Any:
    """From vector registers to accumulation registers."""
    warp.block.unit(WaitStates).vector(warp)
    return a
