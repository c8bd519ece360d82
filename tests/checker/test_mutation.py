"""Mutants: which there are, and that each changes what its name says, at its line, and nothing else."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from kingpost import registry
from kingpost.checker.cases import Case
from kingpost.checker.mutation import Refused, mutants, sample
from kingpost.formats import BF16, E4M3
from kingpost.program import Launch, TensorMap
from kingpost.targets.nvidia.isa.common import mbarrier_wait

from ..targets.nvidia import one_tile, product
from .small import cdna3, hopper

MBARRIER, BULK = "shared::cta.b64", "cp.async.bulk"
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
EXPECT = f"mbarrier.arrive.expect_tx.{MBARRIER}"
MAPS = Counter({f"{what} in a tensor map": 2 for what in ("swizzle 0", "rows +1", "rows -1")})
HOPPER = MAPS | {
    "every lane, not those of elect.sync": 1,
    f"delete mbarrier.init.{MBARRIER}": 1,
    f"count + 1 in mbarrier.init.{MBARRIER}": 1,
    f"count - 1 in mbarrier.init.{MBARRIER}": 1,
    f"address + 8 in mbarrier.init.{MBARRIER}": 1,
    "delete fence.mbarrier_init.release.cluster": 1,
    "delete barrier": 1,
    "every lane, not those of eq.u32": 2,
    f"delete {EXPECT}": 1,
    f"bytes + 16 in {EXPECT}": 1,
    f"bytes - 16 in {EXPECT}": 1,
    f"address + 8 in {EXPECT}": 1,
    f"barrier + 8 in {LOAD}": 1,
    "delete mbarrier.try_wait.parity": 1,
    "parity ^ 1 in mbarrier.try_wait.parity": 1,
    "address + 8 in mbarrier.try_wait.parity": 1,
    "delete fence.proxy.async.shared::cta": 1,
    "delete bar.sync": 1,
    "barrier + 1 in bar.sync": 1,
    "threads + 32 in bar.sync": 1,
    "threads - 32 in bar.sync": 1,
    f"delete {BULK}.commit_group": 1,
    f"delete {BULK}.wait_group.read": 1,
    f"groups + 1 in {BULK}.wait_group.read": 1,
}
CDNA3 = {"delete s_waitcnt": 2, "vmcnt + 1 in s_waitcnt": 2, "delete s_nop": 1, "count - 1 in s_nop": 1}
DESCRIPTOR = ["offset + 16", "stride + 16", "swizzle 0", "swizzle 64", "swizzle 32"]


def text(launch: Launch) -> list[str]:
    """The program's text without the lines that say where it comes from."""
    lines = registry.emulator(launch.program.target).text(launch.program).splitlines()
    return [line for line in lines if not line.startswith((".loc", ".file", "; "))]


def changes(case: Case, what: str) -> tuple[list[str], list[str]]:
    """The lines of text that the first mutant of a class takes away, and those that it adds."""
    launch = case.make().launch
    mutant = next(each for each in mutants(launch) if each.what == what)
    lines = list(difflib.ndiff(text(launch), text(mutant.apply(launch))))
    return [line[2:].strip() for line in lines if line[0] == "-"], [
        line[2:].strip() for line in lines if line[0] == "+"
    ]


@pytest.mark.parametrize(("case", "wanted"), [(hopper(), HOPPER), (cdna3(), CDNA3)], ids=["hopper", "cdna3"])
def test_all_mutants(case: Case, wanted: dict[str, int]) -> None:
    found = [mutant.what for mutant in mutants(case.make().launch)]
    assert Counter(found) == wanted
    assert found == [mutant.what for mutant in mutants(case.make().launch)]


def test_mutants_of_a_kernel_of_wgmma() -> None:
    given = product.operands(64, 16, 256)
    launch = product.launch(product.Config(1, 1, 16, 2, 1), given, product.poisoned(given, BF16))
    found = Counter(mutant.what for mutant in mutants(launch))
    descriptor = [*DESCRIPTOR, "leading + 16"]
    assert {what: found[f"{what} in matrix_descriptor"] for what in descriptor} == dict.fromkeys(descriptor, 8)
    names = ("fence.sync.aligned", "commit_group.sync.aligned", "wait_group")
    assert [found[f"delete wgmma.{name}"] for name in names] == [1, 1, 1]
    assert found["groups + 1 in wgmma.wait_group"] == found["swizzle 64 in a tensor map"] == 1


def test_mutants_of_a_kernel_of_tcgen05() -> None:
    launch, _, _ = one_tile.launch(one_tile.Case(one_tile.sm100_f8, 16, 1, E4M3, E4M3))
    found = Counter(mutant.what for mutant in mutants(launch))
    assert {what: found[f"{what} in shared_descriptor"] for what in DESCRIPTOR} == dict.fromkeys(DESCRIPTOR, 8)
    assert found["delete tcgen05.wait::ld"] == 1 and found["delete tcgen05.fence::after_thread_sync"] == 1


def test_they_stand_in_the_order_of_the_text() -> None:
    lines = [mutant.source.line for mutant in mutants(hopper().make().launch)]
    assert lines == sorted(lines) and {m.source.file for m in mutants(hopper().make().launch)} == {"small.py"}


@pytest.mark.parametrize(
    ("what", "gone"),
    [
        ("delete fence.proxy.async.shared::cta", "fence.proxy.async.shared::cta;"),
        ("delete barrier", "bar.sync 0;"),
        ("delete bar.sync", "bar.sync %r, 64;"),
        (f"delete {EXPECT}", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r], 1024;"),
    ],
)
def test_a_deletion_takes_its_line_and_no_other(what: str, gone: str) -> None:
    taken, added = changes(hopper(), what)
    assert [re.sub(r"@%p\d+ |(?<=%r)\d+", "", line) for line in taken] == [gone] and not added


