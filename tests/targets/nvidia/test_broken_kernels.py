"""The kernel with one thing taken away: programs are data, so one can be broken, and the emulator must see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kingpost import emulate
from kingpost.emulate import DeadlockError, EmulationError
from kingpost.formats import BF16
from kingpost.program import Instruction, Mask, Node, Program, Role

from .product import Config, launch, operands, poisoned, same_bits

CONFIG = Config(1, 1, 16, 2, 1)  # two stages, one buffer: every slot is used again and again
GIVEN = operands(130, 16, 400)
GRID = 1  # three tiles of four K blocks
SEEDS = 4

Change = Callable[[Instruction, str], "Instruction | None"]  # gets the role's name; gives what stands there instead


def changed(program: Program, change: Change) -> Program:
    """The program with every instruction replaced by what `change` makes of it; something must differ."""
    differences = 0

    def nodes(body: list[Node], role: str) -> Iterator[Node]:
        nonlocal differences
        for node in body:
            if isinstance(node, Instruction):
                instead = change(node, role)
                differences += instead is not node
                if instead is not None:
                    yield instead
            else:
                yield replace(node, body=list(nodes(node.body, node.name if isinstance(node, Role) else role)))

    result = replace(program, body=tuple(nodes(list(program.body), "")))
    assert differences, "nothing was changed"
    return result


def without(name: str, role: str = "", only: Callable[[Instruction], bool] = lambda instruction: True) -> Change:
    def change(instruction: Instruction, where: str) -> Instruction | None:
        gone = instruction.operation.name == name and role in (where, "") and only(instruction)
        return None if gone else instruction

    return change


def outcome(program: Callable[[Program], Program], schedule: str, seed: int = 0) -> str:
    """The kind of the finding, or "wrong bits", or "fine"."""
    d = poisoned(GIVEN, BF16)
    whole = launch(CONFIG, GIVEN, d, GRID)
    try:
        emulate.run(replace(whole, program=program(whole.program)), schedule, seed)
    except EmulationError as error:
        return error.finding.kind
    return "fine" if same_bits(d, GIVEN.expected(BF16)) else "wrong bits"


def outcomes(change: Change) -> dict[str, str]:
    """What each schedule shows, a few random seeds by their number."""

    def broken(program: Program) -> Program:
        return changed(program, change)

    found = {schedule: outcome(broken, schedule) for schedule in ("late", "early")}
    return found | {str(seed): outcome(broken, "random", seed) for seed in range(SEEDS)}


def test_the_whole_kernel_is_fine() -> None:
    for schedule in ("late", "early", "random"):
        assert outcome(lambda program: program, schedule) == "fine"


def test_multiplying_before_the_operands_are_there() -> None:
    assert set(outcomes(without("mbarrier.try_wait.parity", "math")).values()) <= {"uninitialised", "race"}


def test_loading_into_slots_that_are_still_read() -> None:
    assert set(outcomes(without("mbarrier.try_wait.parity", "load")).values()) <= {"race", "mbarrier"}


def test_reading_accumulators_before_the_products_are_done() -> None:
    assert set(outcomes(without("wgmma.wait_group")).values()) == {"register in flight"}


def test_never_leaving_a_slot() -> None:
    def broken(program: Program) -> Program:
        return changed(program, without("mbarrier.arrive.shared::cta.b64", "math"))

    for schedule in ("late", "early", "random"):
        assert outcome(broken, schedule) == "deadlock"
    d = poisoned(GIVEN, BF16)
    whole = launch(CONFIG, GIVEN, d, GRID)
    with pytest.raises(DeadlockError) as info:
        emulate.run(replace(whole, program=broken(whole.program)))
    message = str(info.value)
    assert "load warp" in message and "mbarrier empty[0] (phase parity 0)" in message
    assert "math warp" in message and "mbarrier full[0]" in message
    assert "kingpost/targets/nvidia/parts/ring.py:" in message


@pytest.mark.parametrize("more", [-128, 16, 128])
def test_expecting_a_wrong_number_of_bytes(more: int) -> None:
    def change(instruction: Instruction, role: str) -> Instruction:
        fields = instruction.fields
        wrong = {**fields, "bytes": fields["bytes"] + more} if "bytes" in fields else fields
        return replace(instruction, fields=wrong) if wrong is not fields else instruction

    assert set(outcomes(change).values()) == {"deadlock"}


def test_leaving_a_slot_before_its_products_are_done() -> None:
    """The arrival moved to the top of the loop over K blocks."""

    def hoisted(body: list[Node]) -> list[Node]:
        inner = [replace(n, body=hoisted(n.body)) if not isinstance(n, Instruction) else n for n in body]
        leaves = [n for n in inner if isinstance(n, Mask) and _arrives(n)]
        return [*leaves, *[n for n in inner if n not in leaves]] if _multiplies(inner) else inner

    def broken(program: Program) -> Program:
        result = replace(program, body=tuple(hoisted(list(program.body))))
        names = [[i.operation.name for i in p.instructions()] for p in (program, result)]
        assert names[0] != names[1] and sorted(names[0]) == sorted(names[1])
        return result

    for seed, schedule in enumerate(("late", "early", "random")):
        assert outcome(broken, schedule, seed) in ("uninitialised", "race")


def _arrives(mask: Mask) -> bool:
    return any(isinstance(n, Instruction) and n.operation.name == "mbarrier.arrive.shared::cta.b64" for n in mask.body)


def _multiplies(body: list[Node]) -> bool:
    return any(isinstance(n, Instruction) and n.operation.name == "wgmma.mma_async" for n in body)


def test_ending_before_the_result_has_been_read() -> None:
    found = outcomes(without("cp.async.bulk.wait_group.read", only=lambda i: i.fields["groups"] == 0))
    assert set(found.values()) <= {"in flight at exit", "race"}


def test_staging_the_next_tile_before_the_last_has_been_read() -> None:
    """The wait before staging dropped, the one at the end kept."""
    seen: list[Instruction] = []

    def change(instruction: Instruction, role: str) -> Instruction | None:
        if instruction.operation.name == "cp.async.bulk.wait_group.read":
            seen.append(instruction)
            return None if len(seen) == 1 else instruction
        return instruction

    whole = launch(CONFIG, GIVEN, poisoned(GIVEN, BF16), GRID).program
    broken = changed(whole, change)
    assert len(seen) == 2  # one in the loop over tiles, one at the end
    assert {outcome(lambda program: broken, schedule) for schedule in ("late", "early", "random")} == {"race"}


def test_storing_before_the_other_warps_have_staged() -> None:
    assert set(outcomes(without("bar.sync")).values()) <= {"uninitialised", "race"}


@pytest.mark.parametrize("fence, kind", [
    ("fence.proxy.async.shared::cta", "proxy"), ("fence.mbarrier_init.release.cluster", "mbarrier"),
    ("wgmma.fence.sync.aligned", "wgmma"),
])  # fmt: skip
def test_a_missing_fence(fence: str, kind: str) -> None:
    """The bits are right, in every order: only what is known of the fences shows it."""
    assert set(outcomes(without(fence)).values()) == {kind}


def test_barriers_that_are_not_initialised() -> None:
    assert set(outcomes(without("mbarrier.init.shared::cta.b64")).values()) == {"mbarrier"}


def test_accumulating_onto_the_last_block() -> None:
    def change(instruction: Instruction, role: str) -> Instruction:
        fields = instruction.fields
        first = instruction.operation.name == "wgmma.mma_async" and not fields["accumulate"]
        return replace(instruction, fields={**fields, "accumulate": True}) if first else instruction

    assert set(outcomes(change).values()) == {"uninitialised"}
