"""Parameters of a program and a launch of it: a program with its grid and arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kingpost.arrays import View
from kingpost.program.registers import Register
from kingpost.program.tensor_map import TensorMap, TensorMapType
from kingpost.program.types import Type

if TYPE_CHECKING:
    from kingpost.program.builder import Program

TENSOR_MAP_BYTES = 128


@dataclass(frozen=True, eq=False)
class Parameter:
    """A scalar parameter (read into `register`) or a tensor map (then `register` holds its address)."""

    name: str
    type: Type | TensorMapType
    register: Register

    @property
    def bytes(self) -> int:
        return TENSOR_MAP_BYTES if isinstance(self.type, TensorMapType) else self.type.bits // 8


Argument = int | float | TensorMap


@dataclass(frozen=True)
class Launch:
    """A program, how many blocks of it run, and its arguments by parameter name.

    `views` are the arrays that address arguments (u64) point into: the emulator allows access to nothing else.
    """

    program: Program
    grid: int
    arguments: dict[str, Argument]
    views: tuple[View, ...] = field(default=())

    @classmethod
    def of(cls, program: Program, grid: int, **values: View | Argument) -> Launch:
        """A launch whose arrays are given as views: one stands for a tensor map of it, or for its address (u64)."""
        arguments: dict[str, Argument] = {}
        for parameter in program.parameters:
            value = values.get(parameter.name)
            if isinstance(value, View):
                mapped = isinstance(parameter.type, TensorMapType)
                arguments[parameter.name] = TensorMap(parameter.type, value) if mapped else value.pointer  # type: ignore[arg-type]
            elif value is not None:
                arguments[parameter.name] = value
        unknown = set(values) - {p.name for p in program.parameters}
        if unknown:
            raise ValueError(f"arguments {sorted(unknown)} are no parameters of {program.name}")
        return cls(program, grid, arguments, tuple(value for value in values.values() if isinstance(value, View)))

    def __post_init__(self) -> None:
        if not isinstance(self.grid, int) or self.grid < 0:
            raise ValueError(f"grid is {self.grid!r}; a number of blocks is wanted")
        if self.grid % self.program.cluster:
            raise ValueError(f"grid is {self.grid}; a multiple of {self.program.cluster}, the cluster, is wanted")
        wanted, given = {p.name for p in self.program.parameters}, set(self.arguments)
        if wanted != given:
            raise ValueError(f"arguments are {sorted(given)}; {sorted(wanted)} are wanted")
        for parameter in self.program.parameters:
            value = self.arguments[parameter.name]
            if isinstance(parameter.type, TensorMapType):
                if not isinstance(value, TensorMap) or value.type != parameter.type:
                    raise ValueError(f"argument {parameter.name} is {value!r}; a map of {parameter.type} is wanted")
            elif isinstance(value, TensorMap) or parameter.type.number(value) is None:
                raise ValueError(f"argument {parameter.name} is {value!r}; a {parameter.type.name} is wanted")


def pack(launch: Launch, encode: Callable[[TensorMap], bytes]) -> list[bytes]:
    """The bytes of each parameter, in order, little-endian; tensor maps as `encode` gives them."""
    values = ((parameter, launch.arguments[parameter.name]) for parameter in launch.program.parameters)
    return [
        encode(value) if isinstance(value, TensorMap) else np.array(value, parameter.type.dtype).tobytes()  # type: ignore[union-attr]
        for parameter, value in values
    ]
