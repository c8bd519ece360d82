"""From a problem to a call: the candidate whose model says the least time, made once, and calls that are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from kingpost import plan, registry
from kingpost.arrays import view
from kingpost.formats import BF16, E4M3, E5M2, F32
from kingpost.plan.cache import CALLS_KEPT, Planned
from kingpost.registry import Candidate, Elementwise, HostMemory, Operands, Problem

ROWWISE = "1x128", "128x128", "row", "tensor"
PROBLEM = Elementwise("vector_add", (("x", F32), ("y", F32), ("d", F32)))


@dataclass(frozen=True)
class Timed:
    """A candidate that takes `fixed` microseconds and `each` for a row."""

    name: str
    fixed: float
    each: float

    def microseconds(self, m: int) -> float:
        return self.fixed + self.each * m

    def bind(self, operands: Operands) -> str:
        return self.name


@dataclass(eq=False)
class Recorder(HostMemory):
    """A device that remembers what it was asked."""

    offered: Sequence[Candidate]
    keeps_calls: bool = True
    name: str = "recorder"
    description: str = ""
    prepared: list[str] = field(default_factory=list)

    def candidates(self, problem: Any) -> Sequence[Candidate]:
        return self.offered

    def prepare(self, launch: str) -> Callable[[int], None]:
        self.prepared.append(launch)
        return lambda stream: None


def operands(*arrays: np.ndarray) -> Operands:
    return Operands(dict(zip("xyd", map(view, arrays))), ("d",), len(arrays[0]))


def test_the_least_time_wins_for_every_number_of_rows() -> None:
    offered = [Timed("small", 1, 1), Timed("large", 100, 0.1), Timed("never", 200, 2)]
    chosen = plan.Plan(PROBLEM, Recorder(offered))
    assert chosen.candidate(1).name == chosen.candidate(64).name == "small"
    assert chosen.candidate(256).name == chosen.candidate(10**6).name == "large"


def test_rows_that_share_a_choice() -> None:
    device = Recorder([Timed("one", 0, 1)])
    chosen = plan.Plan(PROBLEM, device)
    for rows in (0, 1, 3, 4, 33, 64, 65, 10**6):
        chosen.candidate(rows)
    assert sorted(chosen.chosen) == [1, 4, 64, 128, 16384]


def test_nothing_offered_is_unsupported() -> None:
    with pytest.raises(plan.Unsupported, match="recorder has no kernel for vector_add of x float32, y float32"):
        plan.Plan(PROBLEM, Recorder([]))


@pytest.mark.parametrize(
    "device, scalings, wanted",
    [
        ("emulated:sm_100a", ("row", "row"), "e4m3 '1x128' by e4m3 '128x128'"),
        ("cpu", ("1x128", "column"), " or ".join(f"e4m3 '1x128' by e4m3 '{b}'" for b in ROWWISE)),
    ],
)
def test_what_is_offered_instead(device: str, scalings: tuple[str, str], wanted: str) -> None:
    problem = Problem("mm", 8, 16, E4M3, E4M3, *scalings, F32)
    with pytest.raises(plan.Unsupported) as info:
        plan.Plan(problem, registry.find(device))
    assert str(info.value).endswith(f"n = 8, k = 16; wanted {wanted}")
    with pytest.raises(plan.Unsupported, match=r"k = 16; it offers no mm$"):
        plan.Plan(problem, Recorder([]))


@dataclass(eq=False)
class Picky(Recorder):
    """A device that takes the problems of which `takes` is true."""

    takes: Callable[[Problem], bool] = lambda problem: True

    def candidates(self, problem: Any) -> Sequence[Candidate]:
        return self.offered if self.takes(problem) else []


PLAIN = Problem("mm", 8, 16, E4M3, E4M3, "1x128", "128x128", F32)


@pytest.mark.parametrize(
    "takes, wanted",
    [
        (lambda p: not p.c, "no c"),
        (lambda p: not p.c and p.bias is None and p.out_format is not F32,
         "no c and no bias and a result in bfloat16 or no c and no bias and a result in float16"),
        (lambda p: p.b_major == "k", "b with K contiguous"),
        (lambda p: p.a_format is BF16 and not p.c, "bfloat16"),
        (lambda p: p.a_format is E5M2 and not (p.c or p.bias or p.alpha) and p.a_scaling == "row" == p.b_scaling,
         "e5m2 'row' by e4m3 'row'"),
        (lambda p: p.a_scaling == p.b_scaling and not p.bias and p.b_major == "k",
         "e4m3 '1x128' by e4m3 '1x128' or e4m3 '128x128' by e4m3 '128x128'"),
    ],
)  # fmt: skip
def test_the_fewest_changes_that_help(takes: Callable[[Problem], bool], wanted: str) -> None:
    asked = replace(PLAIN, c=True, in_place=True, bias=F32, alpha=True, b_major="mn")
    with pytest.raises(plan.Unsupported) as info:
        plan.Plan(asked, Picky([Timed("one", 0, 0)], takes=takes))
    assert str(info.value).endswith(f"added, times alpha; wanted {wanted}")


def test_the_ascending_order_serves_where_there_is_no_other() -> None:
    asked = replace(PLAIN, order="fast")
    device = Picky([Timed("ascending", 0, 0)], takes=lambda problem: problem.order == "ascending")
    assert plan.Plan(asked, device).candidate(1).name == "ascending"
    assert plan.Plan(asked, Recorder([Timed("fast", 0, 0)])).candidate(1).name == "fast"


def test_the_latest_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kingpost.plan.cache.PLANS_KEPT", 2)
    plan.forget()
    device = Recorder([Timed("one", 0, 0)])
    first, second, third = (plan.planned(replace(PLAIN, k=k), device) for k in (16, 32, 48))
    assert plan.planned(replace(PLAIN, k=32), device) is second
    assert plan.planned(replace(PLAIN, k=48), device) is third
    assert plan.planned(PLAIN, device) is not first


def test_calls_are_kept_by_pointers_shapes_and_strides() -> None:
    device = Recorder([Timed("one", 0, 0)])
    planned, (x, y, d) = Planned(PROBLEM, device), np.zeros((3, 8, 8), np.float32)
    call = planned.call(operands(x, y, d))
    assert planned.call(operands(x, y, d)) is call
    assert len(device.prepared) == 1
    for other in ((x.copy(), y, d), (x.T, y, d), (x[:4], y, d), (x.reshape(4, 16), y, d)):
        assert planned.call(operands(*other)) is not call
    assert len(device.prepared) == 5


def test_the_latest_calls_are_kept() -> None:
    device = Recorder([Timed("one", 0, 0)])
    planned, rows = Planned(PROBLEM, device), np.zeros((CALLS_KEPT + 1, 4), np.float32)
    for row in rows:
        planned.call(operands(row, row, row))
    assert len(planned.calls) == CALLS_KEPT
    planned.call(operands(rows[-1], rows[-1], rows[-1]))
    assert len(device.prepared) == CALLS_KEPT + 1
    planned.call(operands(rows[0], rows[0], rows[0]))
    assert len(device.prepared) == CALLS_KEPT + 2


def test_a_device_on_host_arrays_prepares_each_call() -> None:
    device = Recorder([Timed("one", 0, 0)], keeps_calls=False)
    planned, x = Planned(PROBLEM, device), np.zeros(8, np.float32)
    assert planned.call(operands(x, x, x)) is not planned.call(operands(x, x, x))


def test_a_plan_is_made_once_for_a_device() -> None:
    one, other = Recorder([Timed("one", 0, 0)]), Recorder([Timed("other", 0, 0)])
    assert plan.planned(PROBLEM, one) is plan.planned(PROBLEM, one)
    assert plan.planned(PROBLEM, one) is not plan.planned(PROBLEM, other)  # whatever they are called
    assert plan.planned(PROBLEM, one) is not plan.planned(Elementwise("vector_add", ()), one)
    kept = plan.planned(PROBLEM, one)
    plan.forget()
    assert plan.planned(PROBLEM, one) is not kept
