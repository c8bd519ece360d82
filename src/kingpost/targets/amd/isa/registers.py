"""What the CDNA instruction set asks of operands, refused with the reason when an instruction is emitted."""

from __future__ import annotations

import re
from typing import Any

from kingpost.program import Operand, Registers

Place = tuple[str, int]  # a register file ("v", "a" or "s") and the number of a register in it


def place(registers: Registers) -> Place | None:
    """Where the first of some registers was placed by hand; None if they are still to be allocated."""
    pinned = getattr(registers.storage, "place", None)
    if pinned is None:
        return None
    found = re.fullmatch(r"([vas])\[?(\d+)(?::\d+)?\]?", pinned)
    if found is None:
        raise ValueError(f"place is {pinned!r}; v3, v[4:7], a[0:15] or s[8:11] is wanted")
    return found[1], int(found[2]) + registers.indices[0] * registers.type.bits // 32


def want(what: str, operand: Operand | None, count: int, files: str = "va", aligned: int | None = None) -> None:
    """Refuse an operand that is not `count` neighbouring 32-bit registers of one of `files`.

    Tuples start at a multiple of `aligned` (default: 2, as gfx90a and later want of every tuple).
    """
    if not isinstance(operand, Registers):
        raise ValueError(f"{what} is {operand!r}; {_registers(count)} are wanted")
    words = len(operand) * operand.type.bits // 32
    if words != count:
        raise ValueError(f"{what} is {operand!r}, {_registers(words)}; {count} are wanted")
    first = operand.indices[0]
    if operand.indices != tuple(range(first, first + len(operand))):
        raise ValueError(f"{what} is {operand!r}; neighbouring registers are wanted")
    multiple = aligned or (2 if count > 1 else 1)
    placed = place(operand)
    if placed is None:
        if files == "s":
            raise ValueError(
                f"{what} is {operand!r}; a scalar register placed by hand is wanted, as in place='s[8:11]'"
            )
        if first * operand.type.bits // 32 % multiple:
            raise ValueError(f"{what} is {operand!r}, which starts in the middle of an aligned tuple")
        return
    file, number = placed
    if file not in files:
        kinds = " or ".join({"v": "vector", "a": "accumulation", "s": "scalar"}[each] for each in files)
        raise ValueError(f"{what} is {operand!r} at {file}{number}; {kinds} registers are wanted")
    if number % multiple:
        raise ValueError(
            f"{what} is {operand!r} at {file}{number}; a tuple that starts at a multiple of {multiple} is wanted"
        )


def want_range(what: str, value: int, largest: int, multiple: int = 1) -> None:
    if not 0 <= value <= largest or value % multiple:
        rest = f", a multiple of {multiple}," if multiple > 1 else ""
        raise ValueError(f"{what} is {value}; 0 to {largest}{rest} is wanted")


def want_target(name: str, operands: tuple[Any, ...], targets: tuple[str, ...]) -> None:
    """Refuse an instruction that the chip which the program is for does not have."""
    for operand in operands:
        if isinstance(operand, Registers):
            target = operand.builder.target.name
            if target not in targets:
                raise ValueError(f"{name} exists on {', '.join(targets)}, not on {target}")
            return


def _registers(count: int) -> str:
    return f"{count} register" + ("s" if count != 1 else "")
