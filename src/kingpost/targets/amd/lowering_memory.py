"""Portable loads, stores and shuffles.

Sources: CDNA3 ISA, "FLAT, global and scratch instructions" (offsets of 13 bits, signed) and "LDS" (16 bits).
"""

from __future__ import annotations

import re

from kingpost.targets.amd.lowering import Lowering
from kingpost.targets.amd.machine import Reg, Value

_ACCESS = re.compile(r"(load|store)_(global|shared)(?:_x(\d)|_b(\d+))?\.(u32|f32|u64)")
_GLOBAL = {1: ("ubyte", "byte"), 2: ("ushort", "short"), 4: ("dword",) * 2, 8: ("dwordx2",) * 2, 16: ("dwordx4",) * 2}
_SHARED = {1: ("u8", "b8"), 2: ("u16", "b16"), 4: ("b32",) * 2, 8: ("b64",) * 2, 16: ("b128",) * 2}


def access(name: str) -> tuple[str, str, int] | None:
    """("load", "global", 16) for "load_global_x4.f32": what it does, where, and the bytes of a lane."""
    found = _ACCESS.fullmatch(name)
    if found is None:
        return None
    verb, space, count, bits, type = found.groups()
    return verb, space, int(bits) // 8 if bits else int(type[1:]) // 8 * int(count or 1)


def load(e: Lowering, space: str, size: int, d: Reg, address: Value, offset: int) -> None:
    if space == "global":
        place, base, suffix = _global(e, address, offset)
        e.vector(f"global_load_{_GLOBAL[size][0]}", d, place, base, suffix=suffix)
    else:
        place, suffix = _shared(e, address, offset)
        e.vector(f"ds_read_{_SHARED[size][0]}", d, place, suffix=suffix)


def store(e: Lowering, space: str, size: int, address: Value, value: Value, offset: int) -> None:
    value = e.in_vector(value)
    if space == "global":
        place, base, suffix = _global(e, address, offset)
        e.vector(f"global_store_{_GLOBAL[size][1]}", (), place, value, base, suffix=suffix)
    else:
        place, suffix = _shared(e, address, offset)
        e.vector(f"ds_write_{_SHARED[size][1]}", (), place, value, suffix=suffix)


def _global(e: Lowering, address: Value, offset: int) -> tuple[Reg, Value, str]:
    """The vector part of an address, the scalar part or "off", and the offset."""
    if not -4096 <= offset < 4096:
        moved = e.temporary(2)
        e.vector("v_lshl_add_u64", moved, e.in_vector(offset, 2), 0, address)
        address, offset = moved, 0
    suffix = f" offset:{offset}" if offset else ""
    if isinstance(address, Reg) and address.bank == "s":
        return e.in_vector(0), address, suffix
    return e.in_vector(address, 2), "off", suffix


def _shared(e: Lowering, address: Value, offset: int) -> tuple[Reg, str]:
    if not 0 <= offset < 1 << 16:
        moved = e.temporary()
        e.vector("v_add_u32", moved, offset & 0xFFFFFFFF, e.in_vector(address))
        address, offset = moved, 0
    return e.in_vector(address), f" offset:{offset}" if offset else ""


def shuffle_xor(e: Lowering, d: Reg, value: Value, thread: Reg, mask: int) -> None:
    """Within 32 lanes by a pattern that the instruction holds, else by the byte address of each lane's source."""
    value = e.in_vector(value)
    if 0 <= mask < 32:
        e.vector("ds_swizzle_b32", d, value, suffix=f" offset:{mask << 10 | 0x1F:#x}")
        return
    source = e.temporary()
    e.vector("v_and_b32", source, 63, thread)
    e.vector("v_xor_b32", source, mask, source)
    e.vector("v_lshlrev_b32", source, 2, source)
    e.vector("ds_bpermute_b32", d, source, value)
