"""Wait states: how many instructions a wave must issue between two that depend on each other, where it does not stall.

One instruction is one wait state, `s_nop n` is n + 1. A matrix instruction counts as one too, as in LLVM's hazard
recogniser: a stall behind a busy matrix core would only add. Numbers: LLVM, GCNHazardRecognizer, gfx940 and gfx950;
where its versions differ, the larger. What portable operations write is left to whoever lowers them. Hazards of what
no instruction here can do are not modelled: EXEC or VCC written by a vector instruction that another reads as data or
through DPP, lanes selected by what a vector instruction gave, transcendental functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from kingpost.emulate import Block, Warp
from kingpost.program import Instruction, Operand, Operation, Registers

SCALAR_TO_MEMORY = 5  # a vector instruction writes a scalar register, then a memory instruction reads it
VECTOR_TO_PRODUCT = 2  # a vector instruction writes a register, then a matrix instruction reads it
STORE_TO_VECTOR = 2  # a store of more than 64 bits a lane reads a register, then a vector instruction writes it
_SOURCE_C = 2  # the place of the accumulator among a matrix instruction's operands


def product_wait_states(target: str, passes: int) -> int:
    """Wait states from a matrix instruction of `passes` passes (4 cycles each) to the first use of its result."""
    return passes + 3 + (target == "gfx950" and passes > 2)


class _Held(Enum):
    """Why registers must be left alone for a while."""

    PRODUCT = "a product's result"
    SOURCE = "an accumulator that a product still reads"
    VECTOR = "a vector instruction's result, for a product"
    STORED = "data that a store still reads"
    SCALAR = "a vector instruction's scalar result, for a memory instruction"


@dataclass(eq=False)
class _Hold:
    """Registers that one instruction of a wave holds for `wanted` wait states. clock: the wave's, when it issued."""

    why: _Held
    registers: Registers
    instruction: Instruction
    wanted: int
    clock: int


class WaitStates:
    """The wait states of a block's waves, counted from the first instruction that needs some."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.clocks: Counter[int] = Counter()  # by wave
        self.holds: dict[int, list[_Hold]] = {}
        block.watchers.append(self._watch)

    def product(self, warp: Warp, passes: int) -> None:
        """The current instruction is a matrix product: what it writes is there after its passes."""
        assert warp.instruction is not None
        (target,), c = warp.instruction.writes, warp.instruction.reads[_SOURCE_C]
        self._hold(warp, _Held.PRODUCT, target, product_wait_states(self.block.program.target, passes))
        if isinstance(c, Registers) and not target.same(c):
            self._hold(warp, _Held.SOURCE, c, passes - 1)

    def vector(self, warp: Warp) -> None:
        """The current instruction is a vector instruction, not a product."""
        assert warp.instruction is not None
        self._hold(warp, _Held.VECTOR, warp.instruction.writes[0], VECTOR_TO_PRODUCT)

    def scalar(self, warp: Warp) -> None:
        """The current instruction is a vector instruction that writes a scalar register."""
        assert warp.instruction is not None
        self._hold(warp, _Held.SCALAR, warp.instruction.writes[0], SCALAR_TO_MEMORY)

    def store(self, warp: Warp, data: Registers) -> None:
        """The current instruction stores `data`.

        On gfx950 the second dword of four was seen to be what the vector instruction right behind the store gave (LLVM
        pull request 197267, of a buffer store; LLVM keeps the same distance from global stores).
        """
        if len(data) * data.type.bits > 64:
            self._hold(warp, _Held.STORED, data, STORE_TO_VECTOR)

    def idle(self, warp: Warp, states: int) -> None:
        """The current instruction takes `states` wait states more than its own."""
        self.clocks[warp.index] += states

    def _hold(self, warp: Warp, why: _Held, registers: Registers, wanted: int) -> None:
        assert warp.instruction is not None
        hold = _Hold(why, registers, warp.instruction, wanted, self.clocks[warp.index])
        self.holds.setdefault(warp.index, []).append(hold)

    def _watch(self, warp: Warp, instruction: Instruction) -> None:
        now = self.clocks[warp.index]
        pending = [hold for hold in self.holds.get(warp.index, []) if now - hold.clock < hold.wanted]
        self.holds[warp.index] = pending
        missing: dict[int, str] = {}  # by how many wait states: the most is reported
        for hold in pending:
            for verb, operand in _dependences(instruction, hold):
                first = _first_common(operand, hold.registers, instruction)
                if first is not None and now + first - hold.clock < hold.wanted:
                    passed, by = now + first - hold.clock, hold.instruction
                    more = hold.wanted - passed
                    sentence = (
                        f"{verb} {operand!r}, {hold.why.value}, {passed} wait states after {by.operation.name} at "
                        f"{by.source}; {hold.wanted} are wanted: s_nop for {more} more is missing"
                    )
                    missing.setdefault(more, sentence)
        if missing:
            warp.fail("wait states", missing[max(missing)])
        self.clocks[warp.index] = now + instruction.elements


def _dependences(instruction: Instruction, hold: _Hold) -> Iterator[tuple[str, Operand]]:
    """The operands of an instruction that must not come too early after `hold`."""
    reads = [("reads", operand) for operand in instruction.reads]
    writes = [("writes", target) for target in instruction.writes]
    match hold.why:
        case _Held.VECTOR:
            yield from reads if is_product(instruction.operation) else ()
        case _Held.SCALAR:
            yield from reads if _is_memory(instruction.operation) else ()
        case _Held.STORED:
            yield from () if _is_memory(instruction.operation) else writes
        case _Held.SOURCE:
            yield from () if is_product(instruction.operation) else writes
        case _Held.PRODUCT if instruction.operation.text is not None:  # for others waits what lowers them
            if _chained(instruction, hold):
                del reads[_SOURCE_C]
                writes = [each for each in writes if not hold.registers.same(each[1])]
            yield from reads
            yield from writes


def _chained(instruction: Instruction, hold: _Hold) -> bool:
    """Whether this is the same matrix instruction once more, on the accumulator that it wrote: that is forwarded.

    Not so with operands of other formats, which make it another instruction (LLVM pull request 218363).
    """
    last, formats = hold.instruction, ("cbsz", "blgp")
    same = instruction.operation is last.operation and all(
        instruction.fields.get(each) == last.fields.get(each) for each in formats
    )
    return same and hold.registers.same(instruction.reads[_SOURCE_C])


def is_product(operation: Operation) -> bool:
    return operation.name.startswith("v_mfma_")


def _is_memory(operation: Operation) -> bool:
    return operation.name.startswith(("global_", "buffer_", "ds_"))


def _first_common(operand: Operand, target: Registers, instruction: Instruction) -> int | None:
    """After how many wait states within the instruction it touches one of `target`; None if it does not."""
    if not isinstance(operand, Registers) or operand.storage is not target.storage:
        return None
    lines = [line for line, index in enumerate(operand.indices) if index in target.indices]
    if not lines:
        return None
    return lines[0] if instruction.operation.lanewise and len(operand) > 1 else 0
