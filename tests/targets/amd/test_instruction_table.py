"""Every AMD instruction that we define, with operands right and wrong: what definitions say, and what LLVM says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kingpost.assemble import AssemblerNotFound, AssemblyError, find_clang
from kingpost.assemble.amdgcn import assemble
from kingpost.program import Builder, Operation, Registers, Target, Type, f32, s32, u32, u64
from kingpost.targets.amd import isa
from kingpost.targets.amd.amdgcn import amdgcn
from kingpost.targets.amd.isa.cdna4 import FORMATS
from kingpost.targets.amd.targets import GFX942, GFX950

from ..instruction_samples import Domain, Fields, Maker, Sample, definitions, disagreements, samples

TARGETS = {"common": (GFX942, GFX950), "cdna3": (GFX942, GFX950), "cdna4": (GFX950,)}


def _memory(largest: int, counts: dict[str, int], files: dict[str, str] | None = None) -> Domain:
    return Domain({"offset": (0, 4, largest, largest + 1, -1)}, count=lambda fields: counts, files=files or {})


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
    "v_readfirstlane_b32": Domain(files={"d": "s"}),
    "s_mov_b32": Domain(files={"value": "s", "d": "s"}),
    **{f"global_load_{width}": _memory(4095, {"d": words}) for width, words in WIDTHS},
    **{f"global_store_{width}": _memory(4095, {"values": words}) for width, words in WIDTHS},
    **{
        f"buffer_load_{width}": _memory(4095, {"d": words, "descriptor": 4}, {"descriptor": "s", "scalar": "s"})
        for width, words in WIDTHS
    },
    **{f"ds_read_{bits}": _memory(65535, {"d": words}) for bits, words in BITS},
    **{f"ds_write_{bits}": _memory(65535, {"values": words}) for bits, words in BITS},
    **dict.fromkeys(("v_pk_add_f32", "v_pk_mul_f32", "v_pk_fma_f32"), PAIRS),
    "v_accvgpr_read_b32": Domain(files={"a": "a"}),
    "v_accvgpr_write_b32": Domain(files={"d": "a"}),
    "v_mfma_f32_16x16x32_fp8_fp8": _matrix(4, 2, 2),
    "v_mfma_f32_32x32x16_fp8_fp8": _matrix(16, 2, 2),
    "v_mfma_f32_32x32x8f16": _matrix(16, 2, 2),
    "v_mfma_f32_16x16x128_f8f6f4": _formats(4),
    "v_mfma_f32_32x32x64_f8f6f4": _formats(16),
    "v_mfma_scale_f32_16x16x128_f8f6f4": _formats(4, **BYTES),
    "v_mfma_scale_f32_32x32x64_f8f6f4": _formats(16, **BYTES),
}

STRICTER = {  # what definitions refuse and LLVM takes, and why
    r"; (u32|s32|u64|f32|pred) is wanted": "LLVM lets numbers wrap and takes floats as their bits; we mean a type",
    r"has 1 registers; \d are wanted": "the text would name one register of those given",
    r"v_pk_\w+: [abc] is": "what both halves take of a number, or of a scalar register, is not modelled",
    r"s_nop: count is (-1|16);|s_setprio: priority is (-1|4);": "LLVM writes 16 bits; the chip reads the low ones",
    r"global_\w+: offset is -1": "the emulator's addresses have no sign",
    r"buffer_load_\w+: scalar offset is": "an inline constant of all ones, far outside any buffer",
    r"buffer_load_\w+: offset is 4096": "LLVM drops the thirteenth bit without a word",
    r"v_accvgpr_write_b32: source is": "a move of a number or a scalar, which needs other wait states, is not modelled",
    r"(cbsz|blgp) is [57]": "codes of no format",
    r"C is .*, D .*; the same registers": "LLVM lets D of four registers overlap C; we keep one rule for all",
}
NUMBERS = (0, 1, 16, 64, 65, 2**32 - 1, 2**32, -1, -16, 0.5, 1.0)


def tried(target: Target, name: str, operation: Operation) -> list[Sample]:
    """A definition with fields right and wrong, then with operands of wrong files, places, types, and numbers."""
    domain = DOMAINS.get(name, Domain())
    slots = (*operation.operands, *operation.writes)
    types = dict.fromkeys(slots, u32) | operation.reads | operation.writes

    def place(slot: str, fields: Fields) -> tuple[Type, int, str, int]:
        """Type, count, file and number of an operand's registers: each operand at another multiple of 16."""
        return types[slot], domain.count(fields).get(slot, 1), domain.files.get(slot, "v"), 16 * slots.index(slot)

    def maker(slot: str, fields: Fields) -> Maker:
        return lambda k: placed(k, *place(slot, fields))

    def others(slot: str) -> Iterator[tuple[str, Maker]]:
        type, count, file, first = place(slot, domain.base())
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
        if slot == "c" and "d" in slots:
            _, _, _, d = place("d", domain.base())
            for shift in (0, 2, count - 2):
                yield f"{shift} behind d", lambda k, shift=shift: placed(k, type, count, file, d + shift)
        if slot not in operation.operands:
            yield "none given", lambda k: None
            return
        for number in NUMBERS:
            yield str(number), lambda k, number=number: number

    return list(samples(target, name, operation, domain, maker, others))


def placed(k: Builder, type: Type, count: int, file: str, first: int) -> Registers:
    words = count * type.bits // 32
    return k.array(type, count, place=f"{file}{first}" if words == 1 else f"{file}[{first}:{first + words - 1}]")


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
    assert set(DEFINITIONS) == set(TARGETS)


def test_every_reason_counts() -> None:
    refusals = [
        each.refusal
        for module, operations in DEFINITIONS.items()
        for name, operation in operations.items()
        for each in tried(GFX950, name, operation)
        if each.refusal
    ]
    assert [known for known in STRICTER if not any(re.search(known, each) for each in refusals)] == []


@pytest.mark.parametrize("module", TARGETS)
@pytest.mark.parametrize("target", (GFX942, GFX950), ids=lambda target: target.name)
def test_definitions_and_the_assembler_agree(target: Target, module: str) -> None:
    found = {name: tried(target, name, operation) for name, operation in DEFINITIONS[module].items()}
    for name, each in found.items():
        if target in TARGETS[module]:
            assert each[0].refusal is None, f"{name}: the first of each field's values should be right"
        else:
            assert all(one.refusal for one in each), f"{name} is not for {target.name}"
    try:
        problems = disagreements(
            [one for each in found.values() for one in each],
            lambda each: text(target, each),
            lambda texts: complaints(target, texts),
            STRICTER,
        )
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    assert not problems, "\n".join(problems)
