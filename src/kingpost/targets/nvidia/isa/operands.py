"""What PTX asks of operands, refused with the reason when an instruction is emitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kingpost.program import Operand, Registers

LARGEST = (1 << 31) - 1  # a number in the text: an offset from an address, a count of groups


def want_single(name: str, *operands: Operand | None) -> None:
    """Refuse arrays of registers where the text has room for one: the others would be dropped without a word."""
    for operand in operands:
        if isinstance(operand, Registers) and len(operand) != 1:
            raise ValueError(f"{name}: {operand!r} has {len(operand)} registers; one is wanted")


def want_address(name: str, what: str, operand: Operand) -> None:
    """Refuse a number: PTX wants addresses outside local memory in a register, and ptxas 13.5 crashes at some."""
    if not isinstance(operand, Registers):
        raise ValueError(f"{name}: {what} is {operand!r}; a register is wanted")


def want_range(name: str, what: str, value: int, least: int, largest: int, multiple: int = 1) -> None:
    if not least <= value <= largest or value % multiple:
        rest = f", a multiple of {multiple}," if multiple > 1 else ""
        raise ValueError(f"{name}: {what} is {value}; {least} to {largest}{rest} is wanted")


def single(name: str, *addresses: str | None) -> Callable[..., None]:
    """A check for operands of one register each; those that are addresses by name, None for those that are not."""

    def check(*reads: Operand, into: Any, **fields: Any) -> None:
        want_single(name, *reads, into)
        for what, operand in zip(addresses, reads):
            if what is not None:
                want_address(name, what, operand)

    return check


def want_matrix(name: str, swizzle: int, **bytes: int) -> None:
    """Fields of a descriptor of a matrix in shared memory: 14 bits of 16 bytes each, and a swizzle that there is."""
    for what, value in bytes.items():
        want_range(name, what, value, 0, (1 << 18) - 16, multiple=16)
    if swizzle not in (0, 32, 64, 128):
        raise ValueError(f"{name}: swizzle is {swizzle}; 0, 32, 64 or 128 is wanted")
