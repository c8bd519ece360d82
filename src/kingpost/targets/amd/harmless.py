"""Weakened instructions that do the same: proofs by how programs are lowered, for `Weakening.harmless`."""

from __future__ import annotations

from kingpost.program import Instruction, Program
from kingpost.program.control import earlier


def nothing_in_flight(program: Program, instruction: Instruction) -> str | None:
    """An s_waitcnt left out, or waiting for less.

    Proof: no hand-written instruction comes before it, whose memory accesses it might wait for, or whose wait states it
    might be. What portable operations are lowered to is waited for whatever stands here (`kingpost.targets.amd.waits`):
    before what touches its registers, before a barrier, and before any hand-written instruction.
    """
    if any(each.operation.text is not None for each in earlier(program.body, instruction)):
        return None
    return "only lowered instructions come before it, and those are waited for by themselves"
