"""What is noticed of mutants, how it is put, and which of those that are not noticed are proved to do the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kingpost.arrays import view
from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.checker.cases import Case, Trial
from kingpost.checker.mutation import Mutant, mutants
from kingpost.checker.verdict import SCHEDULES, verdict
from kingpost.program import DELETE, Builder, Launch, kernel, operation, u32, u64
from kingpost.program.weakening import moved
from kingpost.targets.amd.isa.common import global_load_dword, global_store_dword, s_waitcnt
from kingpost.targets.amd.targets import GFX942

from .small import cdna3, hopper


def mutant_of(case: Case, what: str) -> Mutant:
    return next(each for each in mutants(case.make().launch) if each.what == what)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("count + 1 in mbarrier.init.shared::cta.b64", "deadlock"),
        ("rows -1 in a tensor map", "deadlock"),
        ("swizzle 0 in a tensor map", "wrong result"),
        ("delete mbarrier.try_wait.parity", "uninitialised: block 0, warp "),
        ("every lane, not those of elect.sync", "mbarrier: block 0, warp 0 at small.py:"),
        ("threads + 32 in bar.sync", "deadlock"),
    ],
)
def test_how_a_mutant_is_noticed(what: str, how: str) -> None:
    case = hopper()
    found = verdict(case, mutant_of(case, what))
    assert found.caught and found.equivalent is None
    assert found.how == how or (":" in how and found.how.startswith(how))


def test_every_mutant_of_a_wave_is_noticed() -> None:
    case = cdna3()
    found = [verdict(case, each) for each in mutants(case.make().launch)]
    assert len(found) == 6 and all(each.caught for each in found)
    assert {each.how.partition(":")[0] for each in found} == {"register in flight", "wait states"}


# Operations that a kernel would have no use for


@operation("// {count} things", decides=(DELETE, *moved("count", 1)))
def remark(warp: Any, *, count: int) -> None:
    """What no assembler makes anything of."""


@operation("mov.u32 {d}, {value};", writes={"d": u32}, decides=moved("value", 1))
def number(warp: Any, *, value: int) -> Any:
    return warp.broadcast(np.uint32(value))


def _many(value: int, into: Any, *reads: Any) -> None:
    if value > 3:
        raise ValueError(f"value is {value}; at most 3 is wanted")


@operation(
    "mov.u32 {d}, {value};",
    writes={"d": u32},
    decides=moved("value", 1),
    check=lambda *reads, into, value: _many(value, into, *reads),
)
def small_number(warp: Any, *, value: int) -> Any:
    return warp.broadcast(np.uint32(value))


def storing(write: Any) -> Case:
    """The first 32 of x are made 3, after whatever `write(k, x)` does."""

    def make() -> Trial:
        k, x = Builder("storing", "sm_90a"), np.zeros(64, np.uint32)
        address = k.parameter("x", u64)
        write(k, address)
        k.store(k.address(address, k.lane, 4), k.new(u32, 3))
        launch = Launch.of(k.finish({}), 1, x=view(x))
        return Trial(launch, lambda: None if (x[:32] == 3).all() else "not 3")

    return Case("storing", "storing", "sm_90a", make)


def need_ptxas() -> None:
    try:
        find_ptxas()
    except AssemblerNotFound as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("what", ["delete //", "count + 1 in //"])
def test_an_identical_binary_is_equivalent(what: str) -> None:
    need_ptxas()
    case = storing(lambda k, x: remark(k, count=2))
    found = verdict(case, mutant_of(case, what), schedules=["late"])
    assert not found.caught and found.equivalent == "the assembled binaries are identical"


def test_what_nothing_shows_and_nothing_proves_is_missed() -> None:
    """A store of another number to where nobody looks."""
    need_ptxas()
    case = storing(lambda k, x: k.store(k.address(x, k.lane, 4), number(k, value=2), offset=128))
    found = verdict(case, mutant_of(case, "value + 1 in mov.u32"), schedules=SCHEDULES)
    assert not found.caught and found.equivalent is None


def test_other_arguments_are_no_identical_binary() -> None:
    """A tensor map is no part of the binary."""
    need_ptxas()
    case = replace(hopper(), make=lambda: replace(hopper().make(), wrong=lambda: None))
    found = verdict(case, mutant_of(case, "swizzle 0 in a tensor map"), schedules=["late"])
    assert not found.caught and found.equivalent is None


def test_what_the_builder_refuses() -> None:
    case = storing(lambda k, x: small_number(k, value=3))
    found = verdict(case, mutant_of(case, "value + 1 in mov.u32"))
    assert found.caught and found.how == "refused by the builder: value is 4; at most 3 is wanted"


def test_a_wait_may_name_no_more_than_its_field_holds() -> None:
    @kernel(target=GFX942)
    def copying(k: Builder) -> None:
        x, value = k.parameter("x", u64), k.array(u32, 1)
        at = k.address(x, k.lane, 4)
        global_load_dword(k, at, into=value)
        s_waitcnt(k, vmcnt=63)
        s_waitcnt(k, vmcnt=0)
        global_store_dword(k, at, value)

    def make() -> Trial:
        return Trial(Launch.of(copying(), 1, x=view(np.zeros(64, np.uint32))), lambda: None)

    case = Case("copying", "copying", "gfx942", make)
    found = [verdict(case, each) for each in mutants(make().launch) if each.what.startswith("vmcnt + 1")]
    assert [each.how.partition(":")[0] for each in found] == ["refused by the builder", "register in flight"]


def test_what_the_assembler_refuses() -> None:
    need_ptxas()

    @operation("{count};", name="word", decides=moved("count", 1))
    def word(warp: Any, *, count: str) -> None:
        """Text as it is."""

    def write(k: Builder, x: Any) -> None:
        word(k, count=_Counted("membar.cta"))

    case = storing(write)
    found = verdict(case, mutant_of(case, "count + 1 in word"), schedules=["late"])
    assert found.caught and found.how.startswith("refused by the assembler: ptxas")


class _Counted(str):
    """A text that is no instruction any more when something is added to it."""

    def __add__(self, step: Any) -> _Counted:
        return _Counted(str(self) + f".{step}")

    def __lt__(self, other: Any) -> bool:
        return False


def test_a_loop_without_an_end_is_a_hang() -> None:
    def write(k: Builder, x: Any) -> None:
        step = number(k, value=0)
        turns = k.select(step == 1, 1 << 30, 1, into=k.new(u32))
        with k.loop(turns):
            k.store(k.address(x, k.lane, 4), k.new(u32, 1))

    case = storing(write)
    assert verdict(case, mutant_of(case, "value + 1 in mov.u32")).how == "hang"


def test_a_case_that_is_wrong_tells_nothing_of_its_mutants() -> None:
    case = replace(hopper(), make=lambda: replace(hopper().make(), wrong=lambda: "always"))
    with pytest.raises(ValueError, match="case doubling is wrong before anything is weakened: always"):
        verdict(case, mutant_of(case, "delete bar.sync"))


def test_a_mutant_of_another_program_is_not_taken_for_a_refused_one() -> None:
    with pytest.raises(ValueError, match="launch is of another program"):
        verdict(storing(lambda k, x: None), mutant_of(hopper(), "delete bar.sync"))
