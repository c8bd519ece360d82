"""Registers for virtual ones: linear scan over live intervals, without spilling.

A virtual register lives from its first line to its last. Where it is used in a loop it lives for all of the loop,
unless every iteration writes each of its words, in all lanes concerned, before reading it. Tuples of two and more
words start at an even register, as gfx90a and later want it (LLVM AMDGPU usage, "Register alignment").
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from kingpost.targets.amd.machine import Line, Reg, Region, Virtual

VECTOR_REGISTERS, SCALAR_REGISTERS = 256, 100  # of the latter there are 102; vcc and the like lie above
_LIMITS = {"v": VECTOR_REGISTERS, "a": VECTOR_REGISTERS, "s": SCALAR_REGISTERS}
_KINDS = {"v": "vector", "a": "accumulation", "s": "scalar"}


class AllocationError(RuntimeError):
    """A program needs more registers than there are; names the Python line that asked for one too many."""


@dataclass(frozen=True)
class Usage:
    """How many registers of each bank a program touches: the highest number plus one."""

    vector: int
    scalar: int
    accumulation: int

    @property
    def accumulation_offset(self) -> int:
        """Where accumulation registers start behind the vector ones: a multiple of 4, at least 4."""
        return max(4, -(-self.vector // 4) * 4)

    @property
    def unified(self) -> int:
        """Vector and accumulation registers, of the one file that holds both."""
        return self.accumulation_offset + self.accumulation if self.accumulation else max(1, self.vector)


@dataclass
class Interval:
    """When a virtual register lives, in half lines: line i reads at 2 i and writes at 2 i + 1."""

    virtual: Virtual
    start: int
    end: int

    def overlaps(self, other: Interval) -> bool:
        return self.start <= other.end and other.start <= self.end


def parse_place(place: str) -> tuple[str, int, int]:
    """ "v[4:7]" as ("v", 4, 4): bank, first, count."""
    found = re.fullmatch(r"([vsa])(?:(\d+)|\[(\d+):(\d+)\])", place)
    first = int(found[2] or found[3]) if found else 0
    last = int(found[4] or first) if found else -1
    if not found or last < first or last >= _LIMITS[found[1]]:
        raise ValueError(f"place is {place!r}; a register or a range such as 'v5', 's[8:11]' or 'a[0:15]' is wanted")
    return found[1], first, last - first + 1


def intervals(lines: list[Line]) -> list[Interval]:
    """The live interval of every virtual register that the lines touch, by start."""
    accesses: dict[Virtual, list[_Access]] = defaultdict(list)
    for index, line in enumerate(lines):
        for value in line.reads:
            if isinstance(value, Reg):
                accesses[value.virtual].append(_Access(2 * index, value, False, line.regions))
        for value in line.writes:
            if isinstance(value, Reg):
                at = 2 * index + (0 if line.early or line.manual else 1)
                accesses[value.virtual].append(_Access(at, value, True, line.regions))
    found = [_interval(virtual, each) for virtual, each in accesses.items()]
    return sorted(found, key=lambda interval: interval.start)


@dataclass
class _Access:
    at: int
    reg: Reg
    writes: bool
    regions: tuple[Region, ...]


def _interval(virtual: Virtual, accesses: list[_Access]) -> Interval:
    start, end = accesses[0].at, accesses[-1].at
    end = max(end, max(a.at for a in accesses))
    for loop in {region for access in accesses for region in access.regions if region.loop}:
        if not _within_iteration(accesses, loop):
            start, end = min(start, 2 * loop.first), max(end, 2 * loop.last + 1)
    return Interval(virtual, start, end)


def _within_iteration(accesses: list[_Access], loop: Region) -> bool:
    """Whether every iteration writes each word before it reads it, and nothing outside the loop touches it."""
    if any(loop not in access.regions for access in accesses):
        return False
    for word in {word for access in accesses for word in access.reg.words()}:
        first, *others = [access for access in accesses if word in access.reg.words()]
        if not first.writes or any(o.regions[: len(first.regions)] != first.regions for o in others):
            return False
    return True


def allocate(lines: list[Line]) -> Usage:
    """Number every virtual register that has no number yet; placed ones keep theirs, for the whole program."""
    live = intervals(lines)
    pinned: dict[str, set[int]] = defaultdict(set)
    for interval in live:
        virtual = interval.virtual
        if virtual.first is not None:
            pinned[virtual.bank] |= set(range(virtual.first, virtual.first + virtual.size))
    highest = {bank: max(pinned[bank], default=-1) for bank in _LIMITS}
    for bank, limit in _LIMITS.items():
        active: list[Interval] = []
        for interval in live:
            virtual = interval.virtual
            if virtual.bank != bank or virtual.first is not None:
                continue
            active = [other for other in active if other.end >= interval.start]
            taken = set(pinned[bank])
            for other in active:
                assert other.virtual.first is not None
                taken |= set(range(other.virtual.first, other.virtual.first + other.virtual.size))
            virtual.first = _lowest_free(virtual, taken, limit, active)
            highest[bank] = max(highest[bank], virtual.first + virtual.size - 1)
            active.append(interval)
    return Usage(highest["v"] + 1, highest["s"] + 1, highest["a"] + 1)


def _lowest_free(virtual: Virtual, taken: set[int], limit: int, active: Iterable[Interval]) -> int:
    step = 2 if virtual.size > 1 else 1
    for first in range(0, limit - virtual.size + 1, step):
        if taken.isdisjoint(range(first, first + virtual.size)):
            return first
    largest = sorted((other.virtual for other in active), key=lambda v: -v.size)[:3]
    where = ", ".join(f"{each.name} of {each.source} has {each.size}" for each in largest)
    raise AllocationError(
        f"{virtual.source}: {virtual.name} wants {virtual.size} {_KINDS[virtual.bank]} registers in a row; of {limit}, "
        f"{limit - len(taken & set(range(limit)))} are free and there is no spilling ({where})"
    )
