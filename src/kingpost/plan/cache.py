"""The call path's memory: a plan for each problem and device, below it the latest prepared calls by pointers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from kingpost.plan.choice import Plan
from kingpost.registry import Device, Operands, Problem

CALLS_KEPT = 256  # for each problem and device

_Key = tuple[object, ...]


class Planned:
    """A plan and the calls prepared from it. Threads may share it."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.plan, self.device = Plan(problem, device), device
        self.calls: OrderedDict[_Key, Callable[[int], None]] = OrderedDict()
        self.lock = threading.Lock()

    def call(self, operands: Operands) -> Callable[[int], None]:
        """The launch for these operands, prepared; a kept one if pointers, sizes and strides are those of before."""
        if not self.device.keeps_calls:
            return self._prepare(operands)
        key = (operands.a.shape[0], *[(view.pointer, view.strides) for view in operands])
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
        return self.device.prepare(self.plan.candidate(operands.a.shape[0]).bind(operands))


_planned: dict[tuple[Problem, str], Planned] = {}


def planned(problem: Problem, device: Device) -> Planned:
    """The plan of a problem on a device, made when it is first asked for."""
    key = (problem, device.name)
    found = _planned.get(key)
    if found is None:
        found = _planned.setdefault(key, Planned(problem, device))
    return found


def forget() -> None:
    """Drop every plan and prepared call."""
    _planned.clear()
