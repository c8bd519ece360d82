"""AMDGCN before its registers have numbers: lines of text over virtual registers, in structured regions.

A `Virtual` is what the allocator places: some 32-bit words of one bank, "v" (vector), "s" (scalar) or "a"
(accumulation). A `Reg` is some neighbouring words of one; numbers and the names of special registers stand for
themselves. A `Line` is one instruction, branch or label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kingpost.program.instruction import Source


@dataclass(eq=False)
class Virtual:
    """`size` 32-bit words of a bank. first: the number of the first, once placed."""

    bank: str
    size: int
    name: str
    source: Source | None = None
    first: int | None = None

    def __repr__(self) -> str:
        return f"{self.name} ({self.size} of {self.bank})"


@dataclass(frozen=True)
class Reg:
    """Words `word` to `word + count - 1` of a virtual register."""

    virtual: Virtual
    word: int = 0
    count: int = 1

    @property
    def bank(self) -> str:
        return self.virtual.bank

    def __getitem__(self, index: int) -> Reg:
        return Reg(self.virtual, self.word + index, 1)

    def words(self) -> Iterator[int]:
        return iter(range(self.word, self.word + self.count))

    def __str__(self) -> str:
        if self.virtual.first is None:
            return f"{self.virtual.name}.{self.word}"
        first = self.virtual.first + self.word
        return f"{self.bank}{first}" if self.count == 1 else f"{self.bank}[{first}:{first + self.count - 1}]"


Value = Reg | int | str
"""A register, a number (bits), or what the assembler has a name for: "vcc", "exec", "off", "1.0"."""


@dataclass(eq=False)
class Region:
    """Lines `first` to `last` that run together: the body of a loop, of a condition, of a mask."""

    loop: bool
    first: int = 0
    last: int = 0


@dataclass(eq=False)
class Line:
    """`operation writes, reads suffix`.

    hidden: registers read or written that the text does not name. early: the result is written before all operands
    are read. label: what this line is, if it is a label; target: where it may branch to. rendered: a hand-written
    instruction's own text, which may be several lines.
    """

    operation: str
    writes: tuple[Value, ...] = ()
    reads: tuple[Value, ...] = ()
    source: Source | None = None
    regions: tuple[Region, ...] = ()
    suffix: str = ""
    hidden: tuple[str, ...] = ()
    early: bool = False
    label: str | None = None
    target: str | None = None
    rendered: Callable[[], list[str]] | None = None

    @property
    def manual(self) -> bool:
        """Whether its waits are its author's business."""
        return self.rendered is not None

    def text(self) -> list[str]:
        if self.rendered is not None:
            return self.rendered()
        if self.label is not None:
            return [f"{self.label}:"]
        operands = [*map(written, (*self.writes, *self.reads)), *([self.target] if self.target else [])]
        return [f"{self.operation} {', '.join(operands)}".rstrip() + self.suffix]


def written(value: Value) -> str:
    """A value as the assembler takes it: small numbers in decimal, bit patterns in hexadecimal."""
    if not isinstance(value, int):
        return str(value)
    return str(value) if -16 <= value < 1 << 16 else f"{value & 0xFFFFFFFF:#x}"


def is_inline(value: Value) -> bool:
    """Whether a number costs no room in an instruction (CDNA3 ISA, "Inline constants")."""
    return not isinstance(value, int) or -16 <= value <= 64


@dataclass
class Code:
    """Lines as they are written, with the Python line and the regions that they stand in."""

    lines: list[Line] = field(default_factory=list)
    source: Source | None = None
    regions: tuple[Region, ...] = ()
    names: int = 0

    def fresh(self, bank: str, words: int = 1, name: str = "") -> Reg:
        """A register for something in between."""
        self.names += 1
        return Reg(Virtual(bank, words, name or f"t{self.names}", self.source), 0, words)

    def label(self) -> str:
        self.names += 1
        return f"L{self.names}"

    def add(
        self, operation: str, writes: Value | tuple[Value, ...] | None, *reads: Value, suffix: str = "",
        hidden: tuple[str, ...] = (), early: bool = False, target: str | None = None,
    ) -> None:  # fmt: skip
        targets = writes if isinstance(writes, tuple) else () if writes is None else (writes,)
        self.lines.append(
            Line(operation, targets, reads, self.source, self.regions, suffix, hidden, early, None, target)
        )

    def place(self, label: str) -> None:
        self.lines.append(Line("", source=self.source, regions=self.regions, label=label))

    def enter(self, loop: bool) -> Region:
        region = Region(loop, len(self.lines))
        self.regions = (*self.regions, region)
        return region

    def leave(self) -> None:
        self.regions[-1].last = len(self.lines) - 1
        self.regions = self.regions[:-1]
