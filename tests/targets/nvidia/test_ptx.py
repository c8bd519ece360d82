"""PTX text: what the planner can pick stays small and is accepted; every portable operation has a text; budgets."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from kingpost.assemble import AssemblerNotFound, Binary, find_ptxas
from kingpost.assemble.ptxas import assemble, register_budgets
from kingpost.formats import BF16, E4M3, E5M2, F16, F32
from kingpost.program import Builder, Program, Type, f32, pred, s32, u32, u64
from kingpost.program.operations import PORTABLE
from kingpost.registry import Problem
from kingpost.targets.nvidia.bf16_candidates import Bf16Candidate
from kingpost.targets.nvidia.chip import H200
from kingpost.targets.nvidia.fp8_candidates import Fp8Candidate
from kingpost.targets.nvidia.planner import candidates
from kingpost.targets.nvidia.ptx import check_register_budgets, ptx, registers_at_entry

MOST_LINES, MOST_UNROLLED_BLOCKS = 1500, 8  # ptxas takes time as the cube of the unroll

CANDIDATES = {
    f"{out}, {candidate.name}": candidate
    for out in (BF16, F32)
    for candidate in candidates(Problem("mm", 4096, 7168, E4M3, E4M3, "1x128", "128x128", out), H200)
}

# The texts of the family: every tile by every walk, what becomes of a total and the majors going round among them; and
# the tiles with the most registers by everything that may become of a total.
FP8 = Problem("mm", 4096, 7168, E4M3, E4M3, "1x128", "128x128", BF16)
BFLOAT16 = Problem("mm", 4096, 7168, BF16, BF16, None, None, BF16)
SCALINGS = {
    "block": FP8,
    "column": replace(FP8, b_scaling="1x128", a_format=E5M2),
    "step": replace(FP8, a_scaling="1x32:ue8m0", b_scaling="1x32:ue8m0", b_format=E5M2),
    "bfloat16": BFLOAT16,
}
MAJORS = (("k", "k"), ("k", "mn"), ("mn", "k"), ("mn", "mn"))
WALKS = {
    "dense": {},
    "batched": {"op": "batched_mm", "groups": 4},
    "summed": {"op": "summed_mm", "groups": 70},
    "rows": {"op": "grouped_mm", "by": "rows", "groups": 4},
    "ends": {"op": "grouped_mm", "by": "ends", "groups": 4},
    "counts": {"op": "grouped_mm", "by": "counts", "groups": 4},
    "over K": {"op": "grouped_mm_k", "groups": 4},
}
FINISHES = {
    f"{out}, {name}": {"out_format": out, **what}
    for name, what in {
        "plain": {},
        "c": {"c": True},
        "c in place, alpha": {"c": True, "in_place": True, "alpha": True},
        "bias": {"bias": F16},
        "c, bias, alpha": {"c": True, "bias": BF16, "alpha": True},
        "c in place, bias, alpha": {"c": True, "in_place": True, "bias": F32, "alpha": True},
    }.items()
    for out in (BF16, F16, F32)
    if out is not F16 or name == "c, bias, alpha"  # but for the last instruction as bfloat16
}


def family() -> dict[str, Fp8Candidate | Bf16Candidate]:
    found = {}
    for scaling, plain in SCALINGS.items():
        for number, (walk, where) in enumerate(WALKS.items()):
            for i, tile in enumerate(each.tile for each in candidates(replace(plain, **where), H200)):
                if walk != "dense" and tile.loaded_rows == 32:  # as with 16
                    continue
                if walk != "dense" and i % 3 != number % 3:  # a walk and a tile meet no more than in a few registers
                    continue
                finish, what = list(FINISHES.items())[(5 * number + i) % len(FINISHES)]
                if walk == "summed":
                    finish, what = "float32, plain", {"out_format": F32}
                if walk == "over K":
                    finish, what = f"{finish}, no bias", what | {"bias": None}
                majors = MAJORS[(number + i) % len(MAJORS)] if scaling == "bfloat16" else MAJORS[0]
                if not tile.whole:  # few rows of a need K contiguous
                    majors = "k", majors[1]
                problem = replace(plain, **where, **what, a_major=majors[0], b_major=majors[1])
                (candidate,) = (each for each in candidates(problem, H200) if each.tile == tile)
                found[f"{scaling}, {walk}, {finish}, {'-'.join(majors)}, {tile}"] = candidate
        most = max(each.tile.subtiles * each.tile.columns for each in candidates(plain, H200))
        for finish, what in FINISHES.items():
            for each in candidates(replace(plain, **what), H200) if scaling != "step" else ():
                if each.tile.subtiles * each.tile.columns == most and each.tile.warpgroups == 2:
                    found[f"{scaling}, dense, {finish}, k-k, {each.tile}"] = each
        for walk in ("batched", "rows", "counts"):
            what = {"out_format": F32, "c": True, "bias": F32, "alpha": True}
            for each in candidates(replace(plain, **WALKS[walk], **what), H200):
                if each.tile.warpgroups * each.tile.subtiles > 2 or each.tile.columns > 128:
                    found[f"{scaling}, {walk}, float32, c, bias, alpha, k-k, {each.tile}"] = each
    return found


FAMILY = family()


def assembled(text: str) -> Binary:
    """What ptxas makes of a text without a remark; skips without ptxas."""
    try:
        tool = find_ptxas()
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    return assemble(text, "sm_90a", tool)


@pytest.mark.parametrize("candidate", CANDIDATES.values(), ids=CANDIDATES)
def test_texts_stay_small(candidate: Fp8Candidate) -> None:
    text = ptx(candidate.program)
    products = len(re.findall(r"wgmma\.mma_async", text))
    steps = candidate.tile.subtiles * 4
    assert len(text.splitlines()) <= MOST_LINES
    assert products % steps == 0 and 1 <= products // steps <= MOST_UNROLLED_BLOCKS


@pytest.mark.parametrize("candidate", CANDIDATES.values(), ids=CANDIDATES)
def test_ptxas_accepts_without_a_remark(candidate: Fp8Candidate) -> None:
    """No spill, no serialised product, no dropped budget: `assemble` refuses them all."""
    binary = assembled(ptx(candidate.program))
    budgets = [role.registers for role in candidate.program.roles()]
    assert sorted(register_budgets(binary.image)) == sorted(budgets)
    assert binary.spill_bytes == binary.stack_bytes == 0
    assert candidate.program.shared_bytes + binary.shared_bytes <= H200.shared_bytes


@pytest.mark.parametrize("name", FAMILY)
def test_ptxas_accepts_the_family_without_a_remark(name: str) -> None:
    candidate = FAMILY[name]
    binary = assembled(ptx(candidate.program))
    assert binary.spill_bytes == binary.stack_bytes == 0
    assert candidate.program.shared_bytes + binary.shared_bytes <= H200.shared_bytes


def test_the_planner_offers_what_it_should() -> None:
    assert len(CANDIDATES) >= 16
    tiles = Counter((c.tile.warpgroups, c.tile.subtiles, c.tile.columns) for c in CANDIDATES.values())
    assert {(1, 1, 16), (2, 1, 128), (2, 2, 128), (3, 1, 128)} <= set(tiles)


# Portable operations


def everything() -> Program:
    """A program that uses every portable operation on every type it exists for, and stores what each gave."""
    k = Builder("everything", "sm_90a")
    registers: dict[Type, list] = {u64: [k.parameter(f"u64_{i}", u64) for i in range(4)]}
    registers[u32] = [k.parameter(f"u32_{i}") for i in range(4)]
    registers[f32] = [k.parameter(f"f32_{i}", f32) for i in range(4)]
    registers[s32] = [k.convert(s32, x) for x in registers[f32]]
    registers[pred] = [x < 5 for x in registers[u32]]
    shared = k.shared("words", (64,), F32).at(0)
    fields = {"offset": 8, "mask": 5, "format": E4M3, "index": 3}
    results: list = [k.thread, k.block, k.grid]
    k.barrier()
    for (name, type), operation in PORTABLE.items():
        if name == "parameter":
            continue
        operands = [registers[operation.reads.get(o, type)][i] for i, o in enumerate(operation.operands)]
        if operation.operands[0] == "address" and operation.reads["address"] is u32:
            operands[0] = shared
        into = None
        if count := re.search(r"_x(\d)$", name):
            array = k.array(type, int(count[1]))
            if name.startswith("load"):
                into = array
            else:
                k.set(array, 1)
                operands[1] = array
        result = operation(k, *operands, into=into, **{f: fields[f] for f in operation.fields})
        results += [] if result is None else list(result)
    for result in results:
        if result.type is pred:
            result = k.select(result, 1, 0)
        elif result.type is s32:
            result = k.convert(f32, result)
        k.store(registers[u64][0], result, offset=16)
    return k.finish({})


def test_every_portable_operation_has_a_text_that_ptxas_takes() -> None:
    program = everything()
    used = {i.operation for i in program.instructions()}
    assert set(PORTABLE.values()) <= used
    assembled(ptx(program))


def test_float32_sums_and_products_are_not_fused() -> None:
    k = Builder("separate", "sm_90a")
    a = k.parameter("a", u64)
    x, y, z = (k.load(f32, a, offset=4 * i) for i in range(3))
    k.store(a, x * y + z)
    text = ptx(k.finish({}))
    assert "mul.rn.f32" in text and "add.rn.f32" in text and "fma" not in text


def test_division_by_a_power_of_two_is_a_shift() -> None:
    """ptxas would divide."""
    k = Builder("divided", "sm_90a")
    address = k.parameter("address", u64)
    k.store(address, k.lane // 8 + k.lane % 8 + k.lane // 12 + k.lane // k.warp)
    text = ptx(k.finish({}))
    assert re.findall(r"(?:shr|and|div|rem)\.\S+ \S+ \S+ (\S+);", text.partition("shfl")[2])[:3] == ["3", "7", "12"]
    assert "rem" not in text and text.count("div.u32") == 2


def test_lines_of_python_are_in_the_text() -> None:
    k = Builder("lines", "sm_90a")
    address = k.parameter("address", u64)
    k.store(address, k.lane + 7)
    text = ptx(k.finish({}))
    (number,) = re.findall(r'\.file (\d+) "test_ptx.py"', text)
    line = test_lines_of_python_are_in_the_text.__code__.co_firstlineno + 3
    before = text[: text.index("add.u32")].splitlines()
    assert [each for each in before if each.startswith(".loc")][-1] == f".loc {number} {line} 0"


# Register budgets


def budgeted(*roles: tuple[int, int | None]) -> Program:
    k = Builder("budgeted", "sm_90a")
    for index, (warps, registers) in enumerate(roles):
        with k.role(f"role {index}", warps, registers) as warp:
            k.set(k.new(u32), warp)
    return k.finish({})


@pytest.mark.parametrize("roles", [
    [(8, 232), (4, 40)],
    [(12, 152), (4, 40)],
    [(4, 256), (4, 24)],
    [(4, 240), (4, 240)],
    [(3, None), (1, None)],
])  # fmt: skip
def test_budgets_that_fit(roles: list[tuple[int, int | None]]) -> None:
    program = budgeted(*roles)
    check_register_budgets(program)
    assembled(ptx(program))


@pytest.mark.parametrize("roles, message", [
    ([(8, 232), (4, 41)], "role 1: registers is 41; a multiple of 8 from 24 to 256 is wanted"),
    ([(8, 232), (4, 44)], "role 1: registers is 44"),
    ([(8, 16), (4, 40)], "role 0: registers is 16"),
    ([(4, 264), (4, 24)], "role 0: registers is 264"),
    ([(8, 232), (4, None)], "role 1: registers is None"),
    ([(8, 232), (2, 40)], "role 1: warps 8 to 9; whole warpgroups of 4 are wanted"),
    ([(8, 240), (4, 40)], "roles ask for 66560 registers; the block has 64512 at entry"),
    ([(4, 256), (4, 256)], "roles ask for 65536 registers; the block has 63488 at entry"),
])  # fmt: skip
def test_budgets_that_do_not(roles: list[tuple[int, int | None]], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ptx(budgeted(*roles))


@pytest.mark.parametrize("warps, registers", [(4, 248), (8, 248), (12, 168), (16, 128), (32, 64)])
def test_registers_at_entry_are_what_ptxas_gives(warps: int, registers: int) -> None:
    assert registers_at_entry(budgeted((warps, None))) == registers
