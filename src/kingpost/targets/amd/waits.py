"""Waits and wait states for lowered instructions: the assembler inserts neither.

Loads and stores are counted by vmcnt, in order; LDS by lgkmcnt, in order too, but scalar loads share that counter out
of order, so with one in flight only 0 proves anything. Of each register in flight we keep its age: how many newer
ones its counter has counted since, at least, on any way here. Waiting until `age` are left is then enough, and the
weakest wait that is. Wait states are ages as well, in instructions since the register was written.

Sources: LLVM AMDGPU usage, "Memory model gfx942"; CDNA3 ISA, "Manually inserted wait states"; LLVM's hazard
recogniser, gfx940. Hand-written instructions bring their own waits: what lowered code has in flight is waited for
before the first of them. Of their own, only products are known: lowered code waits for their results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kingpost.targets.amd.machine import Line, Reg, Value
from kingpost.targets.amd.units.wait_states import product_wait_states

Word = tuple[str, int]  # bank and number; ("vcc", 0)
Ages = dict[tuple[str, Word], int]  # of a kind of event on a register

VECTOR_LIMIT, LDS_LIMIT = 63, 15
PRODUCT = product_wait_states("gfx950", passes=16)  # the most that any matrix instruction wants
FORGET = PRODUCT  # wait states after which no hazard is left

_TRANSCENDENTAL = ("v_rcp_", "v_rsq_", "v_sqrt_", "v_exp_", "v_log_", "v_sin_", "v_cos_")


def words(values: tuple[Value, ...]) -> Iterator[Word]:
    """The physical registers behind operands."""
    for value in values:
        if isinstance(value, Reg):
            assert value.virtual.first is not None
            yield from ((value.bank, value.virtual.first + word) for word in value.words())
        elif value in ("vcc", "exec"):
            yield (value, 0)


def counter(line: Line) -> str | None:
    """Which counter an instruction's work is counted by: "vector", "store" (the same counter), "lds" or "scalar"."""
    if line.manual:
        return None
    name = line.operation
    if name.startswith("global_"):
        return "store" if name.startswith("global_store") else "vector"
    return "lds" if name.startswith("ds_") else "scalar" if name.startswith("s_load") else None


@dataclass
class State:
    """What is in flight, and how long ago, at some place in the text."""

    flying: Ages = field(default_factory=dict)  # by counter and register; stores by the place ("store", 0)
    written: Ages = field(default_factory=dict)  # by what wrote a register: see `_Hazards`

    def copy(self) -> State:
        return State(dict(self.flying), dict(self.written))

    def merge(self, other: State) -> bool:
        """Take the younger age of each; whether anything changed."""
        changed = False
        for mine, theirs in ((self.flying, other.flying), (self.written, other.written)):
            for event, age in theirs.items():
                if mine.get(event, 1 << 30) > age:
                    mine[event], changed = age, True
        return changed

    # In flight

    def _count(self, kinds: tuple[str, ...]) -> None:
        for event in self.flying:
            if event[0] in kinds:
                self.flying[event] += 1

    def issue(self, kind: str, targets: list[Word]) -> None:
        kinds = _SAME[kind]
        self._count(kinds)
        for word in targets or [("memory", 0)]:
            self.flying[kind, word] = 0

    def needed(self, line: Line) -> tuple[int | None, int | None]:
        """The vmcnt and lgkmcnt that a line must wait for, None for none."""
        if line.manual:
            events = list(self.flying)
        elif line.operation == "s_barrier":
            events = [event for event in self.flying if event[0] in ("store", "lds")]
        elif line.target is not None:
            # a scalar load in flight around a loop would keep every count in it at 0
            events = [event for event in self.flying if event[0] == "scalar"]
        else:
            touched = {*words(line.reads), *words(line.writes), *((name, 0) for name in line.hidden)}
            events = [event for event in self.flying if event[1] in touched]
        vector = [self.flying[e] for e in events if e[0] in ("vector", "store")]
        lds = [self.flying[e] for e in events if e[0] in ("lds", "scalar")]
        if lds and any(kind == "scalar" for kind, _ in self.flying):
            lds = [0]
        return (
            min(min(vector), VECTOR_LIMIT) if vector else None,
            min(min(lds), LDS_LIMIT) if lds else None,
        )

    def waited(self, vector: int | None, lds: int | None) -> None:
        for kinds, left in ((_SAME["vector"], vector), (_SAME["lds"], lds)):
            if left is not None:
                self.flying = {e: age for e, age in self.flying.items() if e[0] not in kinds or age < left}

    # Wait states

    def missing(self, line: Line) -> int:
        """How many wait states a line needs before it."""
        most = 0
        for wanted, event in _hazards(line):
            most = max(most, wanted - self.written.get(event, FORGET))
        return most

    def pass_states(self, states: int) -> None:
        self.written = {e: age + states for e, age in self.written.items() if age + states < FORGET}

    def write(self, line: Line) -> None:
        name = line.operation
        if name.startswith("v_") and not name.startswith("v_mfma"):
            for word in words(line.writes):
                kinds = ["vector unit"]
                if name.startswith(_TRANSCENDENTAL):
                    kinds.append("transcendental")
                if "op_sel" in line.suffix:
                    kinds.append("shifted")
                for kind in ("vector unit", "transcendental", "shifted"):
                    self.written.pop((kind, word), None)
                for kind in kinds:
                    self.written[kind, word] = 0
        elif name.startswith("v_mfma"):
            for word in words(line.writes):
                self.written["product", word] = 0
        elif name in ("global_store_dwordx4", "global_store_dwordx3"):
            for word in words(line.reads[1:2]):
                self.written["store", word] = 0


