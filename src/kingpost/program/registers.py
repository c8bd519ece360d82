"""Registers: typed, mutable, one value per lane.

A `Storage` is what an instruction set allocates: one or more registers of one type. `Registers` is a view of some of
them, in any order and with repeats, so an instruction on a register array is one object; `Register` is a view of one.
Arithmetic operators emit a portable operation and return a new register; `+=` and its kin write the register itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kingpost.program.types import Type

if TYPE_CHECKING:
    from kingpost.program.builder import Builder
    from kingpost.program.instruction import Instruction


class Storage:
    """`size` registers of one type, as one allocation of the program `builder` is writing."""

    def __init__(
        self, builder: Builder, type: Type, size: int, name: str | None = None, place: str | None = None
    ) -> None:
        self.builder, self.type, self.size = builder, type, size
        self.place = place  # the chip's registers that it must be, where a kernel allocates by hand
        self.index = builder.next_storage()
        self.name = name or f"{type.name[0]}{self.index}"
        self.writers: list[Instruction] = []
        self.counter = False  # a loop counter: rebound by the loop itself

    def __repr__(self) -> str:
        return f"{self.name}:{self.type.name}" + (f"[{self.size}]" if self.size > 1 else "")


class Registers:
    """Some registers of one storage, in order: `whole[0:8]`, `whole[[0, 0, 1, 1]]`, `whole[3]` (a `Register`)."""

    def __init__(self, storage: Storage, indices: tuple[int, ...]) -> None:
        self.storage, self.indices = storage, indices
        self.whole = indices == tuple(range(storage.size))

    @property
    def type(self) -> Type:
        return self.storage.type

    @property
    def builder(self) -> Builder:
        return self.storage.builder

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int | slice | list[int]) -> Registers:
        if isinstance(item, slice):
            return Registers(self.storage, self.indices[item])
        if isinstance(item, int):
            return Register(self.storage, (self.indices[item],))
        return Registers(self.storage, tuple(self.indices[i] for i in item))

    def __iter__(self) -> Any:
        return (Register(self.storage, (i,)) for i in self.indices)

    def same(self, other: object) -> bool:
        """Whether `other` names exactly these registers."""
        return isinstance(other, Registers) and (self.storage, self.indices) == (other.storage, other.indices)

    def __repr__(self) -> str:
        if self.whole:
            return self.storage.name
        if len(self.indices) == 1:
            return f"{self.storage.name}[{self.indices[0]}]"
        first, last = self.indices[0], self.indices[-1]
        contiguous = self.indices == tuple(range(first, last + 1))
        return f"{self.storage.name}[{first}:{last + 1}]" if contiguous else f"{self.storage.name}{list(self.indices)}"

    def __bool__(self) -> bool:
        raise TypeError(
            "a register has no value while the program is written: branch on it with k.when(...) or k.mask(...), "
            "choose with k.select(...)"
        )

    def _emit(self, name: str, *operands: Any, into: Registers | None = None) -> Any:
        return self.builder.emit_portable(name, *operands, into=into)

    # fmt: off
    def __add__(self, other: Operand) -> Any: return self._emit("add", self, other)
    def __radd__(self, other: Operand) -> Any: return self._emit("add", self, other)
    def __sub__(self, other: Operand) -> Any: return self._emit("sub", self, other)
    def __mul__(self, other: Operand) -> Any: return self._emit("mul", self, other)
    def __rmul__(self, other: Operand) -> Any: return self._emit("mul", self, other)
    def __floordiv__(self, other: Operand) -> Any: return self._emit("div", self, other)
    def __mod__(self, other: Operand) -> Any: return self._emit("rem", self, other)
    def __and__(self, other: Operand) -> Any: return self._emit("and", self, other)
    def __or__(self, other: Operand) -> Any: return self._emit("or", self, other)
    def __xor__(self, other: Operand) -> Any: return self._emit("xor", self, other)
    def __lshift__(self, other: Operand) -> Any: return self._emit("shl", self, other)
    def __rshift__(self, other: Operand) -> Any: return self._emit("shr", self, other)
    def __lt__(self, other: Operand) -> Any: return self._emit("lt", self, other)
    def __le__(self, other: Operand) -> Any: return self._emit("le", self, other)
    def __gt__(self, other: Operand) -> Any: return self._emit("gt", self, other)
    def __ge__(self, other: Operand) -> Any: return self._emit("ge", self, other)
    def __eq__(self, other: object) -> Any: return self._emit("eq", self, other)
    def __ne__(self, other: object) -> Any: return self._emit("ne", self, other)
    __hash__ = object.__hash__
    def __iadd__(self, other: Operand) -> Any: return self._emit("add", self, other, into=self)
    def __isub__(self, other: Operand) -> Any: return self._emit("sub", self, other, into=self)
    def __imul__(self, other: Operand) -> Any: return self._emit("mul", self, other, into=self)
    def __ixor__(self, other: Operand) -> Any: return self._emit("xor", self, other, into=self)
    # fmt: on


class Register(Registers):
    """A view of a single register."""


Operand = Registers | int | float