@pytest.mark.parametrize(
    ("case", "what", "before", "after"),
    [
        (hopper(), f"count + 1 in mbarrier.init.{MBARRIER}", "], 1;", "], 2;"),
        (hopper(), f"bytes - 16 in {EXPECT}", "], 1024;", "], 1008;"),
        (hopper(), "threads + 32 in bar.sync", ", 64;", ", 96;"),
        (hopper(), f"groups + 1 in {BULK}.wait_group.read", "read 0;", "read 1;"),
        (cdna3(), "vmcnt + 1 in s_waitcnt", "vmcnt(2)", "vmcnt(3)"),
        (cdna3(), "count - 1 in s_nop", "s_nop 9", "s_nop 8"),
    ],
)
def test_a_field_is_moved_by_one(case: Case, what: str, before: str, after: str) -> None:
    (taken,), (added,) = changes(case, what)
    assert before in taken and added == taken.replace(before, after)


@pytest.mark.parametrize(
    ("what", "ahead"),
    [("parity ^ 1 in mbarrier.try_wait.parity", "xor.b32"), ("address + 8 in mbarrier.try_wait.parity", "add.u32")],
)
def test_an_operand_is_moved_by_an_instruction_ahead_of_it(what: str, ahead: str) -> None:
    launch = hopper().make().launch
    weakened = next(each for each in mutants(launch) if each.what == what).apply(launch)
    plain, changed = (list(each.program.instructions()) for each in (launch, weakened))
    place = next(i for i, each in enumerate(plain) if each.operation is mbarrier_wait)
    assert changed[:place] == plain[:place] and changed[place + 2 :] == plain[place + 1 :]
    before, wait = changed[place : place + 2]
    assert any(each is before.writes[0] for each in wait.reads)
    assert any(each is before.reads[0] for each in plain[place].reads) and before.source == wait.source
    assert any(line.startswith(ahead) for line in changes(hopper(), what)[1])


def test_a_mask_gives_way_to_its_body() -> None:
    launch = hopper().make().launch
    mutant = next(each for each in mutants(launch) if each.what == "every lane, not those of elect.sync")
    weakened = mutant.apply(launch)
    assert list(weakened.program.instructions()) == list(launch.program.instructions())
    assert str(launch.program).count("mask") == str(weakened.program).count("mask") + 1


def test_a_tensor_map_changes_in_the_program_and_in_the_launch() -> None:
    launch = hopper().make().launch
    for mutant in mutants(launch)[:6]:
        weakened = mutant.apply(launch)
        changed = [p.name for p in weakened.program.parameters if p.type != _map(launch, p.name).type]
        assert len(changed) == 1
        (name,) = changed
        assert _map(weakened, name).view is _map(launch, name).view
        box, swizzle = _map(weakened, name).type.box, _map(weakened, name).type.swizzle
        assert {
            "swizzle 0": (8, 32, 0), "rows +1": (9, 32, 128), "rows -1": (7, 32, 128),
        }[mutant.what.removesuffix(" in a tensor map")] == (*box, swizzle)  # fmt: skip


def _map(launch: Launch, name: str) -> TensorMap:
    found = launch.arguments[name]
    assert isinstance(found, TensorMap)
    return found


@pytest.mark.parametrize("case", [hopper(), cdna3()], ids=["hopper", "cdna3"])
def test_the_launch_stays_as_it_is(case: Case) -> None:
    launch = case.make().launch
    before, nodes = text(launch), list(launch.program.instructions())
    for mutant in mutants(launch):
        with suppress(Refused):
            assert mutant.apply(launch).program is not launch.program
    assert text(launch) == before and list(launch.program.instructions()) == nodes


def test_a_mutant_is_of_any_launch_of_the_program() -> None:
    mutant = next(m for m in mutants(hopper().make().launch) if m.what == "delete bar.sync")
    weakened = mutant.apply(hopper().make().launch)
    left = [each.operation.name for each in weakened.program.instructions()]
    assert "bar.sync" not in left and "barrier" in left
    with pytest.raises(ValueError, match=r"launch is of another program: bar.sync is wanted where it has p"):
        mutant.apply(weakened)
    with pytest.raises(ValueError, match=r"launch is of another program: it has 1 nodes where node \d+ is wanted"):
        mutant.apply(replace(weakened, program=replace(weakened.program, body=weakened.program.body[:1])))


def test_a_sample_has_something_of_everything() -> None:
    all = mutants(one_tile.launch(one_tile.Case(one_tile.sm100_f8, 16, 1, E4M3, E4M3))[0])
    kinds = len({mutant.what for mutant in all})
    some = sample(all, kinds, seed=1)
    assert len({mutant.what for mutant in some}) == kinds < len(all)
    assert [all.index(mutant) for mutant in some] == sorted(all.index(mutant) for mutant in some)
    assert some == sample(all, kinds, seed=1) != sample(all, kinds, seed=2)
    counts = Counter(mutant.what for mutant in sample(all, 2 * kinds, seed=3))
    assert max(counts.values()) > 2 and all_taken(counts, Counter(m.what for m in all))
    assert sample(all, 10_000, seed=1) == all


def all_taken(counts: Counter[str], present: Counter[str]) -> bool:
    """Whether classes that have fewer than others are taken whole."""
    fewest = max(counts.values()) - 1
    return all(count >= min(fewest, present[what]) for what, count in counts.items())
