"""Which virtual register a program's storage is, and how hand-written instructions name operands."""

from __future__ import annotations

from kingpost.program import Operand, Program, Registers
from kingpost.program.registers import Storage
from kingpost.targets.amd.lowering_numbers import float_bits
from kingpost.targets.amd.machine import Reg, Value, Virtual, written
from kingpost.targets.amd.registers import parse_place
from kingpost.targets.amd.uniform import scalars


def word_count(storage: Storage) -> int:
    """32-bit words of one of a storage's registers; a predicate is a mask of 64 lanes."""
    return 2 if storage.type.bits in (1, 64) else 1


class Names:
    """Storages as virtual registers, and operands as text: "v5", "s[2:3]", "a[0:15]" for a whole array.

    A storage is scalar if it is placed so, is a predicate, or has one value for all lanes and no hand-written
    instruction touches it; else it lies in vector registers.
    """

    def __init__(self, program: Program) -> None:
        self.virtuals: dict[Storage, Virtual] = {}
        by_hand = {
            value.storage
            for instruction in program.instructions()
            if instruction.operation.text is not None
            for value in (*instruction.reads, *instruction.writes)
            if isinstance(value, Registers)
        }
        self.scalar = scalars(program) - by_hand
        for instruction in program.instructions():
            for value in (*instruction.writes, *instruction.reads):
                if isinstance(value, Registers) and value.storage.place:
                    self.virtual(value.storage)

    def virtual(self, storage: Storage) -> Virtual:
        if storage not in self.virtuals:
            size = storage.size * word_count(storage)
            bank = "s" if storage.type.bits == 1 or storage in self.scalar else "v"
            source = storage.writers[0].source if storage.writers else None
            self.virtuals[storage] = virtual = Virtual(bank, size, storage.name, source)
            if storage.place:
                virtual.bank, virtual.first, count = parse_place(storage.place)
                if count != size:
                    raise ValueError(f"{storage!r} is placed at {storage.place!r}; {size} registers are wanted")
        return self.virtuals[storage]

    def value(self, operand: Operand, element: int = 0, words: int = 1) -> Value:
        """One element of an operand; a number as its bits."""
        if isinstance(operand, Registers):
            count = word_count(operand.storage)
            index = operand.indices[element if len(operand) > 1 else 0]
            return Reg(self.virtual(operand.storage), index * count, count)
        if isinstance(operand, float):
            return float_bits(operand)
        return operand & (1 << 32 * words) - 1 if operand < -16 else operand

    def tuple(self, registers: Registers) -> Reg | None:
        """Registers as the neighbouring words that they are, starting at an even one; None if they are not."""
        count, first = word_count(registers.storage), registers.indices[0]
        neighbours = registers.indices == tuple(range(first, first + len(registers)))
        if not neighbours or (len(registers) * count > 1 and first * count % 2):
            return None
        return Reg(self.virtual(registers.storage), first * count, len(registers) * count)

    def __call__(self, operand: Operand, element: int | None = None) -> str:
        """The text of an operand: of all its registers as one tuple, or of one of them."""
        if not isinstance(operand, Registers):
            return written(self.value(operand))
        whole = self.tuple(operand) if element is None else self.value(operand, element)
        if whole is None:
            raise ValueError(f"{operand!r} is no tuple: neighbouring registers from an even one on are wanted")
        return str(whole)
