"""The command line: what it prints, to which stream, and the exit status."""

import json
import warnings
from pathlib import Path

import pytest

import kingpost as kp
from kingpost import assemble, cli
from kingpost.assemble import cache


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("KINGPOST_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KINGPOST_TRACEBACK", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def kingpost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command line as the console script does: exit status, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["kingpost", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_help_names_every_command(kingpost) -> None:
    status, out, _ = kingpost("--help")
    assert status == 0
    for command in ("demo", "doctor", "run", "asm", "check", "cache"):
        assert command in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("run 1 8", "Missing argument 'K'"),
        ("run -1 8 16", "'M': Input should be greater than or equal to 0"),
        ("run 1 8 99999999999", "'K': Input should be less than or equal to 2147483647"),
        ("run 1 eight 16", "'N': Input should be a valid integer"),
        ("run 1 8 16 --seed -1", "'--seed': Input should be greater"),
        ("run 1 8 16 --on", "--on"),
        ("run 1 8 16 --of", "--of"),
        ("asm 1 12 16", "N, the columns of b, is 12; a multiple of 8 is wanted"),
        ("cache", "Missing command; see kingpost cache --help"),
    ],
)
def test_an_error_is_one_line(kingpost, arguments: str, words: str) -> None:
    status, out, err = kingpost(*arguments.split())
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    if "Input" not in words:  # typer's own words differ from release to release
        assert words in err


def test_a_machine_too_small_is_an_error_too(kingpost, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise MemoryError("Unable to allocate 3.64 TiB")

    monkeypatch.setattr(kp, "quantize", full)
    assert kingpost("run", "8", "8", "16") == (2, "", "error: Unable to allocate 3.64 TiB\n")


def test_a_warning_is_one_line(kingpost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "clear", lambda: warnings.warn("the folder is odd", stacklevel=2) or 0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert kingpost("cache", "clear")[2] == "warning: the folder is odd\n"


def test_an_error_of_the_library_is_one_line(kingpost, tmp_path: Path) -> None:
    status, out, err = kingpost("demo", "--model", str(tmp_path))
    assert (status, out) == (2, "")
    assert err.startswith("error: model: the folder ") and err.count("\n") == 1


def test_its_traceback_is_to_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KINGPOST_TRACEBACK", "1")
    monkeypatch.setattr("sys.argv", ["kingpost", "demo", "--model", str(tmp_path)])
    with pytest.raises(FileNotFoundError):
        cli.main()


def test_unknown_device(kingpost) -> None:
    status, _, err = kingpost("run", "8", "8", "16", "--on", "abacus")
    assert status == 2
    assert "device" in err and "abacus" in err


def test_cache(kingpost, folder: Path) -> None:
    assert kingpost("cache", "path") == (0, f"{folder}\n", "")
    assert kingpost("cache", "list")[1].startswith("no binaries in")
    binary = assemble.Binary(b"image", 168, 0, 0, 0, 0.1, "ptxas 1.2.3", "sm_90a", "")
    cache.get_or_build("text", "sm_90a", binary.tool, lambda: binary)
    listed = kingpost("cache", "list")[1]
    assert "ptxas 1.2.3" in listed and "168" in listed
    assert kingpost("cache", "clear")[1].startswith("removed 1 binaries")
    assert not cache.entries()


def test_doctor_for_a_program(kingpost, folder: Path) -> None:
    status, out, _ = kingpost("doctor", "--json")
    facts = json.loads(out)
    assert status == 0
    assert list(facts) == ["kingpost", "python", "platform", "packages", "devices", "driver", "ptxas", "cache"]
    assert facts["cache"] == {"path": str(folder), "writable": True, "binaries": 0, "bytes": 0}
    assert {"cpu", "emulated:sm_90a"} <= {device["name"] for device in facts["devices"]}


def test_doctor_for_a_person(kingpost, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> assemble.Tool:
        raise assemble.AssemblerNotFound("no ptxas found")

    monkeypatch.setattr("kingpost.doctor.find_ptxas", nowhere)
    status, out, _ = kingpost("doctor")
    assert status == 0
    assert "emulated:sm_90a" in out
    assert [line.split() for line in out.splitlines() if line.startswith("ptxas")] == [["ptxas", "none"]]


@pytest.mark.parametrize("device", ["cpu", "emulated:sm_90a"])
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
def test_run(kingpost, device: str, out_dtype: str) -> None:
    status, out, err = kingpost("run", "5", "24", "144", "--on", device, "--out", out_dtype)
    assert (status, err) == (0, "")
    assert f"[5, 144] @ [144, 24] on {device}, {out_dtype}" in out
    assert "wrong" not in out


def test_run_of_nothing(kingpost) -> None:
    assert kingpost("run", "0", "8", "16")[0] == 0
    assert kingpost("run", "8", "8", "0")[0] == 0


def test_run_ends_with_1_when_the_result_is_wrong(kingpost, monkeypatch: pytest.MonkeyPatch) -> None:
    product = kp.mm
    monkeypatch.setattr(kp, "mm", lambda *args, **options: product(*args, **options) * 2)
    status, out, _ = kingpost("run", "8", "8", "128")
    assert status == 1
    assert "wrong" in out


def test_asm_prints_a_file_that_assembles(kingpost) -> None:
    try:
        assemble.find_ptxas()
    except assemble.AssemblerNotFound:
        pytest.skip("needs ptxas")
    status, out, _ = kingpost("asm", "64", "128", "256")
    assert status == 0
    assert "registers" in out.splitlines()[1]
    assert assemble.build(out, "sm_90a").spill_bytes == 0
