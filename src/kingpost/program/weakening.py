"""Ways to weaken an instruction by its fields and operands, for `operation(..., decides=...)`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from kingpost.program.instruction import DELETE, Harmless, Instruction, Weakening, never
from kingpost.program.operations import portable
from kingpost.program.registers import Operand, Registers, Storage


def with_fields(instruction: Instruction, **fields: Any) -> Sequence[Instruction] | None:
    """The instruction with other fields; None if they are what it has."""
    wanted = {**instruction.fields, **fields}
    return None if wanted == instruction.fields else (replace(instruction, fields=wanted),)


def moved(field: str, *steps: int, harmless: Harmless = never) -> tuple[Weakening, ...]:
    """A field's number moved by each of `steps`; nothing to weaken where it is 0 or None and moved down."""

    def by(step: int) -> Weakening:
        def instead(instruction: Instruction) -> Sequence[Instruction] | None:
            value = instruction.fields[field]
            return None if value is None or value + step < 0 else with_fields(instruction, **{field: value + step})

        return Weakening(f"{field} {_signed(step)} in", instead, harmless)

    return tuple(by(step) for step in steps)


def exchanged(field: str, values: Iterable[Any]) -> tuple[Weakening, ...]:
    """A field given each of `values` that it does not have."""

    def to(value: Any) -> Weakening:
        return Weakening(f"{field} {value} in", lambda instruction: with_fields(instruction, **{field: value}))

    return tuple(to(value) for value in values)


def deleted(harmless: Harmless) -> Weakening:
    """`DELETE`, with a proof of where it makes no difference."""
    return replace(DELETE, harmless=harmless)


def shifted(operand: str, step: int, harmless: Harmless = never) -> Weakening:
    """`step` more in an operand: the neighbour of what it names."""

    def instead(instruction: Instruction) -> Sequence[Instruction]:
        return _computed(instruction, operand, "add", step)

    return Weakening(f"{operand} {_signed(step)} in", instead, harmless)


def flipped(operand: str) -> Weakening:
    """The other parity."""
    return Weakening(f"{operand} ^ 1 in", lambda instruction: _computed(instruction, operand, "xor", 1))


def _computed(instruction: Instruction, operand: str, name: str, number: int) -> Sequence[Instruction]:
    """The instruction with `operand` changed: a number at once, a register by an instruction ahead of it."""
    place = instruction.operation.operands.index(operand)
    value = instruction.reads[place]
    if not isinstance(value, Registers):
        assert isinstance(value, int)
        return (_reading(instruction, place, value ^ number if name == "xor" else value + number),)
    changed = Registers(Storage(value.builder, value.type, 1, operand), (0,))
    ahead = Instruction(portable(name, value.type), (changed,), (value, number), {}, instruction.source)
    changed.storage.writers.append(ahead)
    return ahead, _reading(instruction, place, changed)


def _reading(instruction: Instruction, place: int, value: Operand) -> Instruction:
    reads = instruction.reads
    return replace(instruction, reads=(*reads[:place], value, *reads[place + 1 :]))


def _signed(step: int) -> str:
    return f"{'+' if step > 0 else '-'} {abs(step)}"
