"""What a device is and which there are: built-in ones, and those that other packages bring.

A device is a target times an executor. It offers candidates for a problem; a candidate bound to operands is a launch;
prepared, a launch is a call that takes a stream. Packages bring devices through the entry-point group
`kingpost.devices`: an entry named "family" gives a `Family`, which serves the names "family" and "family:which".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

import numpy as np

from kingpost.arrays import View
from kingpost.formats import Format
from kingpost.program import Program, Target
from kingpost.scaling import ScaledTensor

GROUP = "kingpost.devices"
BUILT_IN = {
    "cpu": "kingpost.targets.cpu.device:FAMILY",
    "cuda": "kingpost.targets.nvidia.device:CUDA",
    "emulated": "kingpost.targets.emulated:FAMILY",
}


@dataclass(frozen=True)
class Problem:
    """A product, for any number of rows M: D[M, n] = A[M, k] B[n, k]^T, with scaled operands. Its operands are a
    [M, K], scale_a, b [N, K] (K-major, as weights are kept), scale_b and d [M, N].

    op: "mm", or "tile_product", the same for as many rows and columns as a block of a device takes at once.
    a_scaling, b_scaling: "1x128" (then scale_a is [M, ceil(K/128)]), "128x128" (scale_b is [ceil(N/128),
    ceil(K/128)]), "row" or "tensor"; b_scaling is that of B as [n, k], as weights are kept.
    """

    op: str
    n: int
    k: int
    a_format: Format
    b_format: Format
    a_scaling: str
    b_scaling: str
    out_format: Format
    order: str = "ascending"

    def __str__(self) -> str:
        return (
            f"{self.op} of {self.a_format.name} {self.a_scaling!r} by {self.b_format.name} {self.b_scaling!r} into "
            f"{self.out_format.name}, n = {self.n}, k = {self.k}"
        )


@dataclass(frozen=True)
class Elementwise:
    """What is not a product, for arrays of any size. op, and its operands in order, the last one or two written:

    "vector_add"     x [N], y [N], d [N]
    "cast"           x [M, K], data [M, K], scales [M, ceil(K/128)]: scaled "1x128" as `kingpost.quantize` does
    "silu_mul_cast"  x [M, 2K], data [M, K], scales [M, ceil(K/128)]: the cast of silu(x[:, :K]) * x[:, K:]
    "relayout"       source, destination: float32 [M, B], equal but for their strides
    "dequantise"     data [M, K], scales [M, ceil(K/128)], d [M, K]

    formats: of each operand, by name. options: by name, "eps" and "power_of_two" of the two casts.
    """

    op: str
    formats: tuple[tuple[str, Format], ...]
    options: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        options = "".join(f", {name} = {value:g}" for name, value in self.options)
        return f"{self.op} of {', '.join(f'{name} {format.name}' for name, format in self.formats)}{options}"


AnyProblem = Problem | Elementwise


@dataclass(frozen=True)
class Operands:
    """The views of one call by the names of its problem's operands, in their order; `results` names those written."""

    views: dict[str, View]
    results: tuple[str, ...]

    def __getitem__(self, name: str) -> View:
        return self.views[name]

    @property
    def rows(self) -> int:
        """The extent by which a candidate is chosen: M."""
        return next(iter(self.views.values())).shape[0]

    def moved(self, move: Callable[[View], View]) -> Operands:
        """The same operands elsewhere."""
        return Operands({name: move(view) for name, view in self.views.items()}, self.results)


def product_operands(a: View, scale_a: View, b: View, scale_b: View, d: View) -> Operands:
    """The operands of a `Problem`."""
    return Operands({"a": a, "scale_a": scale_a, "b": b, "scale_b": scale_b, "d": d}, ("d",))


class Candidate(Protocol):
    """One way of a device to solve a problem."""

    @property
    def name(self) -> str: ...

    def microseconds(self, m: int) -> float:
        """How long `m` rows would take, by the device's own model."""

    def bind(self, operands: Operands) -> Any:
        """A launch of it; raises ValueError naming the operand that it cannot take."""


