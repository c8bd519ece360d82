"""Every PTX instruction that we define, with operands right and wrong: what its definition says, and what ptxas says."""

from __future__ import annotations

import itertools
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kingpost.assemble import AssemblerNotFound, AssemblyError, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.formats import BF16, E4M3, E5M2, F16, F32
from kingpost.program import Builder, Operation, Target, TensorMapType, Type, f32, pred, s32, u32, u64
from kingpost.targets.nvidia import isa
from kingpost.targets.nvidia.ptx import ptx
from kingpost.targets.nvidia.targets import SM_90A, SM_100A

from ..instruction_samples import Sample, definitions, sample

TARGETS = {"common": (SM_90A, SM_100A), "hopper": (SM_90A,), "blackwell": (SM_100A,)}


@dataclass(frozen=True)
class Domain:
    """What is tried on a definition beside wrong operands, which are tried on all of them."""

    fields: dict[str, Sequence[Any]] = field(default_factory=dict)  # the first value of each is right
    together: tuple[str, ...] = ()  # fields tried in all combinations; others one at a time
    count: Callable[[dict[str, Any]], dict[str, int]] = lambda fields: {}  # registers of an operand, where not 1
    types: dict[str, Type] = field(default_factory=dict)  # of operands that may be of several


def _box(dimensions: int, *others: Any) -> list[Any]:
    return [TensorMapType(F32, (8,) * dimensions), *others]


OFFSETS = (0, 16, 2**31 - 16, 2**31, 2**32, -16)
FORMATS = (E4M3, E5M2, BF16, F16, F32)
COLUMNS = (32, 64, 128, 256, 512, 0, 16, 31, 33, 48, 1024, -32)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 0, 3, 256)
NS = (*range(8, 257, 8), 0, 4, 12, 250, 264, -8)
DESCRIPTOR = {
    "offset": (0, 32, 2**18 - 16, 8, 2**18, -16),
    "stride": (1024, 0, 16, 2**18 - 16, 8, 2**18, -16),
    "swizzle": (128, 64, 32, 0, 16, 256),
}
MMA = {"n": (64, *NS), "a_format": FORMATS, "b_format": FORMATS}
ROWS = (128, 64, 0, 32, 96, 256)
BYTES = (0, 1, 2, 3, -1, 4)

