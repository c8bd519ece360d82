"""Instructions to try on an assembler: of every definition of an instruction set, with operands right and wrong.

Whether a sample is right is for the definition to say: it emits the instruction or refuses. What it refuses is made
into text all the same, past its check, so that the assembler can be asked about it too.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kingpost.program import Builder, Instruction, Operation, Program, Registers, Target
from kingpost.program.instruction import Source


@dataclass(frozen=True, eq=False)
class Sample:
    """One instruction: what it is, how it may be written, and what its definition says against it."""

    label: str
    instruction: Instruction
    refusal: str | None

    def program(self, target: Target, line: int = 0) -> Program:
        """The instruction as a program of its own, from the source line "sample:line"."""
        self.instruction.source = Source("sample", line)
        return Program("sample", target.name, target.lanes, 4, (), (), 0, (self.instruction,))


Operands = Callable[[Builder], tuple[tuple[Any, ...], Any]]  # makes what an instruction reads, and its `into`


def sample(target: Target, operation: Operation, label: str, operands: Operands, fields: dict[str, Any]) -> Sample:
    """Emit an instruction; build it by hand where the definition refuses it."""
    k = Builder("samples", target)
    reads, into = operands(k)
    refusal = None
    try:
        operation(k, *reads, into=into, **fields)
    except (TypeError, ValueError) as error:
        refusal = str(error)
    targets = (into,) if isinstance(into, Registers) else tuple(k.array(type, 1) for type in operation.writes.values())
    elements = max((len(each) for each in (*targets, *reads) if isinstance(each, Registers)), default=1)
    made = Instruction(operation, targets, reads, fields, Source("", 0), elements if operation.lanewise else 1)
    emitted = k.finish({}).body
    instruction = emitted[-1] if refusal is None else made
    assert isinstance(instruction, Instruction)
    return Sample(label, instruction, refusal)


def definitions(package: ModuleType) -> dict[str, dict[str, Operation]]:
    """The operations that each module of a package defines, by module and by name."""
    modules = [importlib.import_module(f"{package.__name__}.{each.name}") for each in pkgutil.iter_modules(package.__path__)]
    return {
        module.__name__.rpartition(".")[2]: {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, Operation) and value.does.__module__ == module.__name__
        }
        for module in modules
    }