class Device(Protocol):
    """A target times an executor."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def keeps_calls(self) -> bool:
        """Whether a prepared call may be kept for the next time with the same pointers."""

    def candidates(self, problem: AnyProblem) -> Sequence[Candidate]:
        """Every way to solve the problem, empty if there is none."""

    def prepare(self, launch: Any) -> Callable[[int], None]:
        """The launch as a call that takes a stream's handle."""

    def stream(self, given: Any, torch_arrays: bool) -> int:
        """The handle of the stream that a caller gave, or works on."""

    def staged(self, operands: Operands, stream: int) -> Any:
        """A context manager: the operands, on this device for as long as it lasts, results copied back at its end."""


class EmulatedDevice(Device, Protocol):
    """A device that runs programs on the host, and can say what they are and should give."""

    @property
    def target(self) -> Target: ...

    def text(self, program: Program) -> str:
        """The program as the target's assembler takes it."""

    def model(self, a: ScaledTensor, b: ScaledTensor, out_dtype: Any) -> np.ndarray:
        """The product as the target's arithmetic gives it, computed without any program."""


class Family(Protocol):
    """Devices of one kind: those present, and one by what follows the colon in its name."""

    def present(self) -> Sequence[Device]: ...

    def find(self, which: str) -> Device:
        """The device "family:which" ("" without a colon); raises ValueError if there is none."""


class Named:
    """How devices print: `kp.devices()` is read by people."""

    name: str
    description: str

    def __repr__(self) -> str:
        return f"<{self.name}: {self.description}>"


class HostMemory(Named):
    """What devices that work on host arrays have in common."""

    keeps_calls = False  # a prepared call holds the arrays

    def stream(self, given: Any, torch_arrays: bool) -> int:
        if given is not None:
            raise ValueError(f"stream is {given!r}; None is wanted on a device without streams")
        return 0

    @contextmanager
    def staged(self, operands: Operands, stream: int) -> Iterator[Operands]:
        elsewhere = next((view.device for view in operands.views.values() if view.device != "cpu"), None)
        if elsewhere is not None:
            raise ValueError(f"an operand is on {elsewhere}; host memory is wanted on this device (use .to('cpu'))")
        yield operands


@functools.cache
def _entries() -> dict[str, EntryPoint]:
    """Where each family is to be found."""
    found = {name: EntryPoint(name, place, GROUP) for name, place in BUILT_IN.items()}
    for entry in entry_points(group=GROUP):
        if entry.name in found:
            raise ValueError(f"device family {entry.name!r} of {entry.value} is taken; another name is wanted")
        found[entry.name] = entry
    return found


@functools.cache
def _family(name: str) -> Family:
    """Loaded when it is asked for, so that a package which cannot be imported takes no other device with it."""
    entry = _entries()[name]
    try:
        return cast(Family, entry.load())
    except (ImportError, AttributeError) as error:
        raise RuntimeError(f"device family {name!r}, {entry.value}, cannot be loaded: {error}") from error


def devices() -> list[Device]:
    """Every device present on this machine."""
    return [device for name in _entries() for device in _family(name).present()]


def emulator(target: str) -> EmulatedDevice:
    """The device "emulated:TARGET"; raises ValueError saying what there is."""
    return cast(EmulatedDevice, find(f"emulated:{target}"))


def find(device: str | Device) -> Device:
    """The device of that name, "cpu", "cuda:0", "emulated:sm_90a", torch's of that name, or the one given. Raises
    ValueError saying what there is."""
    if isinstance(device, str) or type(device).__module__ == "torch":
        return _find(str(device))
    if not hasattr(device, "candidates"):
        raise _unknown(device)
    return device


@functools.lru_cache(maxsize=256)
def _find(name: str) -> Device:
    family, _, which = name.partition(":")
    if family not in _entries():
        raise _unknown(name)
    return _family(family).find(which)


def _unknown(device: object) -> ValueError:
    present = ", ".join(repr(each.name) for each in devices())
    return ValueError(f"device is {device!r}; one of {present} is wanted")
