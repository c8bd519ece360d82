"""Shared memory as declared by a program, and the swizzle that copies and products agree on."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from kingpost.formats import Format
from kingpost.program.registers import Operand, Register

if TYPE_CHECKING:
    from kingpost.program.builder import Builder

SWIZZLES = (0, 32, 64, 128)


def swizzle(address: Any, span: int) -> Any:
    """Where the byte of a linear address lies under a swizzle of `span` bytes (0, 32, 64 or 128).

    The 16-byte chunk index is exclusive-ored with the index of the 128-byte line, on absolute shared-memory addresses:
    for 128 bytes, bits 6:4 ^= bits 9:7; for 64, bits 5:4 ^= bits 8:7; for 32, bit 4 ^= bit 7
    (PTX ISA, "Swizzling modes"). Takes an int or an integer array; works on registers too.
    """
    if span == 0:
        return address
    if span not in SWIZZLES:
        raise ValueError(f"swizzle is {span}; one of {SWIZZLES} is wanted")
    chunks = span // 16 - 1
    return address ^ (((address >> 7) & chunks) << 4)


@dataclass(frozen=True, eq=False)
class SharedArray:
    """An array in shared memory: `shape` elements of `format`, the first dimension outermost, rows swizzled.

    `offset` and `stride` are in bytes; a swizzled row (the last dimension) is at most the swizzle's span.
    """

    builder: Builder
    name: str
    shape: tuple[int, ...]
    format: Format
    swizzle: int
    offset: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.format.bits // 8

    @property
    def stride(self) -> int:
        """Bytes from one index of the first dimension to the next."""
        return self.bytes // self.shape[0]

    def at(self, index: Operand, offset: int = 0) -> Register:
        """The address (u32, bytes) of `array[index]`, plus `offset` bytes."""
        base = self.builder.shared_base
        if isinstance(index, int):
            return base + (self.offset + index * self.stride + offset)
        return self.builder.fused_multiply_add(index, self.stride, base + (self.offset + offset))

    def __repr__(self) -> str:
        swizzled = f", swizzle {self.swizzle}" if self.swizzle else ""
        return f"{self.name}: {self.format.name}{list(self.shape)} at {self.offset}{swizzled}"
