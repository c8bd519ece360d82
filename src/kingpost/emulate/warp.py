"""A warp (or wave): a coroutine over vectors of lanes that executes a program's body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kingpost.emulate.order import WarpClock
from kingpost.emulate.report import EmulationError, Finding
from kingpost.program import Instruction, Loop, Mask, Node, Operand, Registers, Role, Source, Type, When
from kingpost.program.registers import Storage

if TYPE_CHECKING:
    from kingpost.emulate.block import Block
    from kingpost.emulate.memory import GlobalMemory, SharedMemory

ASYNCHRONOUS = object()  # an operation returns this when an agent writes its result later


@dataclass(frozen=True)
class Wait:
    """What an operation returns to hold its warp until `ready()`. passed: called when the warp goes on."""

    ready: Callable[[], bool]
    describe: Callable[[], str]
    passed: Callable[[], None] = lambda: None


class Warp:
    """One warp of a block. Operations are given it as their first argument.

    active: the lanes (bool) that execute the current instruction. lanes: their indices, from 0 (uint32).
    """

    def __init__(self, block: Block, index: int) -> None:
        self.block, self.index = block, index
        self.lanes = np.arange(block.program.lanes, dtype=np.uint32)
        self.active = np.ones(block.program.lanes, bool)
        self.values: dict[Storage, np.ndarray] = {}
        self.undefined: dict[Storage, np.ndarray] = {}  # lanes never written, while there are any
        self.locked: dict[Storage, dict[int, str]] = {}  # registers that an asynchronous operation holds, and which
        self.touched: dict[Storage, int] = {}  # the number of the instruction that last read or wrote registers
        self.written: dict[Storage, int] = {}  # that last wrote them
        self.issued = 0  # instructions so far
        self.instruction: Instruction | None = None
        self.role = ""
        self.waiting: Wait | None = None
        self.finished = False
        self.clock = WarpClock(block.order, self)
        self.steps = self._run()

    @property
    def name(self) -> str:
        return f"block {self.block.index}, {self.role + ' ' if self.role else ''}warp {self.index}"

    @property
    def source(self) -> Source | None:
        """The Python line of the current instruction."""
        return self.instruction.source if self.instruction else None

    def fail(self, kind: str, message: str) -> NoReturn:
        raise EmulationError(Finding(kind, message, self.name, self.source))

    def step(self) -> None:
        """Run until the warp has to wait, is preempted, or ends."""
        try:
            next(self.steps)
        except StopIteration:
            self.finished = True

    def memory(self, space: str) -> SharedMemory | GlobalMemory:
        """ "shared" or "global" memory."""
        return self.block.shared if space == "shared" else self.block.memory

    # Registers

    def broadcast(self, value: Any, type: Type | None = None) -> np.ndarray:
        """One value a lane."""
        return np.broadcast_to(np.asarray(value, type.dtype if type else None), (len(self.lanes),))

    def read(self, operand: Operand) -> Any:
        """The value of an operand: [lanes] for a register, [n, lanes] for registers, a number for an immediate."""
        if not isinstance(operand, Registers):
            return operand
        storage, indices = operand.storage, operand.indices
        if self.locked and storage in self.locked:
            self._refuse_locked(operand, "reads")
        self.touched[storage] = self.issued
        undefined = self.undefined.get(storage)
        if storage not in self.values or (undefined is not None and (undefined[list(indices)] & self.active).any()):
            self.fail("uninitialised", f"reads {operand!r}, which was never written")
        values = self.values[storage]
        if len(indices) == 1:
            return values[indices[0]]
        return values if operand.whole else values[list(indices)]

    def write(self, target: Registers, value: Any) -> None:
        storage, indices = target.storage, target.indices
        if self.locked and storage in self.locked:
            self._refuse_locked(target, "writes")
        self.touched[storage] = self.written[storage] = self.issued
        values = self.values.get(storage)
        if values is None:
            values = self.values[storage] = np.zeros((storage.size, len(self.lanes)), storage.type.dtype)
            self.undefined[storage] = np.ones((storage.size, len(self.lanes)), bool)
        rows = slice(None) if target.whole else list(indices)
        everywhere = bool(self.active.all())
        values[rows] = value if everywhere else np.where(self.active, value, values[rows])
        undefined = self.undefined.get(storage)
        if undefined is not None:
            undefined[rows] = False if everywhere else undefined[rows] & ~self.active
            if not undefined.any():
                del self.undefined[storage]

    def uniform(self, operand: Operand, what: str) -> Any:
        """The one value that all active lanes hold."""
        value = self.read(operand)
        if not isinstance(operand, Registers):
            return value
        first = value[self.active.argmax()]
        if not (value[self.active] == first).all():
            self.fail("divergence", f"{what} differs between lanes of the warp")
        return first

    def lock(self, target: Registers, holder: str) -> None:
        """Hold registers for an asynchronous operation: touching them before `unlock` is a finding."""
        self.locked.setdefault(target.storage, {}).update(dict.fromkeys(target.indices, holder))

    def unlock(self, target: Registers) -> None:
        held = self.locked.get(target.storage, {})
        for index in target.indices:
            held.pop(index, None)
        if not held:
            self.locked.pop(target.storage, None)

    def deliver(self, target: Registers, value: Any, active: np.ndarray) -> None:
        """Write registers that an asynchronous operation holds, in the lanes that were active when it was issued."""
        now = self.active, self.locked, self.touched, self.written
        self.active, self.locked, self.touched, self.written = active, {}, {}, {}
        self.write(target, value)
        self.active, self.locked, self.touched, self.written = now

    def _refuse_locked(self, operand: Registers, verb: str) -> None:
        held = self.locked[operand.storage]
        for index in operand.indices:
            if index in held:
                self.fail("register in flight", f"{verb} {operand!r}, which {held[index]} still holds")

    # Execution

    def _run(self) -> Iterator[None]:
        yield from self._body(self.block.program.body)

    def _body(self, body: Any) -> Iterator[None]:
        for node in body:
            if isinstance(node, Instruction):
                self.waiting = self._execute(node)
                if self.waiting is not None or self.block.schedule.preempts():
                    yield
                    if self.waiting is not None:
                        self.waiting.passed()
                    self.waiting = None
            else:
                yield from self._structure(node)

    def _structure(self, node: Node) -> Iterator[None]:
        if isinstance(node, Role):
            if node.first <= self.index < node.first + node.warps:
                self.role = node.name
                yield from self._body(node.body)
        elif isinstance(node, When):
            if self.uniform(node.condition, "the condition of a when"):
                yield from self._body(node.body)
        elif isinstance(node, Mask):
            outer, inner = self.active, self.active & self.read(node.condition)
            if inner.any():
                self.active = inner
                yield from self._body(node.body)
                self.active = outer
        elif isinstance(node, Loop):
            self.write(node.counter, self.uniform(node.start, "a loop's start"))
            while self.uniform(node.counter, "a loop's counter") < self.uniform(node.stop, "a loop's bound"):
                yield from self._body(node.body)
                self.write(node.counter, self.read(node.counter) + self.uniform(node.step, "a loop's step"))

    def _execute(self, instruction: Instruction) -> Wait | None:
        self.instruction = instruction
        self.issued += 1
        self.block.executed[instruction] += 1
        for watch in self.block.watchers:
            watch(self, instruction)
        operation = instruction.operation
        if operation.converged and not self.active.all():
            self.fail(
                "divergence", f"{operation.name} in {int(self.active.sum())} of {len(self.lanes)} lanes; all are wanted"
            )
        if operation.converged:
            self.clock.converge()
        result = operation.does(self, *map(self.read, instruction.reads), **instruction.fields)
        if isinstance(result, Wait):
            if not result.ready():
                return result
            result.passed()
            return None
        if instruction.writes and result is not ASYNCHRONOUS:
            results = result if isinstance(result, tuple) else (result,)
            for target, value in zip(instruction.writes, results):
                self.write(target, value)
        return None