DOMAINS = {
    "named_barrier": Domain({"threads": (128, 32, 1024, 0, 31, 33, -32, 1056)}),
    "mbarrier_init": Domain({"count": (1, 2**20 - 1, 0, 2**20, -1)}),
    "mbarrier_arrive_expect": Domain({"bytes": (16, 0, 2**20 - 1, 2**20, -1, 2**32)}),
    "bulk_load_2d": Domain({"type": _box(2, *_box(1), *_box(3))}),
    "bulk_store_2d": Domain({"type": _box(2, *_box(1), *_box(3))}),
    "bulk_load_3d": Domain({"type": _box(3, *_box(2), *_box(4))}),
    "bulk_store_3d": Domain({"type": _box(3, *_box(2), *_box(4))}),
    "bulk_reduce_add_3d": Domain({"type": _box(3, *_box(2), *_box(4), TensorMapType(BF16, (8, 8, 8)))}),
    "bulk_wait_read": Domain({"groups": (0, 1, 7, 1000, -1)}),
    "shuffle_up": Domain({"distance": (1, 0, 31, 32, -1)}),
    "unpack_f16": Domain({"half": (0, 1, 2, -1)}),
    "stmatrix": Domain(
        {"offset": OFFSETS, "transposed": (False, True)}, count=lambda fields: {"values": 4}, types={"values": u32}
    ),
    "store_shared_pair": Domain({"offset": OFFSETS}),
    "matrix_descriptor": Domain(DESCRIPTOR | {"leading": (0, 16, 2**18 - 16, 8, 2**18, -16)}),
    "wgmma": Domain(
        {
            "n": (8, *NS),
            "accumulate": (True, False),
            "a_format": FORMATS,
            "b_format": FORMATS,
            "a_major": ("k", "mn", "m"),
            "b_major": ("k", "mn", "n"),
        },
        together=("a_format", "b_format", "a_major", "b_major"),
        count=lambda fields: {"d": max(fields["n"] // 2, 1)},
    ),
    "wgmma_wait": Domain({"groups": (0, 1, 7, 8, -1)}),
    "tensor_allocate": Domain({"columns": COLUMNS}),
    "tensor_free": Domain({"columns": COLUMNS}),
    **dict.fromkeys(
        ("tensor_load", "tensor_load_bits", "tensor_store"),
        Domain(
            {"count": COUNTS, "column": (0, 511, 512, -1), "split": (None, 0, 16, 256, 511, 512, -1)},
            together=("count", "split"),
            count=lambda fields: dict.fromkeys(("d", "values"), max(fields["count"], 1)),
            types={"values": f32},
        ),
    ),
    "shared_descriptor": Domain(DESCRIPTOR),
    "mma_f16": Domain(MMA | {"m": ROWS, "a_format": FORMATS[::-1], "b_format": FORMATS[::-1]}),
    "mma_f8": Domain(MMA | {"m": ROWS}, together=("a_format", "b_format")),
    "mma_mxf8": Domain(MMA | {"a_scale": BYTES, "b_scale": BYTES}, together=("a_format", "b_format")),
}
_F16S = (F16, BF16, E4M3, F32)
DOMAINS["mma_f16"] = Domain(MMA | {"m": ROWS, "a_format": _F16S, "b_format": _F16S}, together=("a_format", "b_format"))
DOMAINS["mma_f16_masked"] = Domain(DOMAINS["mma_f16"].fields, count=lambda fields: {"disabled": 4})

CRASHING = r"tcgen05.cp: (operand )?address is -?\d+; "  # what ptxas 13.5 is not asked: at a number there it crashes

STRICTER = {  # what definitions refuse and ptxas takes, and why
    r"; (u32|s32|u64|f32|pred) is wanted": "PTX asks for a size alone, and lets numbers wrap; we mean a type",
    r"has \d registers; (one is|\d are) wanted": "the text would name one register of those given",
    r": \w+ is \S+; a register is wanted": "a number where the emulator wants the value of each lane",
    r"bar.sync: threads is": "no warp ends a barrier of no threads, or of more than a block has: a hang",
    r"expect_tx: bytes is": "an mbarrier counts bytes in 20 bits (PTX ISA, on its contents)",
    r"wait_group.read: groups is -1": "a negative number of groups means nothing",
    r"shfl.sync.up.b32: distance is": "the chip takes it modulo 32, silently",
    r"(stmatrix|st.shared.v2.f32): offset is": "the emulator's addresses have no sign; past 31 bits ptxas drops some",
    r"_descriptor: \w+ is": "ptxas does not know the number for a descriptor; its bits would run into other fields",
    r"are not \d+ different registers|wgmma: into is": "each would be written twice, in an order that PTX leaves open",
    r"tcgen05.mma.*: (m|n|\w_format|\w_scale) is|a_format and b_format differ": "in a number that ptxas does not read",
    r"tcgen05.ld/st: (column|split) is": "tensor memory has 512 columns; ptxas does not look",
}
NUMBERS = (0, 1, 15, 16, 2**32 - 1, 2**32, -1, 0.5, 1e39)


def samples(target: Target, name: str, operation: Operation) -> Iterator[Sample]:
    """A definition's base, then each field's values, then each operand of wrong types, counts, and as a number."""
    domain = DOMAINS.get(name, Domain())
    missing = set(operation.fields) ^ set(domain.fields)
    assert not missing, f"{name}: values to try for its fields {sorted(missing)} are wanted in DOMAINS"
    base = {name: values[0] for name, values in domain.fields.items()}
    varied = [{name: value} for name, values in domain.fields.items() for value in values]
    combined = itertools.product(*(domain.fields[name] for name in domain.together))
    varied += [dict(zip(domain.together, values)) for values in combined]
    for change in varied or [{}]:
        fields = base | change
        told = ", ".join(f"{name}={getattr(value, 'name', value)}" for name, value in change.items())
        yield sample(target, operation, f"{name} {told}".rstrip(), lambda k: _operands(k, operation, domain, fields), fields)
    for slot in (*operation.operands, *operation.writes):
        for what, replace in _replacements(operation, domain, slot, base):
            yield sample(
                target,
                operation,
                f"{name} {slot}: {what}",
                lambda k: _operands(k, operation, domain, base, {slot: replace}),
                base,
            )


def _type(operation: Operation, domain: Domain, slot: str) -> Type:
    known = {**domain.types, **operation.reads, **operation.writes}
    assert slot in known, f"{operation.name}: the type of {slot} is wanted, in its definition or in DOMAINS"
    return known[slot]


def _operands(
    k: Builder, operation: Operation, domain: Domain, fields: dict[str, Any], other: dict[str, Any] | None = None
) -> tuple[tuple[Any, ...], Any]:
    counts = domain.count(fields)
    values = {
        slot: other[slot](k) if other and slot in other else k.array(_type(operation, domain, slot), counts.get(slot, 1))
        for slot in (*operation.operands, *operation.writes)
    }
    into = [values[slot] for slot in operation.writes]
    return tuple(values[slot] for slot in operation.operands), into[0] if into else None


def _replacements(
    operation: Operation, domain: Domain, slot: str, fields: dict[str, Any]
) -> Iterator[tuple[str, Callable[[Builder], Any]]]:
    wanted, count = _type(operation, domain, slot), domain.count(fields).get(slot, 1)
    for type in (u32, s32, u64, f32):  # no predicate for a number: ptxas 13.5 crashes at it, or hangs
        if type is not wanted:
            yield type.name, lambda k, type=type: k.array(type, count)
    for more in {count - 1, count + 1, 2 * count, 3} - {0, count}:
        yield f"{more} registers", lambda k, more=more: k.array(wanted, more)
    if count > 1:
        yield "one twice", lambda k: k.array(wanted, count)[[0, *range(count - 1)]]
    if slot in operation.operands:
        for number in NUMBERS:
            yield str(number), lambda k, number=number: number


# What ptxas says


def complaints(target: Target, kernels: list[str]) -> dict[int, str]:
    """What ptxas says against texts of one kernel each, by index, in one file but for those it has found fault with.

    One kernel each, as it takes minutes over many bulk copies in one. A run names all faults of a stage, but stops at
    the first bad line of syntax.
    """
    found: dict[int, str] = {}
    while True:
        left = {index: kernel for index, kernel in enumerate(kernels) if index not in found}
        head = kernels[0].partition(".visible")[0]
        bodies = [
            ".visible" + kernel.partition(".visible")[2].replace(" sample(", f" sample_{i}(").replace(_AT, f".loc 1 {i} 0")
            for i, kernel in left.items()
        ]
        try:
            assemble("\n".join([head, *bodies]), target.name, find_ptxas())
            return found
        except AssemblyError as error:
            problems = [p for p in error.problems if not re.match(r"C75|\d+ bytes spilled", p.message)]
            if not problems:
                return found
            at = {int(p.source.partition(":")[2]): p.message for p in problems if p.source}
            if not at:
                raise
            found |= at


_AT = ".loc 1 0 0"


def text(target: Target, each: Sample) -> str | None:
    """None where none can be made."""
    try:
        return ptx(each.program(target))
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError, struct.error):
        return None


DEFINITIONS = definitions(isa)
CASES = [
    pytest.param(target, name, operation, id=f"{name}-{target.name}")
    for module, operations in DEFINITIONS.items()
    for target in TARGETS.get(module, (SM_90A,))
    for name, operation in operations.items()
]


def test_every_module_is_for_a_target() -> None:
    assert {module for module, operations in DEFINITIONS.items() if operations} == set(TARGETS)


def test_every_reason_counts() -> None:
    refusals = [s.refusal for case in CASES for s in samples(*case.values) if s.refusal]
    assert [known for known in (CRASHING, *STRICTER) if not any(re.search(known, each) for each in refusals)] == []


@pytest.mark.parametrize("target, name, operation", CASES)
def test_definition_and_ptxas_agree(target: Target, name: str, operation: Operation) -> None:
    tried = list(samples(target, name, operation))
    assert tried[0].refusal is None, "the first of each field's values should be right"
    accepted, refused = defaultdict(list), defaultdict(list)
    problems = []
    for each in tried:
        kernel = text(target, each)
        if kernel is not None:
            (accepted if each.refusal is None else refused)[kernel].append(each)
        elif each.refusal is None:
            problems.append(f"{each.label}: accepted, but has no text")
    asked = [*accepted, *(kernel for kernel in refused if kernel not in accepted)]
    asked = [kernel for kernel in asked if not any(re.search(CRASHING, each.refusal or "") for each in refused[kernel])]
    told = complaints(target, asked)
    for index, kernel in enumerate(asked):
        if kernel in accepted and index in told:
            problems.append(f"{accepted[kernel][0].label}: accepted, but ptxas says: {told[index]}")
        if kernel not in accepted and index not in told:
            problems += [
                f"{each.label}: ptxas takes it, but refused: {each.refusal}"
                for each in refused[kernel]
                if not any(re.search(known, each.refusal or "") for known in STRICTER)
            ]
    assert not problems, "\n".join(problems)
