"""The one-tile products of Blackwell: bits, texts, and what the emulator says when something is taken away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kingpost import emulate
from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.emulate import EmulationError
from kingpost.program import Program
from kingpost.targets.nvidia.kernels.sm100_one_tile import sm100_mxf8
from kingpost.targets.nvidia.ptx import ptx

from .one_tile import CASES, Case, launch
from .test_broken_kernels import Change, changed, without

SCHEDULES = ("late", "early", "random")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ptxas_accepts_without_a_remark(case: Case) -> None:
    """`assemble` refuses notes and spills."""
    try:
        tool = find_ptxas()
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    binary = assemble(ptx(case.program), "sm_100a", tool)
    assert binary.spill_bytes == binary.stack_bytes == 0


def finding(case: Case, change: Change, schedule: str) -> str:
    """The finding on a changed kernel, "wrong bits" or "fine"."""
    given, d, wanted = launch(case)
    program: Program = changed(given.program, change)
    try:
        emulate.run(replace(given, program=program), schedule)
    except EmulationError as error:
        return str(error.finding)
    return "fine" if np.array_equal(d.view(np.uint32), wanted.view(np.uint32)) else "wrong bits"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES[::2], ids=str)
def test_a_load_must_be_waited_for(case: Case, schedule: str) -> None:
    found = finding(case, without("tcgen05.wait::ld"), schedule)
    assert "register in flight" in found and "tcgen05.wait::ld" in found and "sm100_one_tile.py:" in found


@pytest.mark.parametrize("case", CASES[::2], ids=str)
def test_the_products_must_be_waited_for(case: Case) -> None:
    """Without the wait for the commit's arrival, warps read an accumulator before the products are there."""

    def change(instruction, role):  # type: ignore[no-untyped-def]
        waits = instruction.operation.name == "mbarrier.try_wait.parity"
        return None if waits and instruction is last else instruction

    *_, last = (i for i in case.program.instructions() if i.operation.name == "mbarrier.try_wait.parity")
    found = finding(case, change, "late")
    assert "has not been waited for" in found or "never written" in found, found


@pytest.mark.parametrize(
    "name, words",
    [
        ("tcgen05.commit", ("deadlock", "1 of 1 arrivals")),
        ("tcgen05.alloc", ("uninitialised", "accumulator_address")),
        ("tcgen05.dealloc", ("the block ends with columns", "of tensor memory allocated")),
        ("tcgen05.ld", ("uninitialised",)),
        ("tcgen05.cp", ("uninitialised", "of tensor memory")),
        ("mbarrier.arrive.expect_tx.shared::cta.b64", ("deadlock",)),
    ],
)
def test_what_is_missing_is_named(name: str, words: tuple[str, ...]) -> None:
    found = finding(CASES[4], without(name), "late")
    assert [word for word in words if word not in found] == [], found


def test_one_thread_issues() -> None:
    def everyone(instruction, role):  # type: ignore[no-untyped-def]
        if instruction.operation.name != "elect.sync":
            return instruction
        all_lanes = replace(instruction.operation, does=lambda warp: warp.lanes >= 0)
        return replace(instruction, operation=all_lanes)

    given, _, _ = launch(CASES[2])
    with pytest.raises(EmulationError, match="32"):
        emulate.run(replace(given, program=changed(given.program, everyone)))


def test_tensor_cycles() -> None:
    """128 x 128 x 256 products of 8 bits at 8,192 a cycle."""
    given, _, _ = launch(CASES[2])
    uses = emulate.run(given).uses
    assert uses["tensor cycles"] == 128 * 128 * 256 / 8192
    assert uses["tensor memory bytes"] == 128 * 128 * 4


def test_scales_of_more_columns_than_one_copy_brings() -> None:
    with pytest.raises(ValueError, match="columns is 256; at most 128"):
        sm100_mxf8(columns=256, blocks=1)
