"""A cache of its own for every test, a ptxas that only counts its runs, and small PTX kernels."""

import sys
from pathlib import Path

import pytest

from kingpost.assemble import AssemblerNotFound, cache, find_ptxas

FAKE_PTXAS = """#!{python}
import sys, time
if "--version" in sys.argv:
    print("Cuda compilation tools, release {version}, V{version}")
    sys.exit()
with open({runs!r}, "a") as runs:
    runs.write("run\\n")
time.sleep({seconds})
with open(sys.argv[-1], "wb") as image:
    image.write(b"binary of " + open(sys.argv[3], "rb").read())
print("ptxas info    : Used 40 registers, used 1 barriers, 96 bytes smem")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setattr(cache, "_memo", {})
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setenv("KINGPOST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake_ptxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Calling it puts a ptxas of some version in place, and returns a function that counts its runs."""

    def install(version: str = "13.5.1", seconds: float = 0.0):
        runs = tmp_path / "runs"
        tool = tmp_path / f"fake-{version}" / "ptxas"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(FAKE_PTXAS.format(python=sys.executable, version=version, runs=str(runs), seconds=seconds))
        tool.chmod(0o755)
        monkeypatch.setenv("KINGPOST_PTXAS", str(tool))
        return lambda: len(runs.read_text().splitlines()) if runs.exists() else 0

    return install


@pytest.fixture
def ptxas():
    """The real one; skips the test without it."""
    try:
        return find_ptxas()
    except AssemblerNotFound as error:
        pytest.skip(str(error))
