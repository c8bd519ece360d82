"""AMDGCN text to a code object: clang's assembler and lld, from the ziglang wheel or from ROCm."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from pathlib import Path

from kingpost.assemble.binary import AssemblyError, Binary, Problem
from kingpost.assemble.tools import Tool, find_clang

_COMPLAINT = re.compile(r"^[^\n:]*:(\d+):\d+: (?:error|warning): (.*)", re.MULTILINE)
_LINE_COMMENT = re.compile(r"\s*; (\S+:\d+)$")


def assemble(text: str, target: str, tool: Tool | None = None, timeout: float = 300.0) -> Binary:
    """Assembles AMDGCN `text` for `target` ("gfx942") and links it, with `tool`, by default the one find_clang finds.

    Raises AssemblerNotFound without a tool; AssemblyError where the text is refused or remarked on (the assembler's
    warnings are mistakes in a text that nobody wrote by hand), or a step takes longer than `timeout` seconds.
    """
    tool = tool or find_clang()
    in_one = tool.name == "zig"  # one program that holds both
    linker = tool if in_one else Tool(tool.path.with_name("ld.lld"), tool.origin)
    clang, lld = (["clang"], ["ld.lld"]) if in_one else ([], [])
    started, log = time.perf_counter(), ""
    with tempfile.TemporaryDirectory(prefix="kingpost-") as folder:
        Path(folder, "program.s").write_text(text, encoding="utf-8")
        steps = [
            (tool, [*clang, "--target=amdgcn-amd-amdhsa", f"-mcpu={target}", "-c", "program.s", "-o", "program.o"]),
            (linker, [*lld, "-shared", "program.o", "-o", "program.hsaco"]),
        ]
        for program, arguments in steps:
            try:
                run = program.run(*arguments, folder=Path(folder), timeout=timeout)
            except subprocess.TimeoutExpired as error:
                raise AssemblyError(str(tool), target, [Problem(f"no result after {timeout:g} s")], log) from error
            log += run.stdout
            problems = _problems(text, run.stdout)
            if run.returncode or problems or not Path(folder, arguments[-1]).is_file():
                unnamed = Problem(f"exit status {run.returncode}: {run.stdout.strip()}")
                raise AssemblyError(str(tool), target, problems or [unnamed], log)
        image = Path(folder, "program.hsaco").read_bytes()
    return Binary(
        image=image,
        registers=_number("vgpr_count", text),
        spill_bytes=0,
        stack_bytes=_number("private_segment_fixed_size", text),
        shared_bytes=_number("group_segment_fixed_size", text),
        seconds=time.perf_counter() - started,
        tool=str(tool),
        target=target,
        log=log,
    )


def python_line(lines: list[str], line: int) -> str:
    """The source line that emitted a line of text (from 1), by the last "; kernel.py:28" above it; "" without one."""
    for above in reversed(lines[:line]):
        if found := _LINE_COMMENT.match(above):
            return found[1]
    return ""


def _problems(text: str, log: str) -> list[Problem]:
    lines = text.splitlines()
    return [
        Problem(message, int(number), lines[int(number) - 1].strip(), python_line(lines, int(number)))
        if int(number) <= len(lines)
        else Problem(message)
        for number, message in _COMPLAINT.findall(log)
    ]


def _number(key: str, text: str) -> int:
    """What the text's metadata say."""
    found = re.search(rf"^\s*\.{key}: (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0
