"""Running the checks on a device, and what comes of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kingpost import formats, ops, plan, registry
from kingpost.formats import E4M3, E4M3FNUZ, Format

Array = np.ndarray[Any, Any]
PASSED, FAILED, NOT_OFFERED = "passed", "failed", "not offered"


class Failure(Exception):
    """What a check found wrong, as a sentence."""


@dataclass(frozen=True)
class Subject:
    """The device under test, and the e4m3 that it computes with."""

    device: registry.Device
    float8: Format


@dataclass(frozen=True)
class Check:
    """group, name: what a person reads. required: whether a device may do without what it checks."""

    group: str
    name: str
    required: bool
    examine: Callable[[Subject], None]


@dataclass(frozen=True)
class Result:
    """What came of a check. detail: the failure, or what the device said it does not offer."""

    group: str
    name: str
    required: bool
    verdict: str
    detail: str
    seconds: float

    @property
    def good(self) -> bool:
        """Passed, or not offered where that is allowed."""
        return self.verdict == PASSED or (self.verdict == NOT_OFFERED and not self.required)


def run(device: str | registry.Device) -> list[Result]:
    """Every check on a device, itself or its name, on arrays of the host. Raises ValueError if none has that name."""
    from kingpost.conformance import elementwise, errors, products

    chosen = registry.find(device)
    subject = Subject(chosen, _float8(chosen))
    checks = (*elementwise.CHECKS, *products.CHECKS, *errors.CHECKS)
    return [_result(check, subject) for check in checks]


def passed(results: Iterable[Result]) -> bool:
    """The verdict on the device."""
    return all(result.good for result in results)


def _float8(device: registry.Device) -> Format:
    """The e4m3 that the device casts to: asked for by trying, as any user would find out."""
    for format in (E4M3, E4M3FNUZ):
        try:
            ops.cast(np.ones((1, 128), np.float32), format=format, device=device)
            return format
        except Exception:
            continue
    return E4M3


def _result(check: Check, subject: Subject) -> Result:
    began, verdict, detail = time.perf_counter(), PASSED, ""
    try:
        check.examine(subject)
    except plan.Unsupported as refusal:
        verdict, detail = NOT_OFFERED, str(refusal)
    except Failure as failure:
        verdict, detail = FAILED, str(failure)
    except Exception as error:
        verdict, detail = FAILED, f"{type(error).__name__}: {error}"
    return Result(check.group, check.name, check.required, verdict, detail, time.perf_counter() - began)


def check(checks: list[Check], group: str, name: str, required: bool = False) -> Callable[[Any], Any]:
    """Append the decorated function to `checks`. It returns if all is well, and raises Failure if not."""

    def decorate(examine: Callable[[Subject], None]) -> Callable[[Subject], None]:
        checks.append(Check(group, name, required, examine))
        return examine

    return decorate


def expect_bits(what: str, got: Array, want: Array) -> None:
    """Raises Failure, with the first place, unless the bits are equal; a NaN is equal to any other."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        raise Failure(f"{what}: {got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}")
    size = f"u{want.itemsize}"
    left, right = (formats.decode(x, dtype=np.float64) for x in (got, want))
    differ = np.ascontiguousarray(got).view(size) != np.ascontiguousarray(want).view(size)
    differ &= ~(np.isnan(left) & np.isnan(right))
    _fail_where(what, differ, left, right)


def expect_within(what: str, got: Array, want: Array, allowed: Array) -> None:
    """Raises Failure, with the first place, where `got` is farther than `allowed` from `want`, or NaN."""
    values = formats.decode(got, dtype=np.float64)
    _fail_where(what, ~(np.abs(values - want) <= allowed), values, want)


def _fail_where(what: str, wrong: Array, got: Array, want: Array) -> None:
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        count = f"{np.count_nonzero(wrong)} of {wrong.size}"
        raise Failure(f"{what}: {count} values are wrong, first {place}: {got[place]:.9g} instead of {want[place]:.9g}")


def expect_error(what: str, call: Callable[[], Any], naming: Sequence[str]) -> None:
    """Raises Failure unless the call raises TypeError or ValueError with each of these words in its message."""
    try:
        call()
    except (TypeError, ValueError) as error:
        missing = [word for word in naming if word not in str(error)]
        if missing:
            raise Failure(f"{what}: the message {str(error)!r} does not say {missing[0]!r}") from error
        return
    raise Failure(f"{what}: taken without an error")
