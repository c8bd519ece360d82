"""What is asked beyond a run: how misses are judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kingpost.checker import extras
from kingpost.checker.extras import Wish, exhaustive, mutate
from kingpost.checker.verdict import Verdict

from .small import hopper

DELETED = "delete fence.proxy.async.shared::cta"


@pytest.mark.parametrize(("sample", "explained", "good"), [(None, True, False), (99, True, True), (99, False, False)])
def test_a_miss_in_a_sample_counts_unless_the_case_explains_it(
    monkeypatch: pytest.MonkeyPatch, sample: int | None, explained: bool, good: bool
) -> None:
    monkeypatch.setattr(extras, "ENOUGH", 1.0)
    monkeypatch.setattr(extras, "verdict", lambda case, mutant, *more: Verdict(mutant.what != DELETED, ""))
    case = replace(hopper(), harmless={f"{DELETED}, small.py": "nobody reads it"} if explained else {})
    found = mutate(case, [case], Wish(("mutate",), sample=sample))
    assert found is not None and found.good is good
    assert found.data["missed"] and all(each.startswith(DELETED) for each in found.data["missed"])
    assert all(each.endswith(": nobody reads it") is explained for each in found.details)


def test_blocks_in_clusters_are_not_searched() -> None:
    case, trial = hopper(), hopper().make()
    program = replace(trial.launch.program, cluster=2)
    pair = replace(trial, launch=replace(trial.launch, program=program, grid=2))
    found = exhaustive(replace(case, make=lambda: pair), [], Wish())
    assert not found.good and "clusters" in found.summary
