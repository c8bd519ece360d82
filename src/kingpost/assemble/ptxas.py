"""PTX text to a cubin with ptxas, refusing what it merely remarks on: serialised products, spills, dropped budgets."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from pathlib import Path

from kingpost.assemble.binary import AssemblyError, Binary, Problem
from kingpost.assemble.elf import sections
from kingpost.assemble.tools import Tool, find_ptxas

# "(C7517) wgmma.wait_group is injected in around line 18 ..." comes with exit status 0, as all notes of its family.
_NOTE = re.compile(r"\((C75\d\d)\)\s*(.*)")
_ERROR = re.compile(r"^ptxas\s+(?:.*?,\s*line\s+(\d+);\s*)?(?:error|fatal)\s*:\s*(.*)", re.MULTILINE)
_SETMAXNREG = re.compile(r"\bsetmaxnreg\.(?:inc|dec)\.\S+\s+(\d+)")

# A Hopper or Blackwell instruction is 16 bytes: the opcode in the 12 low bits, an immediate in the second 32-bit word.
_INSTRUCTION_BYTES = 16
_USETMAXREG = 0x9C8


def assemble(text: str, target: str, tool: Tool | None = None, timeout: float = 300.0) -> Binary:
    """Assembles PTX `text` for `target` ("sm_90a") with `tool`, by default the one find_ptxas finds.

    Raises AssemblerNotFound without a tool; AssemblyError where ptxas refuses the text, serialises products or waits of
    its own accord (any C75xx note), spills or uses a stack, drops a setmaxnreg, or takes longer than `timeout` seconds.
    """
    tool = tool or find_ptxas()

    def refusal(problems: list[Problem], log: str) -> AssemblyError:
        return AssemblyError(str(tool), target, problems, log)

    with tempfile.TemporaryDirectory(prefix="kingpost-") as folder:
        source, cubin = Path(folder, "program.ptx"), Path(folder, "program.cubin")
        source.write_text(text, encoding="utf-8")
        started = time.perf_counter()
        try:
            run = tool.run(f"-arch={target}", "-v", source.name, "-o", cubin.name, folder=Path(folder), timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise refusal([Problem(f"no result after {timeout:g} s; unroll less")], "") from error
        seconds = time.perf_counter() - started
        log = run.stdout
        if run.returncode or not cubin.is_file():
            raise refusal(_errors(text, log) or [Problem(f"exit status {run.returncode}: {log.strip()}")], log)
        image = cubin.read_bytes()
    binary = Binary(
        image=image,
        registers=_largest(r"Used (\d+) registers", log),
        spill_bytes=_largest(r"(\d+) bytes spill (?:stores|loads)", log),
        stack_bytes=_largest(r"(\d+) bytes (?:stack frame|cumulative stack)", log),
        shared_bytes=_largest(r"(\d+) bytes smem", log),
        seconds=seconds,
        tool=str(tool),
        target=target,
        log=log,
    )
    if problems := [*_notes(text, log), *_spills(binary), *_dropped_budgets(text, image)]:
        raise refusal(problems, log)
    return binary


def register_budgets(image: bytes) -> list[int]:
    """The register counts that the machine code of a cubin sets at run time (USETMAXREG), in order of address."""
    budgets = []
    for name, code in sections(image).items():
        if not name.startswith(".text"):
            continue
        for at in range(0, len(code) - _INSTRUCTION_BYTES + 1, _INSTRUCTION_BYTES):
            if int.from_bytes(code[at : at + 2], "little") & 0xFFF == _USETMAXREG:
                budgets.append(int.from_bytes(code[at + 4 : at + 8], "little"))
    return budgets


def _notes(text: str, log: str) -> list[Problem]:
    problems = []
    for code, message in _NOTE.findall(log):
        line = re.search(r"\bline (\d+)", message)
        problems.append(_problem(f"{code} {message}", text, int(line[1]) if line else None))
    return problems


def _errors(text: str, log: str) -> list[Problem]:
    return [_problem(message, text, int(line) if line else None) for line, message in _ERROR.findall(log)]


def _spills(binary: Binary) -> list[Problem]:
    if not (binary.spill_bytes or binary.stack_bytes):
        return []
    spilled = f"{binary.spill_bytes} bytes spilled, {binary.stack_bytes} bytes of stack"
    return [Problem(f"{spilled}, with {binary.registers} registers: wanted none of either")]


def _dropped_budgets(text: str, image: bytes) -> list[Problem]:
    """A tool may drop setmaxnreg without a word; every count in the text must be in the machine code."""
    wanted = [
        (line, int(found[1]))
        for line, statement in enumerate(text.splitlines(), 1)
        for found in _SETMAXNREG.finditer(statement.partition("//")[0])
    ]
    kept = register_budgets(image) if wanted else []
    message = "setmaxnreg is not in the machine code: no USETMAXREG of {} there"
    return [_problem(message.format(count), text, line) for line, count in wanted if count not in kept]


def _problem(message: str, text: str, line: int | None) -> Problem:
    lines = text.splitlines()
    if line is None or not 1 <= line <= len(lines):
        return Problem(message)
    return Problem(message, line, lines[line - 1].strip(), python_line(lines, line))


def python_line(lines: list[str], line: int) -> str:
    """The source line that emitted a line of PTX, "kernel.py:28", by the last `.loc` at or above it; "" without one."""
    for above in reversed(lines[:line]):
        if location := re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", above):
            names = (re.match(rf'\s*\.file\s+{location[1]}\s+"([^"]*)"', each) for each in lines)
            name = next((found[1] for found in names if found), f"file {location[1]}")
            return f"{name}:{location[2]}"
    return ""


def _largest(pattern: str, log: str) -> int:
    return max(map(int, re.findall(pattern, log)), default=0)
