"""What an instruction is: an `Operation` (defined once) applied to operands (an `Instruction`).

An operation holds its text, what it reads and writes, what it does to all lanes of a warp at once, and how much of
which unit it uses. The function that says what it does is also its signature::

    @operation("fma.rn.f32 {d}, {a}, {b}, {c};", writes={"d": f32}, uses={"fma": 1}, lanewise=True)
    def fma(warp, a, b, c):
        return fma32(a, b, c)

    fma(k, x, y, total, into=total)        # emits it into the program that k is writing

Positional parameters after `warp` are operands (registers, or numbers as immediates); keyword-only ones are fields,
fixed when the instruction is emitted. In the text, `{d}` is a written register, `{a}` an operand, `{field}` a field.
A *lanewise* operation on register arrays is one instruction and one line of text for each element.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kingpost.program.registers import Operand, Registers
from kingpost.program.types import Type

if TYPE_CHECKING:
    from kingpost.program.builder import Builder, Program

Uses = Mapping[str, float]
Text = str | Callable[..., str] | None


@dataclass(frozen=True)
class Source:
    """The Python line that emitted an instruction."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(eq=False)
class Instruction:
    """An operation applied: the registers it writes, the operands it reads, its fields and the line it came from."""

    operation: Operation
    writes: tuple[Registers, ...]
    reads: tuple[Operand, ...]
    fields: dict[str, Any]
    source: Source
    elements: int = 1  # lines of text for a lanewise operation

    @property
    def uses(self) -> dict[str, float]:
        """Units used by one warp executing this once: cycles, bytes or issue slots, never seconds."""
        uses = self.operation.uses
        amounts = uses(self) if callable(uses) else uses
        return {unit: amount * self.elements for unit, amount in amounts.items()}

    def __str__(self) -> str:
        fields = [f"{name}={value}" for name, value in self.fields.items()]
        target = ", ".join(map(repr, self.writes))
        return (
            (f"{target} = " if target else "")
            + f"{self.operation.name} "
            + ", ".join([*map(repr, self.reads), *fields])
        )


Harmless = Callable[["Program", Instruction], "str | None"]


def never(program: Program, instruction: Instruction) -> None:
    """No proof that a weakening is harmless."""


@dataclass(frozen=True)
class Weakening:
    """One way to take away, or to get wrong, what an instruction decides: a checker of programs must notice it.

    what: said before the operation's name, as in "delete" or "count + 1 in". instead(instruction): what stands in its
    place, None where there is nothing to weaken. harmless(program, instruction): why it makes no difference there, by
    what the instruction set says; None where it may make one.
    """

    what: str
    instead: Callable[[Instruction], Sequence[Instruction] | None]
    harmless: Harmless = never


DELETE = Weakening("delete", lambda instruction: ())
EVERY_LANE = Weakening("every lane at", lambda instruction: None)  # of a mask around it, where fewer must execute it


