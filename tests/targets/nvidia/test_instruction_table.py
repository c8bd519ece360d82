"""Every PTX instruction that we define, with operands right and wrong: what definitions say, and what ptxas says."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from kingpost.assemble import AssemblerNotFound, AssemblyError, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.formats import BF16, E4M3, E5M2, F16, F32
from kingpost.program import Operation, Target, TensorMapType, f32, s32, u32, u64
from kingpost.targets.nvidia import isa
from kingpost.targets.nvidia.ptx import ptx
from kingpost.targets.nvidia.targets import SM_90A, SM_100A

from ..instruction_samples import Domain, Fields, Maker, Sample, definitions, disagreements, samples

TARGETS = {"common": (SM_90A, SM_100A), "hopper": (SM_90A,), "clusters": (SM_90A,), "blackwell": (SM_100A,)}


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
        types={"a": u64},
    ),
    "wgmma_f16": Domain(
        {
            "n": (8, *NS),
            "accumulate": (True, False),
            "a_format": FORMATS,
            "b_format": FORMATS,
            "a_major": ("k", "mn", "m"),
            "b_major": ("k", "mn", "n"),
        },
        together=("a_format", "b_format", "a_major", "b_major"),
        count=lambda fields: {"d": max(fields["n"] // 4, 1)},
        types={"a": u64},
    ),
    "bulk_load_multicast_3d": Domain({"type": _box(3, *_box(2)), "blocks": (3, 1, 255, 0, 256, -1)}),
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
    r"bar.sync: threads is (0|-32|1056);": "no count of whole warps that a block can have",
    r"expect_tx: bytes is (-1|1048576|4294967296);": "an mbarrier counts bytes in 20 bits (PTX ISA, on its contents)",
    r"multicast: blocks is (0|256|-1);|mapa: rank is ": "clusters of more than 8 blocks are not for every GPU",
    r"wait_group.read: groups is -1": "a negative number of groups means nothing",
    r"shfl.sync.up.b32: distance is (-1|32);": "the chip takes it modulo 32 without a word",
    r"(stmatrix|st.shared.v2.f32): offset is (-16|2147483648|4294967296);": "the emulator adds 31 bits, without sign",
    r"_descriptor: \w+ is (-16|262144);": "its bits would run into other fields, which ptxas does not know",
    r"are not \d+ different registers|wgmma: into is": "one register would hold two elements",
    r"tcgen05.mma.*: (m|n|\w_format|\w_scale) is|a_format and b_format differ": "in a number that ptxas does not read",
    r"tcgen05.ld/st: (column|split) is (-1|512);": "tensor memory has 512 columns; ptxas does not look",
}
NUMBERS = (0, 1, 15, 16, 2**32 - 1, 2**32, -1, 0.5, 1e39)


def tried(target: Target, name: str, operation: Operation) -> list[Sample]:
    """A definition with fields right and wrong, then with operands of wrong types and counts, and with numbers."""
    domain = DOMAINS.get(name, Domain())
    types = {**domain.types, **operation.reads, **operation.writes}
    untyped = {*operation.operands, *operation.writes} - set(types)
    assert not untyped, f"{name}: types of {sorted(untyped)} are wanted, in its definition or in DOMAINS"

    def maker(slot: str, fields: Fields) -> Maker:
        return lambda k: k.array(types[slot], domain.count(fields).get(slot, 1))

    def others(slot: str) -> Iterator[tuple[str, Maker]]:
        wanted, count = types[slot], domain.count(domain.base()).get(slot, 1)
        for type in (u32, s32, u64, f32):  # no predicate for a number: ptxas 13.5 crashes at some, or hangs
            if type is not wanted:
                yield type.name, lambda k, type=type: k.array(type, count)
        for more in {count - 1, count + 1, 2 * count, 3} - {0, count}:
            yield f"{more} registers", lambda k, more=more: k.array(wanted, more)
        if count > 1:
            yield "one twice", lambda k: k.array(wanted, count)[[0, *range(count - 1)]]
        if slot in operation.operands:
            for number in NUMBERS:
                yield str(number), lambda k, number=number: number

    return list(samples(target, name, operation, domain, maker, others))


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
            ".visible"
            + kernel.partition(".visible")[2].replace(" sample(", f" sample_{i}(").replace(_AT, f".loc 1 {i} 0")
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
    for target in TARGETS[module]
    for name, operation in operations.items()
]


def test_every_module_is_for_a_target() -> None:
    assert set(DEFINITIONS) == set(TARGETS)


def test_every_reason_counts() -> None:
    refusals = [each.refusal for case in CASES for each in tried(*case.values) if each.refusal]
    assert [known for known in (CRASHING, *STRICTER) if not any(re.search(known, each) for each in refusals)] == []


@pytest.mark.parametrize("target, name, operation", CASES)
def test_definition_and_ptxas_agree(target: Target, name: str, operation: Operation) -> None:
    found = tried(target, name, operation)
    assert found[0].refusal is None, "the first of each field's values should be right"
    try:
        problems = disagreements(
            found, lambda each: text(target, each), lambda texts: complaints(target, texts), STRICTER, CRASHING
        )
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("target, name, operation", CASES)
def test_texts_name_every_register(target: Target, name: str, operation: Operation) -> None:
    for each in tried(target, name, operation):
        if each.refusal is None:
            assert len(set(re.findall(r"%[rslfp]\d+", text(target, each) or ""))) == each.registers, each.label
