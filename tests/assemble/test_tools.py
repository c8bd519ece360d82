"""Where tools are looked for, in which order, and what is said when there is none."""

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from kingpost.assemble import AssemblerNotFound, find_nvdisasm, find_ptxas

ORDER = ["KINGPOST_PTXAS", "nvidia-cuda-nvcc", "triton", "PATH", "CUDA_HOME"]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A machine on which only the places named are there: `places("PATH", "triton")`. Returns their programs."""

    def put(path: Path, name: str = "ptxas") -> Path:
        path.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("#!/bin/sh\necho release 13.5, V13.5.37\n")
        (path / name).chmod(0o755)
        return path / name

    def packages(name: str):
        if not (tmp_path / name).is_dir():
            return None
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(tmp_path / name)]
        return spec

    def build(*names: str) -> dict[str, Path]:
        made = {}
        for name in names:
            if name == "KINGPOST_PTXAS":
                made[name] = put(tmp_path / "mine")
                monkeypatch.setenv("KINGPOST_PTXAS", str(made[name]))
            elif name == "nvidia-cuda-nvcc":
                made[name] = put(tmp_path / "nvidia/cu13/bin")
            elif name == "triton":
                made[name] = put(tmp_path / "triton/backends/nvidia/bin")
            elif name == "PATH":
                made[name] = put(tmp_path / "bin")
            elif name == "CUDA_HOME":
                made[name] = put(tmp_path / "cuda/bin")
                monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
        return made

    monkeypatch.setattr(importlib.util, "find_spec", packages)
    for variable in ("KINGPOST_PTXAS", "KINGPOST_NVDISASM", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    build.put = put
    return build


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_first_place_wins(places, first):
    made = places(*ORDER[first:])
    tool = find_ptxas()
    assert (tool.path, tool.origin) == (made[ORDER[first]], ORDER[first])
    assert str(tool) == "ptxas 13.5.37"


def test_newest_wheel_wins(places, tmp_path):
    for folder in ("cuda_nvcc", "cu13", "cu12", "cu100"):
        places.put(tmp_path / "nvidia" / folder / "bin")
    assert find_ptxas().path.parts[-3] == "cu100"


def test_file_that_cannot_run_is_passed_over(places):
    made = places("triton", "PATH")
    made["triton"].chmod(0o644)
    assert find_ptxas().origin == "PATH"


def test_no_tool_names_every_place_and_the_cure(places):
    with pytest.raises(AssemblerNotFound) as caught:
        find_ptxas()
    assert all(place in str(caught.value) for place in [*ORDER, "pip install nvidia-cuda-nvcc"])
    with pytest.raises(AssemblerNotFound, match="pip install nvidia-cuda-nvdisasm"):
        find_nvdisasm()


def test_wrong_override_is_not_passed_over(places, monkeypatch):
    places("PATH")
    monkeypatch.setenv("KINGPOST_PTXAS", "/no/such/ptxas")
    with pytest.raises(FileNotFoundError, match="KINGPOST_PTXAS is '/no/such/ptxas'"):
        find_ptxas()


def test_nvdisasm_of_the_wheel(places, tmp_path):
    path = places.put(tmp_path / "nvidia/cu13/bin", "nvdisasm")
    assert find_nvdisasm().path == path


def test_version_is_asked_once(places, tmp_path):
    tool = places("PATH")["PATH"]
    tool.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\necho V13.5.37\n")
    assert [find_ptxas().version for _ in range(3)] == ["13.5.37"] * 3
    assert (tmp_path / "runs").read_text() == "run\n"
