"""The tensor memory accelerator: boxes of tensors between global and shared memory, asynchronously.

Loads fill what lies outside the tensor with zeros and count the whole box on an mbarrier; stores drop it. The swizzle
applies to absolute shared addresses (PTX ISA, "Tensors" and "cp.async.bulk.tensor").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kingpost.emulate import ASYNC, Action, Block, Wait, Warp
from kingpost.emulate.memory import IN_FLIGHT
from kingpost.emulate.order import Knowledge
from kingpost.formats import canonical_nan
from kingpost.program import TensorMap, swizzle
from kingpost.targets.nvidia.units.clusters import peer
from kingpost.targets.nvidia.units.mbarrier import Mbarriers


@dataclass(eq=False)
class _Store:
    """A bulk store: what whoever waits learns of its read and of its write, once they have happened."""

    read: Knowledge | None = None
    written: Knowledge | None = None


@dataclass
class _Groups:
    """One thread's bulk stores: those not yet committed, and the committed groups in order."""

    open: list[_Store] = field(default_factory=list)
    committed: list[list[_Store]] = field(default_factory=list)


class BulkCopies:
    """A block's bulk tensor copies."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.groups: dict[tuple[int, int], _Groups] = {}

    def load(
        self,
        warp: Warp,
        destination: int,
        map_address: int,
        origin: tuple[int, ...],
        barrier: int,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Copy the box at `origin` (elements, outermost first) to `destination`; then count its bytes on `barrier`.

        ranks: of the blocks of the cluster that get it, at these addresses; None: the warp's own alone.
        """
        tensor, bytes = self._map(warp, map_address, destination)
        addresses = _box_addresses(tensor, destination)
        for block in [self.block] if ranks is None else [peer(warp, self.block, rank) for rank in ranks]:
            block.unit(Mbarriers).engine_state(warp, barrier)
            block.shared.mark(addresses, IN_FLIGHT, warp)

            def perform(action: Action, to: Block = block) -> None:
                if to is not self.block:
                    to.visit(action)
                to.shared.write(addresses, self._read_box(tensor, origin, action), action, ASYNC)
                to.unit(Mbarriers).complete(action, barrier, bytes)

            self._submit(warp, f"bulk load into {block.shared.describe(destination)}", perform)

    def store(self, warp: Warp, map_address: int, origin: tuple[int, ...], source: int, add: bool = False) -> None:
        """Copy a box from `source` to the tensor at `origin` (elements, outermost first), in the open group; or add it,
        float32, to what is there."""
        tensor, _ = self._map(warp, map_address, source)
        entry = _Store()
        self._thread(warp).open.append(entry)
        name = f"bulk store from {self.block.shared.describe(source)}"

        def read(action: Action) -> None:
            values = self.block.shared.read(_box_addresses(tensor, source), action, ASYNC)
            entry.read = action.clock.release()

            def write(later: Action) -> None:
                at, inside = _view_addresses(tensor, origin)
                if inside.any():
                    stored = values[inside]
                    if add:
                        stored = _added(self.block.memory.peek(at[inside], later), stored)
                    self.block.memory.write(at[inside], stored, later, ASYNC, adds=add)
                entry.written = later.clock.release()

            self._submit(warp, name, write, shared=False)

        self._submit(warp, name, read)

    def commit(self, warp: Warp) -> None:
        groups = self._thread(warp)
        groups.committed.append(groups.open)
        groups.open = []

    def wait(self, warp: Warp, left: int, reads_only: bool) -> Wait:
        """Until at most `left` of the thread's newest groups are pending (reads_only: have yet to read)."""
        committed = self._thread(warp).committed
        waited = [entry for group in committed[: max(len(committed) - left, 0)] for entry in group]

        def learnt() -> list[Knowledge | None]:
            return [entry.read if reads_only else entry.written for entry in waited]

        def passed() -> None:
            for knows in learnt():
                if knows is not None:
                    warp.clock.acquire(knows)

        return Wait(
            lambda: all(knows is not None for knows in learnt()),
            lambda: f"bulk stores: {sum(knows is None for knows in learnt())} are pending",
            passed,
        )

    def _submit(self, warp: Warp, name: str, perform: Callable[[Action], None], shared: bool = True) -> None:
        self.block.submit(name, None, warp.source, perform, shared)

    def _read_box(self, tensor: TensorMap, origin: tuple[int, ...], action: Action) -> np.ndarray:
        at, inside = _view_addresses(tensor, origin)
        box = np.zeros(at.shape, np.uint8)
        if inside.any():
            box[inside] = self.block.memory.read(at[inside], action, ASYNC)
        return box

    def _thread(self, warp: Warp) -> _Groups:
        return self.groups.setdefault((warp.index, int(warp.active.argmax())), _Groups())

    def _map(self, warp: Warp, map_address: int, shared_address: int) -> tuple[TensorMap, int]:
        if warp.active.sum() != 1:
            warp.fail("bulk copy", f"issued by {int(warp.active.sum())} lanes, each a copy of its own; one is wanted")
        tensor: TensorMap = self.block.tensor_map(map_address)
        if shared_address % 128:
            warp.fail("misaligned", f"bulk tensor copy at shared address {shared_address}; a multiple of 128 is wanted")
        return tensor, tensor.type.bytes


def _added(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The sums of float32 numbers, given and returned as bytes."""
    with np.errstate(over="ignore", invalid="ignore"):
        return canonical_nan(x.view(np.float32) + y.view(np.float32)).view(np.uint8)


def _box_addresses(tensor: TensorMap, base: int) -> np.ndarray:
    """The shared address of every byte of a box: [rows, row bytes], rows in order."""
    linear = base + np.arange(tensor.type.bytes)
    return swizzle(linear, tensor.type.swizzle).reshape(-1, tensor.type.row_bytes)


def _indices(tensor: TensorMap, origin: tuple[int, ...]) -> list[np.ndarray]:
    """The tensor indices of a box along each dimension; coordinates are signed."""
    starts = [o - (1 << 32) if o >= 1 << 31 else o for o in origin]
    return [start + np.arange(side) for start, side in zip(starts, tensor.type.box)]


def _view_addresses(tensor: TensorMap, origin: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The global address of every byte of a box, and whether it lies inside the tensor: [rows, row bytes] each."""
    view, itemsize = tensor.view, tensor.view.format.itemsize
    address: np.ndarray = np.zeros((), np.int64)
    inside: np.ndarray = np.ones((), bool)
    for index, size, stride in zip(_indices(tensor, origin), view.shape, view.strides):
        address = address[..., None] + index * stride
        inside = inside[..., None] & (index >= 0) & (index < size)
    bytes = view.pointer + address[..., None] + np.arange(itemsize)
    shape = (-1, tensor.type.row_bytes)
    return bytes.reshape(shape), np.broadcast_to(inside[..., None], bytes.shape).reshape(shape)
