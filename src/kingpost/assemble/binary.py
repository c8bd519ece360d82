"""What an assembler makes, and what it says when it cannot."""

from __future__ import annotations

from dataclasses import dataclass, field

_PROBLEMS_SHOWN = 10  # of one text; .problems and .log have all


@dataclass(frozen=True)
class Binary:
    """A loadable image and what its assembler reported. Sizes in bytes, per thread or (shared) per block."""

    image: bytes = field(repr=False)
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int  # declared in the text; what a launch adds is not known here
    seconds: float  # the assembler's run
    tool: str  # name and version, as in "ptxas 13.5.37"
    target: str
    log: str = field(repr=False)


@dataclass(frozen=True)
class Problem:
    """One complaint of an assembler, with the place it points to where it names one."""

    message: str
    line: int | None = None  # of the text, from 1
    text: str = ""
    source: str = ""  # "kernel.py:28", the Python line that emitted it

    def __str__(self) -> str:
        place = f"{self.source}: " if self.source else ""
        quoted = f"\n      line {self.line}: {self.text}" if self.line else ""
        return f"{place}{self.message}{quoted}"


class AssemblyError(RuntimeError):
    """The text was refused, or its machine code would not run as written. `.log` is all that the tool said."""

    def __init__(self, tool: str, target: str, problems: list[Problem], log: str):
        self.tool, self.target, self.problems, self.log = tool, target, problems, log
        lines = [f"{tool} for {target}:", *map(str, problems[:_PROBLEMS_SHOWN])]
        if more := problems[_PROBLEMS_SHOWN:]:
            lines.append(f"and {len(more)} more")
        super().__init__("\n  ".join(lines))
