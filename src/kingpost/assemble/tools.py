"""Finding the programs that assemble, and running them."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path


class AssemblerNotFound(RuntimeError):
    """No tool in any of the places searched; the message lists them and the command that brings one."""


@dataclass(frozen=True)
class Tool:
    """An external program: where it lies and which of the places searched it came from."""

    path: Path
    origin: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def version(self) -> str:
        """As the program states it, "13.5.37"; asked once per process."""
        return _version(self.path)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def run(
        self, *arguments: str, folder: Path | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs it in `folder`; standard error is joined to the output.

        Raises subprocess.TimeoutExpired after `timeout` seconds, and OSError where the program cannot be started.
        """
        return subprocess.run(
            [str(self.path), *arguments],
            cwd=folder,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )


def find_ptxas() -> Tool:
    """The PTX assembler: KINGPOST_PTXAS, else the nvidia-cuda-nvcc wheel's, triton's, PATH's, CUDA_HOME's.

    Raises AssemblerNotFound where there is none, and FileNotFoundError where KINGPOST_PTXAS names none.
    """
    triton = [folder / "backends/nvidia/bin" for folder in _package_folders("triton")]
    places = {"nvidia-cuda-nvcc": _nvidia_wheel_folders(), "triton": triton, **_toolkit_folders()}
    return _find("ptxas", places, "pip install nvidia-cuda-nvcc")


def find_nvdisasm() -> Tool:
    """The disassembler, for reports and tests: KINGPOST_NVDISASM, else its wheel's, PATH's, CUDA_HOME's.

    Raises as find_ptxas does.
    """
    places = {"nvidia-cuda-nvdisasm": _nvidia_wheel_folders(), **_toolkit_folders()}
    return _find("nvdisasm", places, "pip install nvidia-cuda-nvdisasm")


def find_clang() -> Tool:
    """A clang that assembles AMDGCN, with ld.lld beside it or in it: KINGPOST_CLANG, else the ziglang wheel's zig,
    which holds both, ROCM_PATH's, /opt/rocm's, PATH's.

    Raises as find_ptxas does.
    """
    program = "zig.exe" if os.name == "nt" else "zig"
    if not os.environ.get("KINGPOST_CLANG"):
        for folder in _package_folders("ziglang"):
            if _is_executable(folder / program):
                return Tool((folder / program).absolute(), "ziglang")
    homes = [Path(home) / "llvm/bin" for home in (os.environ.get("ROCM_PATH"), "/opt/rocm") if home]
    places = {"ziglang": _package_folders("ziglang"), "ROCm": homes, "PATH": _toolkit_folders()["PATH"]}
    beside = {origin: [f for f in folders if _is_executable(f / "ld.lld")] for origin, folders in places.items()}
    return _find("clang", beside, "pip install ziglang")


def _find(name: str, places: dict[str, list[Path]], cure: str) -> Tool:
    variable = f"KINGPOST_{name.upper()}"
    if chosen := os.environ.get(variable):
        if not _is_executable(Path(chosen)):
            raise FileNotFoundError(f"{variable} is {chosen!r}: wanted the path of an executable {name}")
        return Tool(Path(chosen).absolute(), variable)
    program = f"{name}.exe" if os.name == "nt" else name
    for origin, folders in places.items():
        for folder in folders:
            if _is_executable(folder / program):
                return Tool((folder / program).absolute(), origin)
    searched = [f"{variable}: not set"]
    searched += [f"{origin}: {', '.join(map(str, folders)) or 'not there'}" for origin, folders in places.items()]
    raise AssemblerNotFound(f"no {name} found. To have one: {cure}. Searched:\n  " + "\n  ".join(searched))


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _package_folders(package: str) -> list[Path]:
    """Where a top-level package lies, without importing it; several folders for a namespace package."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module put into sys.modules by hand has no spec
        return []
    return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]


def _nvidia_wheel_folders() -> list[Path]:
    """The wheels' program folders, newest toolkit first: nvidia/cu13/bin; nvidia/cuda_nvcc/bin before CUDA 13."""
    folders = [folder for package in _package_folders("nvidia") for folder in package.glob("*/bin")]
    return sorted(folders, key=lambda folder: [int(n) for n in re.findall(r"\d+", folder.parent.name)], reverse=True)


def _toolkit_folders() -> dict[str, list[Path]]:
    path = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    home = os.environ.get("CUDA_HOME")
    return {"PATH": path, "CUDA_HOME": [Path(home) / "bin"] if home else []}


@functools.cache
def _version(path: Path) -> str:
    output = Tool(path, "").run("version" if path.stem == "zig" else "--version").stdout
    found = re.search(r"\bV(\d+(?:\.\d+)+)", output) or re.search(r"(\d+(?:\.\d+)+)", output)
    if not found:
        raise AssemblerNotFound(f"{path} --version names no version: {output.strip()[:200]!r}")
    return found[1]
