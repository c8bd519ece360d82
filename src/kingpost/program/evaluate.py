"""The value of a register, from the instructions that define it, without running the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kingpost.program.registers import Operand, Registers


class NotConstant(ValueError):
    """The register depends on more than parameters, block index, grid size and the given registers."""


def evaluate(value: Operand, environment: Mapping[Any, int]) -> int | float:
    """The value of an operand, the same in all lanes.

    environment: by name, the program's scalar parameters, "block_index" and "grid_size"; and values of registers
    (loop counters) by the register's storage.
    """
    if not isinstance(value, Registers):
        return value
    if value.storage in environment:
        return environment[value.storage]
    writers = value.storage.writers
    if value.storage.counter or len(writers) != 1 or len(value) != 1:
        raise NotConstant(f"{value!r} is written {len(writers)} times or counts a loop; its value depends on the run")
    instruction = writers[0]
    name = instruction.fields.get("parameter", instruction.operation.name)
    if name in environment:
        return environment[name]
    if not instruction.operation.pure:
        raise NotConstant(f"{value!r} is made by {instruction.operation.name} at {instruction.source}")
    reads = [_lane(read, evaluate(read, environment)) for read in instruction.reads]
    with np.errstate(over="ignore"):
        return np.asarray(instruction.operation.does(None, *reads, **instruction.fields), value.type.dtype).item()


def _lane(operand: Operand, value: int | float) -> Any:
    return np.asarray(value, operand.type.dtype) if isinstance(operand, Registers) else value
