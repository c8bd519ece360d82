"""`kingpost check`: what it prints, its exit status, what it refuses; cases on several processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kingpost import cli
from kingpost.checker import examine, extras
from kingpost.checker.extras import Extra

Command = Callable[..., tuple[int, str, str]]

FILE = """
import numpy as np
from kingpost.arrays import view
from kingpost.checker import Case, Trial
from kingpost.formats import F32
from kingpost.program import Builder, Launch, f32, u64

def program(broken=False):
    k = Builder("copied", "sm_90a")
    x, d = (k.address(k.parameter(name, u64), k.lane, 4) for name in "xd")
    k.store(d, k.load(f32, x, offset=4 if broken else 0))
    return k.finish({})

def arrays():
    return {"x": np.arange(32, dtype="f4"), "d": np.zeros(32, "f4")}

def with_operands():
    return program(), arrays()

def launch():
    return Launch.of(program(), 1, **{name: view(x) for name, x in arrays().items()})

def case():
    return Case("mine", "copied", "sm_90a", lambda: Trial(launch(), lambda: None))

def wrong():
    return program(), {**arrays(), "wrong": lambda: "as wrong as can be"}

def broken():
    return program(True), arrays()

def nothing():
    return None

def of_one(argument):
    return None

number = 7
"""


@pytest.fixture
def kingpost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `kingpost check`: exit status, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["kingpost", "check", *arguments])
        monkeypatch.delenv("KINGPOST_TRACEBACK", raising=False)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "mine.py"
    found.write_text(FILE)
    return found


def test_a_shape(kingpost: Command) -> None:
    status, out, err = kingpost("3x8x32", "--schedule", "random", "--seed", "7")
    assert (status, err) == (0, "")
    assert out.splitlines()[0].startswith("clean  3x8x32  ")
    assert out.splitlines()[1].startswith("1 case clean, 1 runs, ")
    assert kingpost("3x16x32", "--for", "gfx950", "--schedule", "late", "--schedule", "early")[0] == 0


def test_a_kernel_on_several_processes(kingpost: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "_cores", lambda: 2)
    status, out, _ = kingpost("cdna3_fp8_one_wave", "--json")
    told = json.loads(out)
    assert (status, told["version"], told["what"], told["clean"]) == (0, 1, "cdna3_fp8_one_wave", True)
    assert [case["name"] for case in told["cases"]] == [f"cdna3_fp8_one_wave: K of {k}" for k in (16, 32, 48, 176)]
    assert all(len(case["runs"]) == 3 and case["clean"] for case in told["cases"])


@pytest.mark.parametrize("name", ["with_operands", "launch", "case"])
def test_a_function_of_a_file(kingpost: Command, file: Path, name: str) -> None:
    status, out, _ = kingpost(f"{file}::{name}")
    assert status == 0 and "1 case clean, 3 runs" in out


def test_findings_end_with_1(kingpost: Command, file: Path) -> None:
    status, out, _ = kingpost(f"{file}::broken", "--schedule", "late")
    assert status == 1
    assert out.startswith("not clean  ") and "1 of 1 case not clean" in out
    assert "  late: out of bounds: block 0, warp 0 at " in out and "mine.py:11" in out
    status, out, _ = kingpost(f"{file}::wrong", "--json", "--schedule", "early")
    (case,) = json.loads(out)["cases"]
    assert status == 1 and not case["clean"]
    assert case["runs"][0]["findings"][0]["message"] == "as wrong as can be"


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("sm90_fp9", "'sm90_fp9' is no kernel (is 'sm90_fp8' meant?); wanted add_slices, block_cast, cast, cdna3"),
        ("sm90_fp8 --for gfx942", "'sm90_fp8' is no kernel for gfx942"),
        ("sm90_fp8 --for sm_1", "device is 'emulated:sm_1'; one of 'emulated:sm_90a'"),
        ("77x136", "the shape is 77x136; M x N x K of at least 1 each, as in 77x136x400, is wanted"),
        ("77x0x16", "the shape is 77x0x16; M x N x K of at least 1 each"),
        ("77x12x16", "N, the columns of b, is 12; a multiple of 8 is wanted"),
        ("nowhere.py::launch", "there is no file nowhere.py"),
        ("FILE::absent", "has no function 'absent'"),
        ("FILE::number", "has no function 'number'"),
        ("FILE::launch --for gfx942", "is for sm_90a, not for gfx942"),
        ("FILE::of_one", "wants arguments; a function without is wanted"),
        ("FILE::nothing", "returned something else: NoneType cannot be checked; a Launch, a Program, a Trial or a"),
        ("3x8x32 --schedule never", "'never' is not one of 'late', 'early', 'random'"),
        ("3x8x32 --sample 5", "--sample is of mutants; --mutate is wanted with it"),
        ("", "Missing argument 'WHAT'"),
    ],
)
def test_an_error_is_one_line(kingpost: Command, file: Path, arguments: str, words: str) -> None:
    status, out, err = kingpost(*arguments.replace("FILE", str(file)).split())
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and words in err


def test_extras_are_asked_for_by_name(kingpost: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "_cores", lambda: 1)
    good = Extra("exhaustive", True, "no order goes wrong", (), {"states": 5})
    bad = Extra("mutate", False, "1 of 2 mutants caught", ("missed: delete s_nop",), {"missed": ["delete s_nop"]})
    asked = []

    def mutate(case, cases, wish):  # type: ignore[no-untyped-def]
        asked.append((case.name, len(cases), wish.sample))
        return bad if case is cases[0] else None

    monkeypatch.setitem(extras.EXTRAS, "exhaustive", lambda case, cases, wish: good)
    monkeypatch.setitem(extras.EXTRAS, "mutate", mutate)
    what = ("cdna3_fp8_one_wave: K of 1", "--schedule", "late", "--exhaustive")
    assert kingpost(*what)[0] == 0
    status, out, _ = kingpost(*what, "--mutate", "--sample", "2")
    assert status == 1 and asked == [(f"cdna3_fp8_one_wave: K of {k}", 2, 2) for k in (16, 176)]
    assert "\n  no order goes wrong\n  1 of 2 mutants caught\n  missed: delete s_nop\nclean" in out
    status, out, _ = kingpost(*what, "--mutate", "--json")
    first, second = json.loads(out)["cases"]
    assert first["mutate"] == {"good": False, "missed": ["delete s_nop"]} and not first["clean"]
    assert second["exhaustive"] == {"good": True, "states": 5} and second["clean"]


def test_mutants_of_a_program_with_several_cases(kingpost: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that K of 16 can do without is wanted by another."""
    monkeypatch.setattr(examine, "_cores", lambda: 1)
    arguments = "--schedule", "late", "--mutate", "--json"
    status, out, _ = kingpost("cdna3_fp8_one_wave", *arguments)
    first, *others = json.loads(out)["cases"]
    assert status == 0 and first["mutate"]["missed"] == [] and not any("mutate" in case for case in others)
    status, out, _ = kingpost("cdna3_fp8_one_wave: K of 16", *arguments)
    assert status == 1 and json.loads(out)["cases"][0]["mutate"]["missed"]
