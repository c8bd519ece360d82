"""What there is to check: the cases of every emulated target, a product of any shape, and what a user's file gives."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kingpost import formats, ops, quantization, reference, registry
from kingpost.checker.check import cased
from kingpost.formats import BF16
from kingpost.registry import Case, Trial

__all__ = ["Case", "Trial", "cases", "find"]

ALL = "all"
DEFAULT_TARGET = "sm_90a"  # of a shape
SHAPE = re.compile(r"\d+(?:x\d+)+")


def cases(target: str | None = None) -> list[Case]:
    """Every kernel in the repository with its operands, on every target or one."""
    devices = [each for each in registry.emulators() if target in (None, each.target.name)]
    if target is not None and not devices:
        registry.emulator(target)  # raises, and says what there is
    return [case for device in devices for case in device.cases()]


def find(what: str, target: str | None = None, seed: int = 0) -> list[Case]:
    """The cases that `what` names: "all", a shape "MxNxK", "file.py::function", a kernel, or how case names begin.

    target: of kernels, only those for it; of a shape, the one whose planner chooses (default "sm_90a"). seed: draws a
    shape's operands. Raises ValueError if there are none.
    """
    if what == ALL:
        return cases(target)
    if SHAPE.fullmatch(what):
        return [_product(what, target or DEFAULT_TARGET, seed)]
    if "::" in what:
        return [_of_file(what, target)]
    known = cases(target)
    kernel = [case for case in known if case.kernel == what]
    found = kernel or [case for case in known if case.name.startswith(what)]
    if not found or not what:
        raise ValueError(_unknown(what, target, sorted({case.kernel for case in known})))
    return found


def _unknown(what: str, target: str | None, kernels: list[str]) -> str:
    where = f" for {target}" if target else ""
    near = difflib.get_close_matches(what, kernels, 1)
    meant = f" (is {near[0]!r} meant?)" if near else ""
    return (
        f"{what!r} is no kernel{where}{meant}; wanted {', '.join(kernels)}, how the name of a case begins, "
        "a shape such as 77x136x400, file.py::function, or all"
    )


# A product


def _product(what: str, target: str, seed: int) -> Case:
    """[M, K] @ [K, N] of scaled float8, by the program that the target's planner chooses."""
    shape = [int(size) for size in what.split("x")]
    if len(shape) != 3 or 0 in shape:
        raise ValueError(f"the shape is {what}; M x N x K of at least 1 each, as in 77x136x400, is wanted")
    m, n, k = shape
    make = partial(_product_trial, m, n, k, target, seed)
    return Case(what, make().launch.program.name, target, make)


def _product_trial(m: int, n: int, k: int, target: str, seed: int) -> Trial:
    device, random = registry.emulator(target), np.random.default_rng(seed)
    a, weight = (random.standard_normal((rows, k), dtype=np.float32) for rows in (m, n))
    a *= np.exp2(random.integers(-8, 9, (m, 1))).astype(np.float32)  # so that a scale of the wrong row shows
    float8 = device.target.float8
    left = quantization.quantize(a, "1x128", format=float8)
    right = quantization.quantize(weight, "128x128", format=float8).T
    d = np.full((m, n), np.nan, BF16.dtype)
    launch = ops.launch_mm(left, right, d, device)

    def wrong() -> str | None:
        model = device.model(left, right, BF16)
        differing = np.count_nonzero(d.view(np.uint16) != model.view(np.uint16))
        if differing:
            return f"{differing} of {d.size} values differ from the arithmetic model's"
        error = np.abs(formats.decode(d, dtype=np.float64) - reference.truth(left, right))
        beyond = np.count_nonzero(error > reference.bound(left, right, BF16))
        return f"{beyond} of {d.size} values are farther from the float64 truth than allowed" if beyond else None

    return Trial(launch, wrong)


# A user's file


def _of_file(what: str, target: str | None) -> Case:
    """What a function without arguments returns: a Launch, a Case, a Trial, or a Program and a dict of what
    `kingpost.checker.check` takes besides."""
    file, _, name = what.rpartition("::")
    function = getattr(_module(Path(file)), name, None)
    if not callable(function):
        raise ValueError(f"{file} has no function {name!r}")
    if any(each.default is each.empty for each in _plain_parameters(function)):
        raise ValueError(f"{what} wants arguments; a function without is wanted")
    given = function()
    program, more = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    try:
        case = cased(program, name=what, **more)
    except TypeError as error:
        raise TypeError(f"{what} returned something else: {error}") from error
    if target not in (None, case.target):
        raise ValueError(f"{what} is for {case.target}, not for {target}")
    return case


def _plain_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def _module(file: Path) -> Any:
    """The file imported as a script would be, its folder on the path."""
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    name = f"kingpost_checked_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))
    spec.loader.exec_module(module)
    return module
