"""Which mutants do the same as the program they were made from: only those of which something proves it.

Each rule takes a launch and a mutant of it, and gives the reason, or None where it proves nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from kingpost import assemble, registry
from kingpost.assemble.elf import without_debug
from kingpost.checker.mutation import Mutant
from kingpost.program import Instruction, Launch, Node, Program, Source

_NOWHERE = Source("program", 1)


def reason(launch: Launch, mutant: Mutant) -> str | None:
    """Why a mutant does the same as the launch it was made from; None if no rule proves that it does.

    Raises AssemblyError where the assembler refuses it.
    """
    return next(filter(None, (rule(launch, mutant) for rule in RULES)), None)


def same_binary(launch: Launch, mutant: Mutant) -> str | None:
    """Proof: the chip is given the same bytes and the same arguments. What leads back to lines of Python is left out.

    Proves nothing where the target's assembler is not installed.
    """
    weakened = mutant.apply(launch)
    if weakened.grid != launch.grid or weakened.arguments != launch.arguments:
        return None
    texts = {_text(each.program) for each in (launch, weakened)}
    try:
        loaded = [_loaded(text, launch.program.target) for text in texts]
    except assemble.AssemblerNotFound:
        return None
    return "the assembled binaries are identical" if loaded[0] == loaded[-1] else None


def instruction_set(launch: Launch, mutant: Mutant) -> str | None:
    """Proof: the target's own rule for that weakening of that instruction, which says where it is written down."""
    return mutant.harmless(launch.program)


RULES: tuple[Callable[[Launch, Mutant], str | None], ...] = (instruction_set, same_binary)


def _text(program: Program) -> str:
    """A program's text with every line of Python the same."""
    return registry.emulator(program.target).text(replace(program, body=tuple(_placeless(program.body))))


def _placeless(body: Sequence[Node]) -> list[Node]:
    return [
        replace(node, source=_NOWHERE)
        if isinstance(node, Instruction)
        else replace(node, source=_NOWHERE, body=_placeless(node.body))
        for node in body
    ]


@functools.lru_cache(maxsize=8)
def _loaded(text: str, target: str) -> dict[str, bytes]:
    return without_debug(assemble.afresh(text, target).image)
