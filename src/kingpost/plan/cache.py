"""The call path's memory: a plan for each problem and device, below it the latest prepared calls by pointers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from kingpost.plan.choice import Plan
from kingpost.registry import AnyProblem, Device, Operands

CALLS_KEPT = 256  # for each problem and device
CALLS_REMEMBERED = 4096
PLANS_KEPT = 4096  # a K that is a number of tokens makes a new problem at almost every call

_Key = tuple[object, ...]


class Planned:
    """A plan and the calls prepared from it. Threads may share it."""

    def __init__(self, problem: AnyProblem, device: Device) -> None:
        self.plan, self.device = Plan(problem, device), device
        self.calls: OrderedDict[_Key, Callable[[int], None]] = OrderedDict()
        self.lock = threading.Lock()

    def call(self, operands: Operands) -> Callable[[int], None]:
        """The launch for these operands, prepared; a kept one if pointers, sizes and strides are those of before."""
        if not self.device.keeps_calls:
            return self._prepare(operands)
        key = (
            *[(view.pointer, view.shape, view.strides) for view in operands.views.values()],
            operands.rows,
            operands.numbers,
        )
        with self.lock:
            call = self.calls.get(key)
            if call is not None:
                self.calls.move_to_end(key)
                return call
        call = self._prepare(operands)
        with self.lock:
            self.calls[key] = call
            if len(self.calls) > CALLS_KEPT:
                self.calls.popitem(last=False)
        return call

    def _prepare(self, operands: Operands) -> Callable[[int], None]:
        return self.device.prepare(self.plan.candidate(operands.rows).bind(operands))


_planned: dict[tuple[AnyProblem, Device], Planned] = {}
_remembered: dict[_Key, Callable[[int], None]] = {}


def planned(problem: AnyProblem, device: Device) -> Planned:
    """The plan of a problem on a device, made when it is first asked for."""
    key = (problem, device)
    found = _planned.get(key)
    if found is None:
        found = _planned.setdefault(key, Planned(problem, device))
        if len(_planned) > PLANS_KEPT:
            _planned.pop(next(iter(_planned)), None)
    return found


def run(problem: AnyProblem, operands: Operands, device: Device, stream: int) -> None:
    """Solve the problem on a device, from operands there or on the host, in the stream of that handle."""
    with device.staged(operands, stream) as placed:
        planned(problem, device).call(placed)(stream)


def remember(key: _Key, problem: AnyProblem, operands: Operands, device: Device) -> None:
    """Keep the call of a problem that was run, on a device that keeps them, as all there is to do for `key`."""
    _remembered[key] = planned(problem, device).call(operands)
    if len(_remembered) > CALLS_REMEMBERED:
        _remembered.pop(next(iter(_remembered)), None)


def recalled(key: _Key) -> Callable[[int], None] | None:
    """The call that was remembered, if it still is."""
    return _remembered.get(key)


def forget() -> None:
    """Drop every plan and prepared call."""
    _planned.clear()
    _remembered.clear()
