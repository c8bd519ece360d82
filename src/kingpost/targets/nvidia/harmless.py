"""Weakened instructions that do the same: proofs by what the PTX ISA says, for `Weakening.harmless`.

Each takes a program and the instruction in it, and gives the reason, or None where it proves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kingpost.program import Instruction, Node, NotConstant, Program, Registers, Role, evaluate
from kingpost.program.control import earlier

WARP = 32  # threads
LARGEST_BARRIER = 15
_ASYNCHRONOUS = ("tcgen05.mma", "tcgen05.cp", "tcgen05.shift", "tcgen05.ld", "tcgen05.st")
_WGMMA, _WGMMA_ROWS = "wgmma.mma_async", 64


def unused_leading(program: Program, instruction: Instruction) -> str | None:
    """Another leading byte offset in a wgmma's matrix descriptor.

    Proof (PTX ISA, "Strides"): in swizzled layouts a K-major operand does not use it, and an MN-major one goes by it
    from each `swizzle` bytes of M or N to the next; an operand that has no more of them never does.
    """
    (descriptor,), span = instruction.writes, instruction.fields["swizzle"]
    if not span:
        return None
    for reader in program.instructions():
        for place, operand in enumerate(reader.reads):
            if not isinstance(operand, Registers) or operand.storage is not descriptor.storage:
                continue
            if reader.operation.name != _WGMMA:
                return None
            letter, rows = (("a", _WGMMA_ROWS), ("b", reader.fields["n"]))[place]
            itemsize = reader.fields[f"{letter}_format"].itemsize
            if reader.fields[f"{letter}_major"] != "k" and rows * itemsize > span:
                return None
    return "the leading byte offset of these operands is not used"


def nothing_to_order(program: Program, instruction: Instruction) -> str | None:
    """tcgen05.fence::before_thread_sync left out.

    Proof (PTX ISA, "tcgen05.fence"): it orders the asynchronous tcgen05 instructions before it, and there are none.
    """
    if any(each.operation.name.startswith(_ASYNCHRONOUS) for each in earlier(program.body, instruction)):
        return None
    return "no asynchronous tcgen05 instruction comes before it"


def nothing_taken(program: Program, instruction: Instruction) -> str | None:
    """tcgen05.relinquish_alloc_permit left out.

    Proof (PTX ISA, "tcgen05.relinquish_alloc_permit"): it makes it illegal for the block to allocate from there on,
    and does nothing else to the block. Others that wait for the right get it when this block is at its end.
    """
    return "the block is only left a right that it may not use with it"


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a bar.sync stands: in which body, with which number for each warp that may come there."""

    instruction: Instruction
    body: Sequence[Node]
    numbers: dict[int, int]  # by warp


def own_barrier(program: Program, instruction: Instruction) -> str | None:
    """The next barrier number in a bar.sync.

    Proof: let W be the warps that give number n there, and let each bar.sync that is given n by anyone stand in the
    same body as this one and be for all of W, no more and no fewer. Then each warp of W comes to them in turn, phase i
    of n consists of the i-th arrival of each, and those are at one and the same bar.sync. So this one can have a
    number to itself, if nobody else gives it: the same warps meet at the same places.
    """
    try:
        places = list(_places(program, program.body, range(program.warps)))
    except NotConstant:
        return None
    used = {number for place in places for number in place.numbers.values()}
    (moved,) = (place for place in places if place.instruction is instruction)
    warps = defaultdict(set)
    for warp, number in moved.numbers.items():
        warps[number].add(warp)
    for number, members in warps.items():
        if number + 1 in used or number + 1 > LARGEST_BARRIER:
            return None
        for place in places:
            givers = {warp for warp, given in place.numbers.items() if given == number}
            if givers and (place.body is not moved.body or givers != members):
                return None
            if givers and place.instruction.fields["threads"] != WARP * len(members):
                return None
    return "the same warps meet at the same places, at a barrier that nobody else uses"


def _places(program: Program, body: Sequence[Node], warps: range) -> Iterator[_Place]:
    for node in body:
        if isinstance(node, Role):
            yield from _places(program, node.body, range(node.first, node.first + node.warps))
        elif not isinstance(node, Instruction):
            yield from _places(program, node.body, warps)
        elif node.operation.name == "bar.sync":
            numbers = {warp: int(evaluate(node.reads[0], {"warp_index": warp})) for warp in warps}
            yield _Place(node, body, numbers)
