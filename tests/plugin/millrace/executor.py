"""Runs programs. Copies are made as late as the program allows, so that one which is not waited for shows."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from millrace import arithmetic, isa
from millrace.isa import Copy, Drain, DrainQuantised, MatrixStep, ScaleAdd, Wait, Window

Array = np.ndarray[Any, Any]


class Hazard(RuntimeError):
    """The program reads what need not be there yet."""


class Executor:
    """One machine: queues, slots, an accumulator and a total."""

    def __init__(self, program: isa.Program) -> None:
        self.program = program
        self.arrays = {name: view.numpy() for name, view in program.arrays.items()}
        self.queues: list[deque[Copy]] = [deque() for _ in range(isa.QUEUES)]
        self.slots: dict[str, Array] = {}
        self.accumulator, self.total = np.zeros((2, isa.TILE, isa.TILE), np.float32)

    def run(self) -> None:
        with np.errstate(all="ignore"):
            for instruction in self.program.instructions:
                self.step(instruction)
        if any(self.queues):
            raise Hazard("the program ends while copies are queued; a Wait is wanted")

    def step(self, instruction: isa.Instruction) -> None:
        match instruction:
            case Copy(queue):
                self.queues[queue].append(instruction)
            case Wait(queue, outstanding):
                while len(self.queues[queue]) > outstanding:
                    copy = self.queues[queue].popleft()
                    self.slots[copy.slot] = self.read(copy.source)
            case MatrixStep(a, b, first):
                terms = slice(first, first + isa.DEPTH)
                left, right = self.slot(a)[:, terms], self.slot(b)[:, terms]
                self.accumulator = arithmetic.matrix_step(self.accumulator, left, right)
            case ScaleAdd(scale_a, scale_b):
                self.total = arithmetic.scale_add(self.accumulator, self.slot(scale_a), self.slot(scale_b), self.total)
                self.accumulator = np.zeros_like(self.accumulator)
            case Drain(window):
                self.write(window, arithmetic.drained(self.total, self.program.arrays[window.array].format))
                self.total = np.zeros_like(self.total)
            case DrainQuantised(slot, data, scales, eps, power_of_two):
                format = self.program.arrays[data.array].format
                codes, scale = arithmetic.quantised(self.slot(slot), format, eps, power_of_two)
                self.write(data, codes)
                self.write(scales, scale)

    def slot(self, name: str) -> Array:
        """What a slot holds. Raises Hazard if a copy into it is still queued, or none was ever made."""
        if name not in self.slots or any(copy.slot == name for queue in self.queues for copy in queue):
            raise Hazard(f"slot {name!r} is read before the copy into it is waited for")
        return self.slots[name]

    def read(self, window: Window) -> Array:
        inside = self.inside(window)
        whole = np.zeros((window.rows, window.columns), inside.dtype)
        whole[: inside.shape[0], : inside.shape[1]] = inside
        return whole

    def write(self, window: Window, values: Array) -> None:
        inside = self.inside(window)
        inside[...] = values[: inside.shape[0], : inside.shape[1]]

    def inside(self, window: Window) -> Array:
        """The part of the window that lies in its array, as a view."""
        rows = slice(window.row, window.row + window.rows)
        return self.arrays[window.array][rows, window.column : window.column + window.columns]
