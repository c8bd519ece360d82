"""What a device is and which there are: built-in ones, and those that other packages bring.

A device is a target times an executor. It offers candidates for a problem; a candidate bound to operands is a launch;
prepared, a launch is a call that takes a stream. Packages bring devices through the entry-point group
`kingpost.devices`: an entry named "family" gives a `Family`, which serves the names "family" and "family:which".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

import numpy as np

from kingpost.arrays import View
from kingpost.formats import Format
from kingpost.program import Launch, Program, Target
from kingpost.scaling import ScaledTensor

GROUP = "kingpost.devices"
BUILT_IN = {
    "cpu": "kingpost.targets.cpu.device:FAMILY",
    "cuda": "kingpost.targets.nvidia.device:CUDA",
    "emulated": "kingpost.targets.emulated:FAMILY",
}


@dataclass(frozen=True)
class Problem:
    """A product D = A B^T, for any number of rows M. b is [N, K], as weights are kept; `n` and `k` are its sizes.

    op, and its operands in their order (those that the problem does without are left out):

    "mm"            a [M, K], scale_a, b [N, K], scale_b, c, bias, d [M, N]
    "tile_product"  the same for as many rows and columns as a block of a device takes at once
    "batched_mm"    a [B, M, K], scale_a, b [B, N, K], scale_b, c, bias, d [B, M, N]: a product for each index of B
    "summed_mm"     a [B, M, K], b [B, N, K], d [S, M, N]: sums of the products of consecutive indices of B, of
                    ceil(B / min(B, 32)) in each but the last; S is how many that makes
    "grouped_mm"    b [G, N, K], scale_b, and the groups of rows, int32 on the device, as `by` says:
                    "rows"    a [M, K], scale_a, b, scale_b, rows [M], c, bias, d [M, N]: each row's group, or -1
                    "ends"    the same with ends [G]: group g's rows are ends[g - 1] to ends[g]
                    "counts"  a [G, M, K], scale_a, b, scale_b, counts [G], c, bias, d [G, M, N]: the first counts[g] of
                              each group's rows
                    Rows of no group are not written.
    "grouped_mm_k"  a [M, K], scale_a, b [N, K], scale_b, ends [G], c, d [G, M, N]: d[g] is the sum over
                    ends[g - 1] to ends[g] of K. Each group starts a new block of scales, behind those of the last

    a_scaling, b_scaling: "1x128", "128x128", "row", "tensor" or "1x32:ue8m0", of a as [M, K] and b as [N, K]; None for
    formats without scales (then there is no scale_a, scale_b).
    a_major, b_major: the dimension of a, b whose elements are neighbours in memory: "k" or "mn".
    bias: the format of bias [N] ([G, N] or [B, N] where there are several b), None without. c: whether there is a c,
    of d's shape and format; in_place: it is d's own memory. alpha: whether the total is multiplied by the number
    "alpha".
    d = round(alpha * total + c + bias), each step in that order rounded to float32.
    """

    op: str
    n: int
    k: int
    a_format: Format
    b_format: Format
    a_scaling: str | None
    b_scaling: str | None
    out_format: Format
    order: str = "ascending"
    by: str | None = None
    groups: int = 1  # B or G
    a_major: str = "k"
    b_major: str = "k"
    c: bool = False
    bias: Format | None = None
    alpha: bool = False
    in_place: bool = False

    def __str__(self) -> str:
        a, b = (
            format.name + (f" {scaling!r}" if scaling else "") + (" (M or N contiguous)" if major == "mn" else "")
            for format, scaling, major in (
                (self.a_format, self.a_scaling, self.a_major),
                (self.b_format, self.b_scaling, self.b_major),
            )
        )
        more = [
            f"{self.groups} groups" * (self.groups > 1),
            f"by {self.by}" if self.by else "",
            ("added to d" if self.in_place else "c added") * self.c,
            f"a bias of {self.bias.name} added" if self.bias else "",
            "times alpha" * self.alpha,
        ]
        return f"{self.op} of {a} by {b} into {self.out_format.name}, n = {self.n}, k = {self.k}" + "".join(
            f", {each}" for each in more if each
        )


@dataclass(frozen=True)
class Elementwise:
    """What is not a product, for arrays of any size. op, and its operands in order, the last one or two written:

    "vector_add"       x [N], y [N], d [N]
    "cast"             x [M, K], data [M, K], scales: as `kingpost.quantize` does, by option "scaling": "1x128" (scales
                       [M, ceil(K/128)]) or "128x128" ([ceil(M/128), ceil(K/128)])
    "transposed_cast"  x [K, M], ends [G] or left out, data [M, K], scales [M, blocks]: scaled "1x128" along K, every
                       group of K (ends[g - 1] to ends[g]) starting a new block
    "silu_mul_cast"    x [M, 2K], data [M, K], scales [M, ceil(K/128)]: the cast of silu(x[:, :K]) * x[:, K:]
    "masked_silu_mul_cast"  x [G, M, 2K], counts [G], data [G, M, K], scales [G, M, ceil(K/128)]: the same, of the
                       first counts[g] rows of each g
    "relayout"         source, destination: float32 [M, B], equal but for their strides
    "transpose"        source [R, C], destination [C, R]: uint8
    "dequantise"       data [M, K], scales [M, ceil(K/128)], d [M, K]
    "add_slices"       x [S, M, N], c [M, N] or left out, d [M, N]: c and the slices added in float32, slice 0 first

    formats: of each operand, by name. options: by name, those of the casts: "eps", "power_of_two",
    "reciprocal_maximum", "reciprocal_scale" and, of "cast", "scaling".
    """

    op: str
    formats: tuple[tuple[str, Format], ...]
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        options = "".join(f", {name} = {value}" for name, value in self.options)
        return f"{self.op} of {', '.join(f'{name} {format.name}' for name, format in self.formats)}{options}"


AnyProblem = Problem | Elementwise


@dataclass(frozen=True)
class Operands:
    """The views of one call by the names of its problem's operands, in their order; `results` names those written.

    rows: the extent by which a candidate is chosen: M, of groups what is expected of each. numbers: "alpha".
    """

    views: dict[str, View]
    results: tuple[str, ...]
    rows: int
    numbers: tuple[tuple[str, float], ...] = ()

    def __getitem__(self, name: str) -> View:
        return self.views[name]

    def get(self, name: str) -> View | None:
        return self.views.get(name)

    def moved(self, move: Callable[[View], View]) -> Operands:
        """The same operands elsewhere."""
        return replace(self, views={name: move(view) for name, view in self.views.items()})


def product_operands(a: View, scale_a: View, b: View, scale_b: View, d: View) -> Operands:
    """The operands of a plain "mm"."""
    return Operands({"a": a, "scale_a": scale_a, "b": b, "scale_b": scale_b, "d": d}, ("d",), a.shape[0])


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


@dataclass(frozen=True, eq=False)
class Trial:
    """A launch, and what is wrong with its results after a run: a sentence, or None."""

    launch: Launch
    wrong: Callable[[], str | None]


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel with operands, for whoever checks kernels.

    name: unique, the kernel's name first: "sm90_fp8: rows, 64x128". kernel: the program's name. target: "sm_90a".
    make: a trial with fresh operands, small and always the same. mutants: whether every decision of the program counts
    in it (rings turn, barriers are used again), so that mutants of the program can be told from it. harmless: why some
    mutants do no harm to this program, which no rule in code proves, by class and file as in "delete bar.sync,
    epilogue.py".
    """

    name: str
    kernel: str
    target: str
    make: Callable[[], Trial]
    mutants: bool = True
    harmless: Mapping[str, str] = field(default_factory=dict)


class EmulatedDevice(Device, Protocol):
    """A device that runs programs on the host, and can say what they are and should give."""

    @property
    def target(self) -> Target: ...

    def cases(self) -> Sequence[Case]:
        """Every kernel for the target, with operands that show whether it is right."""

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


def emulators() -> list[EmulatedDevice]:
    """Every device that runs programs on the host and has cases of its kernels, built-in or another package's."""
    return [cast(EmulatedDevice, device) for device in devices() if hasattr(device, "cases")]


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
