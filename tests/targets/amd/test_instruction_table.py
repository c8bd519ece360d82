"""Every AMD instruction that we define, with operands right and wrong: what its definition says, and what LLVM says."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kingpost.assemble import AssemblerNotFound, AssemblyError, find_clang
from kingpost.assemble.amdgcn import assemble
from kingpost.program import Builder, Operation, Registers, Target, Type, f32, s32, u32, u64
from kingpost.targets.amd import isa
from kingpost.targets.amd.amdgcn import amdgcn
from kingpost.targets.amd.isa.cdna4 import FORMATS
from kingpost.targets.amd.targets import GFX942, GFX950

from ..instruction_samples import Sample, definitions, sample

TARGETS = {"common": (GFX942, GFX950), "cdna3": (GFX942, GFX950), "cdna4": (GFX942, GFX950)}
CLAIMED = {"common": (GFX942, GFX950), "cdna3": (GFX942, GFX950), "cdna4": (GFX950,)}


@dataclass(frozen=True)
class Domain:
    """What is tried on a definition beside wrong operands, which are tried on all of them."""

    fields: dict[str, Sequence[Any]] = field(default_factory=dict)  # the first value of each is right
    together: tuple[str, ...] = ()  # fields tried in all combinations; others one at a time
    count: Callable[[dict[str, Any]], dict[str, int]] = lambda fields: {}  # registers of an operand, where not 1
    scalar: tuple[str, ...] = ()  # operands that lie in scalar registers
    accumulated: tuple[str, ...] = ()  # and in accumulation registers


def _memory(largest: int, counts: dict[str, int], scalar: tuple[str, ...] = ()) -> Domain:
    return Domain({"offset": (0, 4, largest, largest + 1, -1)}, count=lambda fields: counts, scalar=scalar)


def _matrix(d: int, a: int, b: int) -> Domain:
    return Domain(count=lambda fields: {"a": a, "b": b, "c": d, "d": d})


def _formats(d: int, **others: Sequence[Any]) -> Domain:
    def count(fields: dict[str, Any]) -> dict[str, int]:
        a, b = (FORMATS.get(fields[name], (None, 8))[1] for name in ("cbsz", "blgp"))
        return {"a": a, "b": b, "c": d, "d": d}

    codes = (*FORMATS, 5, 7, 8, -1)
    return Domain({"cbsz": codes, "blgp": codes, **others}, together=("cbsz", "blgp"), count=count)


BYTES = {"byte_a": (0, 1, 2, 3, 4, -1), "byte_b": (0, 1, 2, 3, 4, -1)}
PAIRS = Domain(count=lambda fields: dict.fromkeys(("a", "b", "c", "d"), 2))
WIDTHS = (("dword", 1), ("dwordx2", 2), ("dwordx4", 4))
BITS = (("b32", 1), ("b64", 2), ("b128", 4))
DOMAINS = {
    "s_waitcnt": Domain({"vmcnt": (0, 1, 63, 64, -1, None), "lgkmcnt": (None, 0, 15, 16, -1)}, ("vmcnt", "lgkmcnt")),
    "s_nop": Domain({"count": (0, 15, 16, -1)}),
    "s_setprio": Domain({"priority": (0, 3, 4, -1)}),
    "v_readfirstlane_b32": Domain(scalar=("d",)),
    "s_mov_b32": Domain(scalar=("value", "d")),
    **{f"global_load_{width}": _memory(4095, {"d": words}) for width, words in WIDTHS},
    **{f"global_store_{width}": _memory(4095, {"values": words}) for width, words in WIDTHS},
    **{
        f"buffer_load_{width}": _memory(4095, {"d": words, "descriptor": 4}, ("descriptor", "scalar"))
        for width, words in WIDTHS
    },
    **{f"ds_read_{bits}": _memory(65535, {"d": words}) for bits, words in BITS},
    **{f"ds_write_{bits}": _memory(65535, {"values": words}) for bits, words in BITS},
    **dict.fromkeys(("v_pk_add_f32", "v_pk_mul_f32", "v_pk_fma_f32"), PAIRS),
    "v_accvgpr_read_b32": Domain(accumulated=("a",)),
    "v_accvgpr_write_b32": Domain(accumulated=("d",)),
    "v_mfma_f32_16x16x32_fp8_fp8": _matrix(4, 2, 2),
    "v_mfma_f32_32x32x16_fp8_fp8": _matrix(16, 2, 2),
    "v_mfma_f32_32x32x8f16": _matrix(16, 2, 2),
    "v_mfma_f32_16x16x128_f8f6f4": _formats(4),
    "v_mfma_f32_32x32x64_f8f6f4": _formats(16),
    "v_mfma_scale_f32_16x16x128_f8f6f4": _formats(4, **BYTES),
    "v_mfma_scale_f32_32x32x64_f8f6f4": _formats(16, **BYTES),
}

STRICTER: dict[str, str] = {}
NUMBERS = (0, 1, 16, 64, 65, 2**32 - 1, 2**32, -1, -16, 0.5, 1.0)


def samples(target: Target, name: str, operation: Operation) -> Iterator[Sample]:
    """A definition's base, then each field's values, then each operand of wrong files, places, types, and numbers."""
    domain = DOMAINS.get(name, Domain())
    missing = set(operation.fields) ^ set(domain.fields)
    assert not missing, f"{name}: values to try for its fields {sorted(missing)} are wanted in DOMAINS"
    base = {name: values[0] for name, values in domain.fields.items()}
    varied = [{name: value} for name, values in domain.fields.items() for value in values] or [{}]
    combined = itertools.product(*(domain.fields[name] for name in domain.together))
    varied += [dict(zip(domain.together, values)) for values in combined]
    for change in varied:
        fields = base | change
        told = ", ".join(f"{name}={value}" for name, value in change.items())
        yield sample(target, operation, f"{name} {told}", lambda k: _operands(k, operation, domain, fields), fields)
    for slot in (*operation.operands, *operation.writes):
        for what, replace in _replacements(operation, domain, slot, base):
            label = f"{name} {slot}: {what}"
            yield sample(
                target, operation, label, lambda k: _operands(k, operation, domain, base, {slot: replace}), base
            )
    if {"c", "d"} <= {*operation.operands, *operation.writes}:
        for what, shift in (("the same", 0), ("two on", 2), ("all on", 16)):
            label, count = f"{name} c and d: {what}", domain.count(base)["d"]
            moved = {"c": lambda k: placed(k, f32, count, "v", 64), "d": lambda k: placed(k, f32, count, "v", 64 + shift)}
            yield sample(target, operation, label, lambda k: _operands(k, operation, domain, base, moved), base)


def placed(k: Builder, type: Type, count: int, file: str, first: int) -> Registers:
    words = count * type.bits // 32
    return k.array(type, count, place=f"{file}{first}" if words == 1 else f"{file}[{first}:{first + words - 1}]")


def _operands(
    k: Builder, operation: Operation, domain: Domain, fields: dict[str, Any], other: dict[str, Any] | None = None
) -> tuple[tuple[Any, ...], Any]:
    values = {}
    for slot in (*operation.operands, *operation.writes):
        if other and slot in other:
            values[slot] = other[slot](k)
        else:
            values[slot] = placed(k, *_place(operation, domain, slot, fields))
    into = [values[slot] for slot in operation.writes]
    return tuple(values[slot] for slot in operation.operands), into[0] if into else None


def _place(operation: Operation, domain: Domain, slot: str, fields: dict[str, Any]) -> tuple[Type, int, str, int]:
    """Type, count, file and number of an operand's registers: each operand at another multiple of 16."""
    type = {**operation.reads, **operation.writes}.get(slot, u32)
    file = "s" if slot in domain.scalar else "a" if slot in domain.accumulated else "v"
    index = (*operation.operands, *operation.writes).index(slot)
    return type, domain.count(fields).get(slot, 1), file, 16 * index


