"""Any launch over host arrays, run on a GPU: its arrays are copied there, and back when it is done."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kingpost import registry
from kingpost.arrays import View
from kingpost.formats import U8
from kingpost.program import Launch, TensorMap

ALIGNMENT = 256  # of device allocations; every array keeps its address modulo this


class _Region:
    """A stretch of host memory and its copy on the device."""

    def __init__(self, start: int, end: int, owner: object) -> None:
        from kingpost.targets.nvidia.driver import DeviceBuffer

        self.start, self.end = start, end
        self.host = View(start, (end - start,), (1,), U8, "cpu", owner).numpy()
        self.before = start % ALIGNMENT
        self.buffer = DeviceBuffer.holding(np.concatenate([np.zeros(self.before, np.uint8), self.host]))

    def moved(self, pointer: int) -> int:
        return self.buffer.pointer + self.before + pointer - self.start

    def copy_back(self) -> None:
        both = np.empty(self.before + len(self.host), np.uint8)
        self.buffer.read(both)
        self.host[...] = both[self.before :]


def run(launch: Launch, device: str = "cuda:0") -> None:
    """What `emulate.run` does, on a GPU, all blocks at once."""
    maps = [argument for argument in launch.arguments.values() if isinstance(argument, TensorMap)]
    views = [*(map.view for map in maps), *launch.views]
    regions = _regions(views)

    def moved(pointer: int) -> int:
        return next((r.moved(pointer) for r in regions if r.start <= pointer < r.end), pointer)

    def moved_view(view: View) -> View:
        return replace(view, pointer=moved(view.pointer), device=device, owner=None)

    arguments = {
        name: replace(value, view=moved_view(value.view)) if isinstance(value, TensorMap) else moved(value)
        for name, value in launch.arguments.items()
    }
    call = registry.find(device).prepare(Launch(launch.program, launch.grid, arguments))
    call(0)
    for region in regions:
        region.copy_back()


def _regions(views: list[View]) -> list[_Region]:
    """The memory of all views; overlapping ones share a region."""
    joined: list[list[int]] = []
    for start, size in sorted(view.extent() for view in views):
        if joined and start < joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], start + size)
        elif size:
            joined.append([start, start + size])
    return [_Region(start, end, views) for start, end in joined]
