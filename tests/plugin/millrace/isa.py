"""The instructions. A program is a list of them: there are no branches, so it is written for the sizes at hand."""

from __future__ import annotations

from dataclasses import dataclass

from kingpost.arrays import View

QUEUES = 2
TILE = 64  # rows and columns of the matrix unit's accumulator
DEPTH = 64  # terms that one step adds to each element of it


@dataclass(frozen=True)
class Window:
    """A rectangle of an array in memory. What sticks out of the array is read as zero, and is not written."""

    array: str
    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True)
class Copy:
    """Queue a copy from memory into a slot. A queue's copies happen in order, at any time until they are waited for."""

    queue: int
    source: Window
    slot: str


@dataclass(frozen=True)
class Wait:
    """Stand still until at most `outstanding` copies of the queue remain."""

    queue: int
    outstanding: int


@dataclass(frozen=True)
class MatrixStep:
    """accumulator += a[:, first : first + DEPTH] b[:, first : first + DEPTH]^T, e4m3 in slots [TILE, >= DEPTH]."""

    a: str
    b: str
    first: int


@dataclass(frozen=True)
class ScaleAdd:
    """total = fma(accumulator, scale_a * scale_b, total) and accumulator = 0; slots [TILE, 1] and [1, 1]."""

    scale_a: str
    scale_b: str


@dataclass(frozen=True)
class Drain:
    """The total, rounded to the array's format, to memory; then total = 0."""

    destination: Window


@dataclass(frozen=True)
class DrainQuantised:
    """A slot, past the matrix unit, through the quantiser to memory: codes, and a scale for each row."""

    slot: str
    data: Window
    scales: Window
    eps: float
    power_of_two: bool


Instruction = Copy | Wait | MatrixStep | ScaleAdd | Drain | DrainQuantised


@dataclass(frozen=True)
class Program:
    """Instructions, and the arrays that their windows look at."""

    instructions: list[Instruction]
    arrays: dict[str, View]
