"""Every kernel has cases, and the first of each on each target is clean; `kingpost check all` runs all of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter

import numpy as np
import pytest

import kingpost.portable
import kingpost.targets
from kingpost import registry
from kingpost.checker import SCHEDULES, Case, assert_clean, cases
from kingpost.checker.cases import find
from kingpost.program import TensorMap
from kingpost.targets.nvidia import checks
from kingpost.targets.nvidia.planner import candidates

ALL = cases()
FIRST = {(case.kernel, case.target): case for case in reversed(ALL)}


@pytest.mark.parametrize("number, case", list(enumerate(FIRST.values())), ids=[case.name for case in FIRST.values()])
def test_each_kernel_is_clean_on_each_target(number: int, case: Case) -> None:
    assert_clean(case, schedules=[SCHEDULES[number % 3]])


def test_names_are_unique_and_begin_with_the_kernels() -> None:
    assert max(Counter(case.name for case in ALL).values()) == 1
    assert all(case.name.startswith(case.kernel) for case in ALL)


def test_every_kernel_in_the_repository_has_cases() -> None:
    """Every function that @kernel made, in a room of kernels, for each target that lowers it."""
    checked = {case.kernel for case in ALL}
    for room in (kingpost.portable, kingpost.targets):
        for found in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
            if room is kingpost.targets and ".kernels." not in found.name:
                continue
            module = importlib.import_module(found.name)
            written = [name for name, value in vars(module).items() if hasattr(value, "cache_info")]
            kernels = {name for name in written if getattr(module, name).__module__ == found.name and name[0] != "_"}
            assert kernels <= checked, found.name
    portable = {case.kernel for case in ALL if f", {case.target}: " in case.name}
    for target in (each.target.name for each in registry.emulators()):
        assert portable <= {case.kernel for case in cases(target)}


@pytest.mark.parametrize("name", checks.IN_EVERY_CONFIGURATION)
def test_every_configuration_of_the_planner_has_a_case(name: str) -> None:
    found = [case.name for case in find("sm90_", "sm_90a") if f": {name}, " in case.name]
    tiles = [str(each.tile) for each in candidates(checks.PROBLEMS[name], checks.ALONE)]
    assert [tile for tile in tiles if not any(each.endswith(f", {tile}") for each in found)] == []


def test_every_kind_of_walk_scales_finish_and_store_has_a_case() -> None:
    configs = [case.make().launch.program.config for case in find("sm90_")]
    fp8 = [config for config in configs if "scales" in config]
    bf16 = [config for config in configs if "scales" not in config]
    walks = {"Dense", "Batched", "ByRows", "ByEnds", "ByCounts", "OverK"}
    assert {type(each["walk"]).__name__ for each in fp8} == walks
    assert {type(each["walk"]).__name__ for each in bf16} == walks | {"Summed"}
    assert {(each["scales"].by_column, each["scales"].steps) for each in fp8} == {(0, 0), (1, 0), (1, 1)}
    assert {(each["a_major"], each["b_major"]) for each in bf16} == {(a, b) for a in ("k", "mn") for b in ("k", "mn")}
    for some in (fp8, bf16):
        finishes = [each["finish"] for each in some]
        assert {finish.adds_by_copies for finish in finishes} == {finish.alpha for finish in finishes} == {False, True}
        assert {(finish.c, finish.bias is not None) for finish in finishes} >= {(0, 0), (1, 0), (0, 1), (1, 1)}
        assert len({finish.out for finish in finishes}) == 3
        assert {each["walk"].partial for each in some} == {False, True}


@pytest.mark.parametrize("kernel", ["sm90_fp8", "sm90_bf16"])
def test_a_ring_goes_round_in_one_item(kernel: str) -> None:
    (case,) = (each for each in find(kernel) if "more blocks of K" in each.name)
    launch = case.make().launch
    a, config = launch.arguments["a"], launch.program.config
    assert isinstance(a, TensorMap)
    depth = a.view.shape[-1] * a.view.format.itemsize
    assert -(-depth // 128) >= config["stages"] + 2


def test_a_trial_knows_right_from_wrong() -> None:
    trial = find("vector_add", "sm_90a")[0].make()
    wrong = trial.wrong()
    assert wrong is not None and wrong.startswith("1027 of 1027 values differ")
    x, y, d = (view.numpy() for view in trial.launch.views)
    d[...] = x + y
    assert trial.wrong() is None
    d[5] = np.nan
    assert "first [5]: nan instead of" in str(trial.wrong())


@pytest.mark.parametrize("what, count", [("cdna3_fp8_one_wave", 4), ("cdna3_fp8_one_wave: K of 1", 2), ("relayout", 4)])
def test_cases_are_found_by_kernel_or_by_how_they_begin(what: str, count: int) -> None:
    found = find(what)
    assert len(found) == count and all(case.name.startswith(what) for case in found)


def test_cases_for_one_target() -> None:
    assert [case.target for case in find("relayout", "gfx950")] == ["gfx950"]
    assert {case.target for case in find("all", "sm_100a")} == {"sm_100a"}


@pytest.mark.parametrize("target, kernel", [("sm_90a", "sm90_fp8"), ("gfx942", "tile_product")])
def test_a_shape_is_what_the_planner_chooses(target: str, kernel: str) -> None:
    (case,) = find("3x24x144", target, seed=5)
    assert (case.kernel, case.target) == (kernel, target)
    assert_clean(case, schedules=["random"])
