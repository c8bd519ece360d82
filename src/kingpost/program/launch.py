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

    def __post_init__(self) -> None:
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
