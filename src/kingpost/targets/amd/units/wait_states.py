"""Wait states: how many instructions a wave must issue between two that depend on each other, where it does not stall.

One instruction is one wait state, `s_nop n` is n + 1. A matrix instruction counts as one too, as in LLVM's hazard
recogniser: a stall behind a busy matrix core would only add. Numbers: LLVM, GCNHazardRecognizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kingpost.emulate import Block, Warp
from kingpost.program import Instruction, Operand, Operation, Registers, Source

SCALAR_TO_MEMORY = 5  # a vector instruction writes a scalar register, then a memory instruction reads it
_SOURCE_C = 2  # the place of the accumulator among a matrix instruction's operands


def product_wait_states(target: str, passes: int) -> int:
    """Wait states from a matrix instruction of `passes` passes (4 cycles each) to the first use of its result."""
    return passes + 3 + (target == "gfx950" and passes > 2)


@dataclass(eq=False)
class _Result:
    """Registers that an instruction of one wave wrote, not yet usable by all."""

    target: Registers
    operation: Operation
    source: Source
    wanted: int
    clock: int  # of the wave, when issued


class WaitStates:
    """The wait states of a block's waves, counted from the first instruction that needs some."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.clocks: Counter[int] = Counter()  # by wave
        self.results: dict[int, list[_Result]] = {}
        block.watchers.append(self._watch)

    def product(self, warp: Warp, passes: int) -> None:
        """The current instruction is a matrix product: what it writes is there after its passes."""
        self._hold(warp, product_wait_states(self.block.program.target, passes))

    def scalar(self, warp: Warp) -> None:
        """The current instruction is a vector instruction that writes a scalar register."""
        self._hold(warp, SCALAR_TO_MEMORY)

    def idle(self, warp: Warp, states: int) -> None:
        """The current instruction takes `states` wait states more than its own."""
        self.clocks[warp.index] += states

    def _hold(self, warp: Warp, wanted: int) -> None:
        assert warp.instruction is not None
        (target,) = warp.instruction.writes
        instruction, clock = warp.instruction, self.clocks[warp.index]
        result = _Result(target, instruction.operation, instruction.source, wanted, clock)
        self.results.setdefault(warp.index, []).append(result)

    def _watch(self, warp: Warp, instruction: Instruction) -> None:
        now = self.clocks[warp.index]
        pending = [r for r in self.results.get(warp.index, []) if now - r.clock < r.wanted]
        self.results[warp.index] = pending
        for result in pending:
            for verb, operand in _dependences(instruction, result):
                first = _first_common(operand, result.target, instruction)
                if first is not None and now + first - result.clock < result.wanted:
                    missing = result.wanted - (now + first - result.clock)
                    warp.fail(
                        "wait states",
                        f"{verb} {operand!r} {now + first - result.clock} wait states after {result.operation.name} "
                        f"at {result.source}; {result.wanted} are wanted: s_nop for {missing} more is missing",
                    )
        self.clocks[warp.index] = now + instruction.elements


def _dependences(instruction: Instruction, result: _Result) -> Iterator[tuple[str, Operand]]:
    """The operands of an instruction that must not come too early after `result`."""
    if not is_product(result.operation):
        if _is_memory(instruction.operation):
            yield from (("reads", operand) for operand in instruction.reads)
        return
    chained = False
    for place, operand in enumerate(instruction.reads):
        if place == _SOURCE_C and instruction.operation is result.operation and result.target.same(operand):
            chained = True  # the accumulator of a chain of the same instruction is forwarded
        else:
            yield "reads", operand
    for target in instruction.writes:
        if not (chained and target.same(result.target)):
            yield "writes", target


def is_product(operation: Operation) -> bool:
    return operation.name.startswith("v_mfma_")


def _is_memory(operation: Operation) -> bool:
    return operation.name.startswith(("global_", "buffer_"))


def _first_common(operand: Operand, target: Registers, instruction: Instruction) -> int | None:
    """After how many wait states within the instruction it touches one of `target`; None if it does not."""
    if not isinstance(operand, Registers) or operand.storage is not target.storage:
        return None
    lines = [line for line, index in enumerate(operand.indices) if index in target.indices]
    if not lines:
        return None
    return lines[0] if instruction.operation.lanewise and len(operand) > 1 else 0