@dataclass(eq=False)
class Operation:
    """An instruction's one definition. `text` is None for a portable operation, which each target lowers."""

    name: str
    does: Callable[..., Any]
    text: Text
    reads: dict[str, Type]  # of the operands that must be of one type
    writes: dict[str, Type]
    uses: Uses | Callable[[Instruction], Uses]
    lanewise: bool
    converged: bool
    check: Callable[..., None] | None
    decides: tuple[Weakening, ...] = ()
    operands: tuple[str, ...] = field(init=False)
    fields: tuple[str, ...] = field(init=False)
    pure: bool = field(init=False)

    def __post_init__(self) -> None:
        parameters = list(inspect.signature(self.does).parameters.values())
        self.operands = tuple(p.name for p in parameters[1:] if p.kind is not p.KEYWORD_ONLY)
        self.fields = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        self.pure = self.lanewise and len(self.writes) == 1
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    def __call__(
        self, k: Builder, *reads: Operand, into: Registers | tuple[Registers, ...] | None = None, **fields: Any
    ) -> Any:
        """Emit this into the program `k` is writing; returns what it writes (new registers, or `into`)."""
        fields = {**{f: self.defaults[f] for f in self.fields if f in self.defaults}, **fields}
        if len(reads) != len(self.operands) or set(fields) != set(self.fields):
            raise TypeError(
                f"{self.name} takes operands {self.operands} and fields {self.fields}, "
                f"got {len(reads)} operands and fields {tuple(fields)}"
            )
        for field_name, value in fields.items():
            if isinstance(value, Registers):
                raise TypeError(f"{self.name}: {field_name} is {value!r}; a value known now is wanted, not a register")
        reads = tuple(self._operand(k, operand, value) for operand, value in zip(self.operands, reads))
        if self.check is not None:
            self.check(*reads, into=into, **fields)
        elements = self._elements(reads, into)
        if into is None:
            targets = tuple(k.array(type, elements) for type in self.writes.values())
        else:
            targets = into if isinstance(into, tuple) else (into,)
        if len(targets) != len(self.writes):
            raise TypeError(f"{self.name} writes {tuple(self.writes)}, got {len(targets)} registers to write")
        for (name, type), target in zip(self.writes.items(), targets):
            if target.type is not type:
                raise TypeError(f"{self.name}: {name} is {target!r}:{target.type.name}; {type.name} is wanted")
            if target.builder is not k:
                raise ValueError(f"{self.name}: {name} is a register of another program")
            if self.lanewise and len(target) != elements:
                raise ValueError(f"{self.name}: {name} has {len(target)} registers; {elements} are wanted")
            if self.lanewise:
                self._refuse_overlap(reads, target, elements)
        instruction = Instruction(self, targets, reads, fields, calling_line(), elements)
        k.append(instruction)
        results = tuple(t[0] if into is None and len(t) == 1 else t for t in targets)
        return results[0] if len(results) == 1 else results or None

    def _operand(self, k: Builder, name: str, value: Operand) -> Operand:
        wanted = self.reads.get(name)
        if isinstance(value, Registers):
            if value.builder is not k:
                raise ValueError(f"{self.name}: operand {name} is a register of another program")
            if wanted is not None and value.type is not wanted:
                raise TypeError(f"{self.name}: operand {name} is {value!r}:{value.type.name}; {wanted.name} is wanted")
            return value
        if not isinstance(value, (int, float)):
            raise TypeError(f"{self.name}: operand {name} is {value!r}; a register or a number is wanted")
        number = value if wanted is None else wanted.number(value)
        if number is None:
            raise TypeError(f"{self.name}: operand {name} is {value!r}; {wanted.name} is wanted")  # type: ignore[union-attr]
        return number

    def _refuse_overlap(self, reads: tuple[Operand, ...], target: Registers, elements: int) -> None:
        """The lines of an array's instruction run one after another, so none may read what one before it wrote."""
        line_of = {index: line for line, index in enumerate(target.indices)}
        for value in reads:
            if elements > 1 and isinstance(value, Registers) and value.storage is target.storage:
                indices = value.indices if len(value) > 1 else value.indices * elements
                if any(line_of.get(index, line) < line for line, index in enumerate(indices)):
                    raise ValueError(
                        f"{self.name}: line by line, it writes {target!r} before it reads it as {value!r}; "
                        "another target is wanted"
                    )

    def _elements(self, reads: tuple[Operand, ...], into: Any) -> int:
        if not self.lanewise:
            return 1
        lengths = {len(r) for r in (*reads, into) if isinstance(r, Registers)} - {1}
        if len(lengths) > 1:
            raise ValueError(f"{self.name}: operands of lengths {sorted(lengths)}; equal lengths (or 1) are wanted")
        return lengths.pop() if lengths else 1


def operation(
    text: Text,
    *,
    name: str | None = None,
    reads: dict[str, Type] | None = None,
    writes: dict[str, Type] | None = None,
    uses: Uses | Callable[[Instruction], Uses] | None = None,
    lanewise: bool = False,
    converged: bool = False,
    check: Callable[..., None] | None = None,
    decides: tuple[Weakening, ...] = (),
) -> Callable[[Callable[..., Any]], Operation]:
    """Define an operation; the decorated function says what it does (see the module's docstring).

    reads: the types of operands, where the text wants one; numbers are checked and converted.
    converged: all lanes of the warp must execute it together (the vendors' `.aligned`).
    check(*reads, into=, **fields): raises on operands that the instruction set forbids.
    decides: the ways to weaken it, where the order or the place of other instructions' effects hangs on it.
    """

    def define(does: Callable[..., Any]) -> Operation:
        label = name or (text.split(" ")[0].rstrip(";") if isinstance(text, str) else does.__name__)
        amounts = uses or {"issue": 1}
        return Operation(label, does, text, reads or {}, writes or {}, amounts, lanewise, converged, check, decides)

    return define


_DEFINING_MODULES = ("kingpost.program.", "contextlib", "functools")


def calling_line() -> Source:
    """The innermost Python line that is neither the virtual machine's nor an instruction definition's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_DEFINING_MODULES) and ".isa." not in module:
            break
        frame = frame.f_back
    return Source(portable_path(frame.f_code.co_filename), frame.f_lineno)


_PACKAGE = __file__.replace("\\", "/").rpartition("/program/")[0]


def portable_path(path: str) -> str:
    """A file's name as programs keep it: from the package on for our own files, the bare name for others."""
    path = path.replace("\\", "/")
    if path.startswith(_PACKAGE + "/"):
        return "kingpost" + path[len(_PACKAGE) :]
    return path.rpartition("/")[2]
