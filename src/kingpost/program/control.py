"""Structured control flow: what the body of a program is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kingpost.program.instruction import Instruction, Source
from kingpost.program.registers import Operand, Register, Registers, Storage


@dataclass(eq=False)
class Loop:
    """`counter` from `start` to `stop` by `step`, at run time; the operands are uniform over a warp."""

    counter: Register
    start: Operand
    stop: Operand
    step: Operand
    source: Source
    body: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        return f"loop {self.counter!r} from {self.start!r} to {self.stop!r} by {self.step!r}"


@dataclass(eq=False)
class When:
    """The body runs if `condition`, which is uniform over a warp."""

    condition: Register
    source: Source
    body: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        return f"when {self.condition!r}"


@dataclass(eq=False)
class Mask:
    """The body runs in the lanes where `condition` holds."""

    condition: Register
    source: Source
    body: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        return f"mask {self.condition!r}"


@dataclass(eq=False)
class Role:
    """What warps `first` to `first + warps - 1` of a block do, with a register budget for each of their threads."""

    name: str
    first: int
    warps: int
    registers: int | None
    source: Source
    body: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        budget = f", {self.registers} registers a thread" if self.registers else ""
        return f"role {self.name!r}: warps {self.first} to {self.first + self.warps - 1}{budget}"


Node = Instruction | Loop | When | Mask | Role


def instructions(body: list[Node]) -> Iterator[Instruction]:
    """Every instruction of a body, in the order of the text."""
    for node in body:
        if isinstance(node, Instruction):
            yield node
        else:
            yield from instructions(node.body)


def earlier(body: Sequence[Node], instruction: Instruction) -> Iterator[Instruction]:
    """What may be executed before an instruction: all that stands above it, and all of the loops around it."""
    for node in body:
        if node is instruction:
            return
        inside = [node] if isinstance(node, Instruction) else list(instructions(node.body))
        if instruction not in inside or isinstance(node, Loop):
            yield from inside
        elif not isinstance(node, Instruction):
            yield from earlier(node.body, instruction)
        if instruction in inside:
            return


def storages_read(body: list[Node]) -> set[Storage]:
    """The storages that a body reads, in instructions, conditions and loop bounds."""
    read: set[Storage] = set()
    for node in body:
        match node:
            case Instruction():
                operands: tuple[Operand, ...] = node.reads
            case Loop():
                operands = (node.start, node.stop, node.step)
            case When() | Mask():
                operands = (node.condition,)
            case _:
                operands = ()
        read |= {operand.storage for operand in operands if isinstance(operand, Registers)}
        if not isinstance(node, Instruction):
            read |= storages_read(node.body)
    return read
