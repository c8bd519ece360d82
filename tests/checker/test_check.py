"""Reports: what is found in broken programs, what a user gives, and JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import kingpost as kp
from kingpost.arrays import view
from kingpost.checker import Report, Trial, assert_clean, check
from kingpost.checker.check import cased
from kingpost.formats import F32
from kingpost.program import Builder, Launch, Program, f32, u64


def reversed_rows(broken: str = "", amount: float = 0.0) -> Program:
    """d = x backwards (+ amount), two warps by way of shared memory. broken: what is left out or changed."""
    k = Builder("reversed_rows", "sm_90a")
    k.warps(2)
    x, d = k.parameter("x", u64), k.parameter("d", u64)
    row = k.shared("row", (64,), F32)
    k.store(row.at(k.thread), k.load(f32, k.address(x, k.thread, 4)))
    if broken != "no barrier":
        k.barrier()
    value = k.load(f32, row.at(k.thread ^ 63)) + amount
    k.store(k.address(d, k.thread, 4), value, offset=256 if broken == "behind" else 0)
    if broken == "deadlock":
        with k.when(k.warp == 0):
            k.barrier()
    if broken == "order":
        k.store(d, k.convert(f32, k.warp))
    return k.finish({})


def arrays() -> dict[str, np.ndarray]:
    return {"x": np.arange(64, dtype=np.float32), "d": np.zeros(64, np.float32)}


def test_a_clean_program() -> None:
    given = arrays()
    report = kp.check(reversed_rows(), **given)
    assert report.clean and report.findings == []
    assert [run.schedule for run in report.runs] == ["late", "early", "random"]
    assert all(run.counters["instructions"] > 10 and run.counters["blocks"] == 1 for run in report.runs)
    assert str(report) == "clean: reversed_rows for sm_90a, under late, early, random"
    np.testing.assert_array_equal(given["d"], given["x"][::-1])
    assert_clean(reversed_rows(), **arrays())


@pytest.mark.parametrize(
    "broken, kind, words",
    [
        ("no barrier", "uninitialised", "reads row["),
        ("behind", "out of bounds", "in none of the launch's arrays"),
        ("deadlock", "deadlock", "1 of 2 warps have arrived"),
    ],
)
def test_a_finding_names_its_line(broken: str, kind: str, words: str) -> None:
    report = check(reversed_rows(broken), **arrays())
    assert not report.clean and len(report.findings) == 3
    assert {finding.kind for finding in report.findings} == {kind}
    assert words in report.findings[0].message and words in str(report)
    assert str(report).startswith("not clean: reversed_rows for sm_90a") and "test_check.py:" in str(report)
    with pytest.raises(AssertionError, match=f"not clean.*\n  late: {kind}: "):
        assert_clean(reversed_rows(broken), **arrays())


def test_a_wrong_result() -> None:
    given = arrays()

    def wrong() -> str | None:
        return None if (given["d"] == given["x"][::-1]).all() else "not backwards"

    assert check(reversed_rows(), wrong=wrong, **given).clean
    report = check(reversed_rows(amount=1.0), wrong=wrong, schedules=["early"], **given)
    assert str(report).endswith("\n  early: wrong result: the launch: not backwards")


def test_warps_that_race_for_a_word_of_global_memory() -> None:
    assert not check(reversed_rows("order"), **arrays()).clean


def test_results_are_the_same_under_every_schedule() -> None:
    """Where nobody says what is right."""
    given = arrays()
    case = cased(Launch.of(reversed_rows(), 1, **{name: view(array) for name, array in given.items()}))
    outcomes = []
    for number in (7.0, 7.0, 8.0):
        trial = case.make()
        assert not given["d"].any()
        given["d"][3] = number
        outcomes.append(trial.wrong())
    assert outcomes == [None, None, "2 bytes of the arrays are others than under the first schedule"]


def test_every_schedule_finds_the_arrays_as_they_were() -> None:
    k = Builder("twice", "sm_90a")
    at = k.address(k.parameter("x", u64), k.lane, 4)
    k.store(at, k.load(f32, at) * 2.0)
    x = np.arange(32, dtype=np.float32)
    assert_clean(k.finish({}), x=x)
    np.testing.assert_array_equal(x, 2 * np.arange(32, dtype=np.float32))


def test_launches_trials_and_numbers() -> None:
    given = arrays()
    launch = Launch.of(reversed_rows(), 1, **{name: view(array) for name, array in given.items()})
    assert check(launch).clean
    assert not check(Trial(launch, lambda: "never right")).clean
    k = Builder("number", "sm_90a")
    count, at = k.parameter("count"), k.address(k.parameter("d", u64), k.lane, 4)
    with k.mask(k.lane < count):
        k.store(at, k.convert(f32, k.lane + k.block * 0))
    d = np.zeros(32, np.float32)
    assert check(k.finish({}), grid=2, count=np.int32(7), d=d).runs[0].counters["blocks"] == 2
    np.testing.assert_array_equal(d[5:9], [5, 6, 0, 0])


@pytest.mark.parametrize(
    "what, more, error, message",
    [
        (object(), {}, TypeError, "object cannot be checked; a Launch, a Program, a Trial or a Case is wanted"),
        (reversed_rows(), {"x": arrays()["x"]}, ValueError, r"arguments are \['x'\]; \['d', 'x'\] are wanted"),
        (reversed_rows(), {"x": [1.0], "d": np.zeros(1)}, TypeError, "x is builtins.list; wanted a numpy array"),
        (reversed_rows(), {**arrays(), "schedules": []}, ValueError, r"schedules is \[\]; at least one of late, early"),
        (reversed_rows(), {**arrays(), "schedules": ["never"]}, ValueError, "schedule is 'never'"),
        (Launch(Builder("none", "sm_90a").finish({}), 1, {}), {"x": 1}, TypeError, "x given with Launch"),
    ],
)
def test_what_cannot_be_checked(what: Any, more: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check(what, **more)


def test_json() -> None:
    report = check(reversed_rows("no barrier"), schedules=["late", "early"], **arrays())
    told = json.loads(json.dumps(report.as_dict()))
    assert list(told) == ["version", "name", "kernel", "target", "clean", "runs"]
    assert (told["version"], told["kernel"], told["target"], told["clean"]) == (1, "reversed_rows", "sm_90a", False)
    assert [run["schedule"] for run in told["runs"]] == ["late", "early"]
    (finding,) = told["runs"][0]["findings"]
    assert list(finding) == ["kind", "message", "agent", "file", "line"]
    assert finding["file"].endswith("test_check.py")
    first = reversed_rows.__code__.co_firstlineno
    assert first < finding["line"] < first + 12
    clean = check(reversed_rows(), schedules=["late"], **arrays()).as_dict()["runs"][0]
    assert clean["findings"] == [] and clean["counters"]["instructions"] > 0


def test_a_report_of_nothing_wrong_is_clean() -> None:
    assert Report("a", "b", "c", ()).clean
