"""Programs of one or more waves: emulated, and assembled by the real tool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kingpost.program import Program, Registers

SCHEDULES = ("late", "early", "random")


class Names:
    """Registers as the assembler names them, for programs whose registers are all placed by hand."""

    def __call__(self, operand: object) -> str:
        if not isinstance(operand, Registers):
            return str(operand)
        from kingpost.targets.amd.isa.registers import place

        placed = place(operand)
        assert placed is not None, f"{operand!r} is not placed"
        file, first = placed
        words = len(operand) * operand.type.bits // 32
        return f"{file}{first}" if words == 1 else f"{file}[{first}:{first + words - 1}]"


def lines(program: Program) -> list[str]:
    """The text of a program's hand-written instructions."""
    found = []
    for instruction in program.instructions():
        text = instruction.operation.text
        if callable(text):
            found.append(text(instruction, Names()))
        elif text is not None:
            operands = dict(zip(instruction.operation.operands, instruction.reads))
            results = dict(zip(instruction.operation.writes, instruction.writes))
            names = {name: Names()(value) for name, value in (operands | results).items()}
            found.append(text.format(**names, **instruction.fields))
    return found


def assemble(text: list[str], target: str, folder: Path) -> bytes:
    """The object that LLVM makes of lines of text; fails with its message if it refuses."""
    pytest.importorskip("ziglang")
    source, result = folder / "lines.s", folder / "lines.o"
    source.write_text("\n".join(text) + "\n")
    command = [sys.executable, "-m", "ziglang", "clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={target}", "-c"]
    done = subprocess.run([*command, str(source), "-o", str(result)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return result.read_bytes()