_SAME = dict.fromkeys(("vector", "store"), ("vector", "store")) | dict.fromkeys(("lds", "scalar"), ("lds", "scalar"))


def _hazards(line: Line) -> Iterator[tuple[int, tuple[str, Word]]]:
    """(wait states wanted, event) for each event that a line must keep a distance from."""
    name = line.operation
    is_vector = name.startswith("v_")
    if not line.manual:
        yield from ((PRODUCT, ("product", word)) for word in words((*line.reads, *line.writes)))
    for word in {*words(line.reads), *((hidden, 0) for hidden in line.hidden)}:
        scalar = word[0] in ("s", "vcc")
        if name.startswith(("global_", "buffer_")) and scalar:
            yield 5, ("vector unit", word)
        elif name == "v_div_fmas_f32" and word[0] == "vcc":
            yield 4, ("vector unit", word)
        elif is_vector and scalar:
            yield 2, ("vector unit", word)
        elif name.startswith(("v_readfirstlane", "v_readlane")):
            yield 1, ("vector unit", word)
        elif name.startswith("v_mfma"):
            yield 2, ("vector unit", word)
        if is_vector and not name.startswith(_TRANSCENDENTAL):
            yield 1, ("transcendental", word)
        if is_vector:
            yield 1, ("shifted", word)
    if is_vector:
        for word in words(line.writes):
            yield 2, ("store", word)


def insert_waits(lines: list[Line]) -> list[Line]:
    """The lines with waits and wait states put in, once registers have numbers."""
    arriving: dict[str, State] = {}  # at each label
    while True:
        result, changed = _pass(lines, arriving)
        if not changed:
            return result


def _pass(lines: list[Line], arriving: dict[str, State]) -> tuple[list[Line], bool]:
    """One walk over the text, from what is known to arrive at each label; whether more was found to arrive."""
    state, result, changed = State(), [], False
    for line in lines:
        if line.label is not None:
            known = arriving.setdefault(line.label, State())
            changed |= known.merge(state)
            state = known.copy()
            result.append(line)
            continue
        vector, lds = state.needed(line)
        if vector is not None or lds is not None:
            result.append(_wait(line, vector, lds))
            state.waited(vector, lds)
            state.pass_states(1)
        states = state.missing(line)
        if states > 0:
            result.append(Line("s_nop", (), (states - 1,), line.source, line.regions))
            state.pass_states(states)
        result.append(line)
        if line.target is not None:
            changed |= arriving.setdefault(line.target, State()).merge(state)
        if line.operation == "s_branch":
            state = State()  # nothing falls through; what arrives at the next label is known there
        state.pass_states(_states(line))
        state.write(line)
        if kind := counter(line):
            state.issue(kind, list(words(line.writes)))
    return result, changed


def _states(line: Line) -> int:
    """The wait states that a line is worth."""
    return sum(int(text.split()[1]) + 1 if text.startswith("s_nop ") else 1 for text in line.text()) or 1


def _wait(line: Line, vector: int | None, lds: int | None) -> Line:
    counts = [f"{name}({left})" for name, left in (("vmcnt", vector), ("lgkmcnt", lds)) if left is not None]
    return Line("s_waitcnt " + " ".join(counts), source=line.source, regions=line.regions)
