"""What an emulated run has to say: a finding that stops it, or what it executed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kingpost.program import Instruction, Source


@dataclass(frozen=True)
class Finding:
    """Something a program did that its target does not allow, or that leaves the result open."""

    kind: str
    message: str
    agent: str
    source: Source | None

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        return f"{self.kind}: {self.agent}{where}: {self.message}"


class EmulationError(RuntimeError):
    """The emulator stopped at a finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class DeadlockError(EmulationError):
    """No warp can go on and nothing asynchronous is pending; the message says who waits for what."""


@dataclass
class Report:
    """What a run executed: warp-instructions by instruction, and bytes and cycles by unit.

    conflicts: extra passes for bank conflicts in shared memory, by instruction.
    """

    schedule: str
    blocks: int = 0
    seconds: float = 0.0
    executed: Counter[Instruction] = field(default_factory=Counter)
    conflicts: Counter[Instruction] = field(default_factory=Counter)

    @property
    def instructions(self) -> int:
        return self.executed.total()

    @property
    def bank_conflicts(self) -> int:
        return self.conflicts.total()

    @property
    def uses(self) -> dict[str, float]:
        """Units used, summed over all warps: cycles, bytes or issue slots."""
        total: Counter[str] = Counter()
        for instruction, times in self.executed.items():
            for unit, amount in instruction.uses.items():
                total[unit] += amount * times  # type: ignore[assignment]
        return dict(total)
