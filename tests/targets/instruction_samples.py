"""Instructions to try on an assembler: of every definition of an instruction set, with operands right and wrong.

Whether a sample is right is for the definition to say: it emits the instruction or refuses. What it refuses is made
into text all the same, past its check, so that the assembler can be asked about it too.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from kingpost.program import Builder, Instruction, Operation, Program, Registers, Target, Type
from kingpost.program.instruction import Source

Fields = dict[str, Any]
Maker = Callable[[Builder], Any]  # makes an operand in a program


@dataclass(frozen=True)
class Domain:
    """What is tried on a definition beside wrong operands, which are tried on all of them."""

    fields: dict[str, Sequence[Any]] = field(default_factory=dict)  # the first value of each is right
    together: tuple[str, ...] = ()  # fields tried in all combinations; others one at a time
    count: Callable[[Fields], dict[str, int]] = lambda fields: {}  # registers of an operand, where not 1
    types: dict[str, Type] = field(default_factory=dict)  # of operands that may be of several
    files: dict[str, str] = field(default_factory=dict)  # the register file of an operand, where there is a choice

    def base(self) -> Fields:
        return {name: values[0] for name, values in self.fields.items()}

    def variants(self) -> Iterator[Fields]:
        """The fields that are right; then with another value of one, or of all that are tried together."""
        base = self.base()
        yield base
        yield from (base | {name: value} for name, values in self.fields.items() for value in values[1:])
        if self.together:
            combined = itertools.product(*(self.fields[name] for name in self.together))
            yield from (base | dict(zip(self.together, values)) for values in combined)


@dataclass(frozen=True, eq=False)
class Sample:
    """One instruction: what it is, how it may be written, and what its definition says against it."""

    label: str
    instruction: Instruction
    refusal: str | None

    @property
    def registers(self) -> int:
        """How many different registers it is given."""
        given = [each for each in (*self.instruction.writes, *self.instruction.reads) if isinstance(each, Registers)]
        return len({(each.storage, index) for each in given for index in each.indices})

    def program(self, target: Target) -> Program:
        """The instruction as a program of its own, from the source line "sample:0"."""
        self.instruction.source = Source("sample", 0)
        return Program("sample", target.name, target.lanes, 4, (), (), 0, (self.instruction,))


def sample(target: Target, operation: Operation, label: str, makers: dict[str, Maker], fields: Fields) -> Sample:
    """Emit an instruction; build it by hand where the definition refuses it. makers: of what it reads and writes."""
    k = Builder("samples", target)
    values = {name: make(k) for name, make in makers.items()}
    reads = tuple(values[name] for name in operation.operands)
    into = next((values[name] for name in operation.writes), None)
    try:
        operation(k, *reads, into=into, **fields)
    except (TypeError, ValueError) as error:
        targets = (into,) if into is not None else tuple(k.array(type, 1) for type in operation.writes.values())
        lengths = (len(each) for each in (*targets, *reads) if isinstance(each, Registers))
        elements = max(lengths, default=1) if operation.lanewise else 1
        return Sample(label, Instruction(operation, targets, reads, fields, Source("", 0), elements), str(error))
    (instruction,) = k.finish({}).body
    assert isinstance(instruction, Instruction)
    return Sample(label, instruction, None)


def samples(
    target: Target,
    name: str,
    operation: Operation,
    domain: Domain,
    maker: Callable[[str, Fields], Maker],
    others: Callable[[str], Iterator[tuple[str, Maker]]],
) -> Iterator[Sample]:
    """A definition with what is right, then with other fields, then with `others(operand)` for each operand.

    maker(operand, fields): what makes an operand that is right.
    """
    missing = set(operation.fields) ^ set(domain.fields)
    assert not missing, f"{name}: values to try for its fields {sorted(missing)} are wanted in DOMAINS"
    slots, base = (*operation.operands, *operation.writes), domain.base()
    for fields in domain.variants():
        told = ", ".join(f"{name}={getattr(value, 'name', value)}" for name, value in fields.items())
        yield sample(target, operation, f"{name} {told}", {slot: maker(slot, fields) for slot in slots}, fields)
    right = {slot: maker(slot, base) for slot in slots}
    for slot in slots:
        for what, other in others(slot):
            yield sample(target, operation, f"{name} {slot}: {what}", right | {slot: other}, base)


def disagreements(
    tried: list[Sample],
    text: Callable[[Sample], str | None],
    complaints: Callable[[list[str]], dict[int, str]],
    stricter: dict[str, str],
    not_asked: str | None = None,
) -> list[str]:
    """Where definitions and an assembler say different things, but for refusals that match one of `stricter`.

    complaints: what the assembler has against texts, by index. A refused sample whose text is also that of one that is
    right tells the assembler nothing, and it is not asked; nor about refusals that match `not_asked`.
    """
    problems = []
    accepted: dict[str, list[Sample]] = defaultdict(list)
    refused: dict[str, list[Sample]] = defaultdict(list)
    for each in tried:
        written = text(each)
        if each.refusal is None and written is None:
            problems.append(f"{each.label}: accepted, but has no text")
        elif written is not None and not (not_asked and re.search(not_asked, each.refusal or "")):
            (accepted if each.refusal is None else refused)[written].append(each)
    asked = [*accepted, *(written for written in refused if written not in accepted)]
    told = complaints(asked)
    for index, written in enumerate(asked):
        if written in accepted and index in told:
            problems.append(f"{accepted[written][0].label}: accepted, but the assembler says: {told[index]}")
        if written not in accepted and index not in told:
            problems += [
                f"{each.label}: the assembler takes it, but refused: {each.refusal}"
                for each in refused[written]
                if not any(re.search(known, each.refusal or "") for known in stricter)
            ]
    return problems


def definitions(package: ModuleType) -> dict[str, dict[str, Operation]]:
    """The operations that each module of a package defines, by module and by name; of modules that define any."""
    found = {}
    for each in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{each.name}")
        own = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, Operation) and value.does.__module__ == module.__name__
        }
        if own:
            found[each.name] = own
    return found