def _replacements(
    operation: Operation, domain: Domain, slot: str, fields: dict[str, Any]
) -> Iterator[tuple[str, Callable[[Builder], Any]]]:
    type, count, file, first = _place(operation, domain, slot, fields)
    for other in {"v", "a", "s"} - {file}:
        yield f"file {other}", lambda k, other=other: placed(k, type, count, other, first)
    for other in (u32, s32, u64, f32):
        if other is not type:
            yield other.name, lambda k, other=other: placed(k, other, count, file, first)
    for more in {count - 1, count + 1, 2 * count, 3} - {0, count}:
        yield f"{more} registers", lambda k, more=more: placed(k, type, more, file, first)
    for shift in (1, 2):
        yield f"from {first + shift} on", lambda k, shift=shift: placed(k, type, count, file, first + shift)
    yield "placed by us", lambda k: k.array(type, count)
    if count > 1:
        yield "in the middle", lambda k: k.array(type, 2 * count)[1 : count + 1]
        yield "apart", lambda k: k.array(type, 2 * count)[::2]
    if slot in operation.operands:
        for number in NUMBERS:
            yield str(number), lambda k, number=number: number
    else:
        yield "none given", lambda k: None


# What LLVM says


def text(target: Target, each: Sample) -> str | None:
    """The instruction's own lines; None where none can be made."""
    try:
        whole = amdgcn(each.program(target))
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return None
    return whole.partition("; sample:0\n")[2].partition("s_endpgm")[0]


def complaints(target: Target, texts: list[str]) -> dict[int, str]:
    """What LLVM says against texts, by index: of all in one run."""
    lines = [f"  ; sample:{index}\n{each}" for index, each in enumerate(texts)]
    try:
        assemble("\n".join([".text", *lines]), target.name, find_clang())
    except AssemblyError as error:
        assert all(problem.source for problem in error.problems), str(error)
        return {int(problem.source.partition(":")[2]): problem.message for problem in error.problems}
    return {}


DEFINITIONS = definitions(isa)


def test_every_module_is_for_a_target() -> None:
    assert {module for module, operations in DEFINITIONS.items() if operations} == set(TARGETS)


@pytest.mark.parametrize("module", TARGETS)
@pytest.mark.parametrize("target", (GFX942, GFX950), ids=lambda target: target.name)
def test_definitions_and_the_assembler_agree(target: Target, module: str) -> None:
    problems = []
    accepted, refused = defaultdict(list), defaultdict(list)
    for name, operation in DEFINITIONS[module].items():
        tried = list(samples(target, name, operation))
        if target in CLAIMED[module]:
            assert tried[0].refusal is None, tried[0].refusal
        for each in tried:
            lines = text(target, each)
            if lines is not None:
                (accepted if each.refusal is None else refused)[lines].append(each)
            elif each.refusal is None:
                problems.append(f"{each.label}: accepted, but has no text")
    asked = [*accepted, *(lines for lines in refused if lines not in accepted)]
    told = complaints(target, asked)
    for index, lines in enumerate(asked):
        if lines in accepted and index in told:
            problems.append(f"{accepted[lines][0].label}: accepted, but LLVM says: {told[index]}")
        if lines not in accepted and index not in told:
            problems += [
                f"{each.label}: LLVM takes it, but refused: {each.refusal}"
                for each in refused[lines]
                if not any(re.search(known, each.refusal or "") for known in STRICTER)
            ]
    assert not problems, "\n".join(problems)
