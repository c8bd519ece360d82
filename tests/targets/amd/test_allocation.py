"""Registers: no two live values share one, tuples are aligned, placed ranges are kept out, running out is an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kingpost.formats import BF16
from kingpost.portable.tile_product import tile_product
from kingpost.program import Builder, Program, f32, operation, u32, u64
from kingpost.targets.amd import amdgcn as writer
from kingpost.targets.amd.amdgcn import amdgcn
from kingpost.targets.amd.machine import Line, Reg
from kingpost.targets.amd.registers import AllocationError, Usage, intervals, parse_place
from kingpost.targets.amd.targets import GFX942, GFX950

from .programs import LANES, both, everything, interpret, launch


def program(body: Callable[..., None]) -> Program:
    k = Builder(body.__name__, GFX942)
    body(k, k.parameter("d", u64))
    return k.finish({})


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> Callable[[Program], tuple[list[Line], Usage]]:
    """The lines of a program with numbers, before waits, and how many registers it uses."""

    def lines_of(program: Program) -> tuple[list[Line], Usage]:
        kept: list[Any] = []
        real = writer.allocate

        def allocate(lines: list[Line]) -> Usage:
            usage = real(lines)
            kept.append((lines, usage))
            return usage

        monkeypatch.setattr(writer, "allocate", allocate)
        amdgcn(program)
        return kept[0]

    return lines_of


PROGRAMS = {
    "everything": lambda: everything(GFX942),
    "everything on gfx950": lambda: everything(GFX950),
    "tile product": lambda: tile_product(target=GFX942, out=BF16),
}


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_no_two_live_values_share_a_register_and_tuples_are_even(make: Any, allocated: Any) -> None:
    lines, usage = allocated(make())
    limits = {"v": usage.vector, "s": usage.scalar, "a": usage.accumulation}
    holders: dict[tuple[str, int], list[Any]] = {}
    for interval in intervals(lines):
        virtual = interval.virtual
        assert virtual.size == 1 or virtual.first % 2 == 0
        assert virtual.first + virtual.size <= limits[virtual.bank]
        for number in range(virtual.first, virtual.first + virtual.size):
            for other in holders.setdefault((virtual.bank, number), []):
                assert not interval.overlaps(other), f"{virtual} and {other.virtual} in {virtual.bank}{number}"
            holders[virtual.bank, number].append(interval)


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_read_is_what_was_written(make: Any, allocated: Any) -> None:
    """Along the text, whatever the intervals say: a register holds the value that a line reads from it.

    Ways around a loop are walked twice."""
    lines, _ = allocated(make())
    holds: dict[tuple[str, int], Any] = {}
    for line in _twice_through_loops(lines):
        for reg, virtual, number in _registers(line.reads):
            if (reg, number) in holds:  # else it comes with the wave, or was never written
                assert holds[reg, number] is virtual, f"{line.text()}: {reg}{number} holds {holds[reg, number]}"
        for reg, virtual, number in _registers(line.writes):
            holds[reg, number] = virtual


def _registers(values: tuple[Any, ...]) -> Iterator[tuple[str, Any, int]]:
    for value in values:
        if isinstance(value, Reg):
            yield from ((value.bank, value.virtual, value.virtual.first + word) for word in value.words())


def _twice_through_loops(lines: list[Line]) -> Iterator[Line]:
    loops = {region.last: region.first for line in lines for region in line.regions if region.loop}
    at, taken = 0, set()
    while at < len(lines):
        yield lines[at]
        if at in loops and at not in taken:
            taken.add(at)
            at = loops[at]
        else:
            at += 1


def numbers_in(text: str, bank: str) -> set[int]:
    """The registers of a bank that a text names."""
    found: set[int] = set()
    code = text[text.index(",@function") : text.index(".size ")]
    for one, first, last in re.findall(rf"\b{bank}(?:(\d+)\b|\[(\d+):(\d+)\])", re.sub(";.*", "", code)):
        found |= set(range(int(one or first), int(one or last) + 1))
    return found


@operation("v_pk_add_f32 {d}, {a}, {a}", writes={"d": f32})
def doubled(warp, a):  # type: ignore[no-untyped-def]
    return a + a


def placed(k: Builder, d: Any) -> None:
    base = k.array(u64, 1, place="s[2:3]")[0]
    k.set(base, d)
    pair = k.array(f32, 2, place="v[0:1]")
    k.set(pair[0], 1.5)
    k.set(pair[1], k.convert(f32, k.lane))
    doubled(k, pair, into=pair)
    accumulators = k.array(f32, 4, place="a[4:7]")
    k.set(accumulators, 0.25)
    for i in range(2):
        k.store(k.address(base, k.lane, 4), pair[i] + accumulators[i], offset=i * 4 * LANES)


def test_placed_registers_are_those_and_nobody_elses(allocated: Any) -> None:
    lines, usage = allocated(program(placed))
    assert (usage.accumulation, usage.accumulation_offset % 4) == (8, 0)
    assert usage.unified == usage.accumulation_offset + 8
    owners: dict[tuple[str, int], set[str]] = {}
    for line in lines:
        for bank, virtual, number in _registers((*line.reads, *line.writes)):
            owners.setdefault((bank, number), set()).add(virtual.name)
    for place in (("v", 0), ("v", 1), ("s", 2), ("s", 3), ("a", 4), ("a", 7)):
        assert len(owners[place] - {"thread", "block"}) == 1


def test_placed_registers_may_be_those_that_a_wave_starts_with() -> None:
    """v0 and s2 hold the thread's and the block's index on entry; they are saved first."""
    d = np.zeros(2 * LANES, np.float32)
    emulated, interpreted = both(GFX942, lambda k, d: placed_alone(k, d), d)
    np.testing.assert_array_equal(interpreted, emulated)


def placed_alone(k: Builder, d: Any) -> None:
    """As `placed`, with the sum in portable operations, which the interpreter knows."""
    pair = k.array(f32, 2, place="v[0:1]")
    k.set(pair[0], 1.5)
    k.set(pair[1], k.convert(f32, k.lane + k.block))
    accumulators = k.array(f32, 4, place="a[4:7]")
    k.set(accumulators, 0.25)
    for i in range(2):
        k.store(k.address(d, k.lane, 4), pair[i] + accumulators[i], offset=i * 4 * LANES)


@pytest.mark.parametrize("place, parsed", [
    ("v5", ("v", 5, 1)), ("v[4:7]", ("v", 4, 4)), ("s[2:3]", ("s", 2, 2)), ("a[0:15]", ("a", 0, 16)),
])  # fmt: skip
def test_places(place: str, parsed: tuple[str, int, int]) -> None:
    assert parse_place(place) == parsed


@pytest.mark.parametrize("place", ["v[7:4]", "v256", "s[99:100]", "x3", "v", "[0:3]"])
def test_places_that_are_none(place: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"place is {place!r}")):
        parse_place(place)


def test_a_place_of_the_wrong_size_is_refused() -> None:
    k = Builder("wrong", GFX942)
    k.set(k.array(u32, 3, "x", place="v[4:7]"), 0)
    with pytest.raises(ValueError, match="3 registers are wanted"):
        amdgcn(k.finish({}))


def test_running_out_of_vector_registers_names_the_line() -> None:
    def body(k: Builder, d: Any) -> None:
        held = [k.load(u32, k.address(d, k.lane, 4), offset=4 * i) for i in range(260)]
        for each in held:
            k.store(d, each)

    line = body.__code__.co_firstlineno + 1
    with pytest.raises(AllocationError, match=rf"^test_allocation.py:{line}: .* vector registers in a row; of 256, "):
        amdgcn(program(body))


def test_running_out_of_scalar_registers_names_the_line() -> None:
    def body(k: Builder, d: Any) -> None:
        held = [k.block * i for i in range(3, 120)]
        for each in held:
            k.store(d, each)

    with pytest.raises(AllocationError, match=r"^test_allocation.py:\d+: .* scalar registers in a row; of 100, "):
        amdgcn(program(body))


def test_registers_are_used_again() -> None:
    def body(k: Builder, d: Any) -> None:
        for i in range(400):
            k.store(d, k.load(u32, k.address(d, k.lane, 4), offset=4 * i))

    assert max(numbers_in(amdgcn(program(body)), "v")) < 8


def test_a_full_house_still_computes_right() -> None:
    """Most of the vector registers live at once."""

    def body(k: Builder, d: Any) -> None:
        held = [k.lane * i + 1 for i in range(200)]
        total = k.new(u32, 0)
        with k.loop(2):
            for each in held:
                total += each
        k.store(k.address(d, k.lane, 4), total)

    d = np.zeros(LANES, np.uint32)
    interpret(launch(GFX942, body, d=d))
    np.testing.assert_array_equal(d, 2 * (np.arange(LANES) * sum(range(200)) + 200))
