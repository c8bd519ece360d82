"""What this machine has for kingpost: versions, devices, assembler, driver and cache."""

import ctypes
import importlib.metadata
import os
import platform
from dataclasses import dataclass

import kingpost as kp
from kingpost.assemble import AssemblerNotFound, cache, find_ptxas

PACKAGES = ("numpy", "ml_dtypes", "cuda-bindings", "torch", "safetensors", "tokenizers")


@dataclass(frozen=True)
class Device:
    """A device under the name that users write, and what it is."""

    name: str
    description: str


@dataclass(frozen=True)
class Assembler:
    """ptxas: which one is used, and which of the places searched it comes from."""

    version: str
    origin: str
    path: str


@dataclass(frozen=True)
class Cache:
    """The folder of assembled binaries."""

    path: str
    writable: bool
    binaries: int
    bytes: int


@dataclass(frozen=True)
class Facts:
    """All of it; the names of the fields are the keys of `kingpost doctor --json`, and stay."""

    kingpost: str
    python: str
    platform: str
    packages: dict[str, str | None]
    devices: list[Device]
    driver: str | None
    ptxas: Assembler | None
    cache: Cache


def examine() -> Facts:
    """Look at everything; imports none of the packages that it names."""
    return Facts(
        kingpost=kp.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: installed_version(name) for name in PACKAGES},
        devices=[Device(device.name, device.description) for device in kp.devices()],
        driver=nvidia_driver(),
        ptxas=assembler(),
        cache=binary_cache(),
    )


def installed_version(package: str) -> str | None:
    """As its metadata states it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def nvidia_driver() -> str | None:
    """The newest CUDA version that the NVIDIA driver serves, as in "13.0"; None without a driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return None
    return None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


def assembler() -> Assembler | None:
    """The ptxas that would be run."""
    try:
        tool = find_ptxas()
        return Assembler(tool.version, tool.origin, str(tool.path))
    except (AssemblerNotFound, OSError):
        return None


def binary_cache() -> Cache:
    """The cache's folder, which need not exist yet to count as writable, and what is in it."""
    folder = cache.path()
    entries = cache.entries()
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    return Cache(
        path=str(folder),
        writable=nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK),
        binaries=len(entries),
        bytes=sum(entry.size for entry in entries),
    )
