"""The fifth-generation tensor core: products and copies into tensor memory, issued by one thread, performed in order.

They are asynchronous: operands in shared memory, and tensor memory, are touched at any time until a commit that the
same thread issued later arrives at its mbarrier (PTX ISA, "TensorCore 5th Generation Family Instructions").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kingpost.emulate import ASYNC, Action, Block, Warp
from kingpost.formats import Format
from kingpost.program import swizzle
from kingpost.targets.nvidia.blackwell_arithmetic import STEP_BYTES, tcgen05_f32
from kingpost.targets.nvidia.units.mbarrier import Mbarriers
from kingpost.targets.nvidia.units.tensor_memory import ALL_LANES, Flight, TensorMemory

QUADRANTS = 4  # of 32 lanes, which hold the same scales
_SPANS = {0: 0, 2: 128, 4: 64, 6: 32}  # bytes of swizzle, by the code in a shared-memory descriptor


class Scales(NamedTuple):
    """Where an operand's scales are in tensor memory, and which byte of each cell is meant."""

    address: int
    byte: int


@dataclass(frozen=True, eq=False)
class Product:
    """d[m, n] = a[m, step] b[n, step]^T (+ d), one step of 32 bytes of K: a tensor-memory address, shared-memory
    descriptors, formats. disabled: the lanes of d that are left as they are, bool [128]."""

    kind: str
    m: int
    n: int
    d: int
    a: int
    b: int
    accumulate: bool
    a_format: Format
    b_format: Format
    scales: tuple[Scales, Scales] | None = None
    disabled: np.ndarray | None = None


class Tcgen05:
    """A block's tensor core, as its threads see it: one queue for each that issues."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.memory = block.unit(TensorMemory)

    def multiply(self, warp: Warp, product: Product) -> None:
        rows = np.arange(product.m)
        if product.disabled is not None:
            rows = rows[~product.disabled[accumulator_lanes(product.m)]]
        memory, name = self.memory, f"an mma ({product.kind})"
        d = memory.place(warp, product.d, accumulator_lanes(product.m)[rows], product.n)
        result = memory.fly(warp, name, self._queue(warp), d, writes=True)
        scales = []
        for rows_of, each in zip((product.m, product.n), product.scales or ()):
            place = memory.place(warp, each.address, ALL_LANES, -(-rows_of // 32))
            scales.append(memory.fly(warp, name, self._queue(warp), place, writes=False))

        def perform(action: Action) -> None:
            a = self._operand(action, product.a, product.m, product.a_format)[rows]
            b = self._operand(action, product.b, product.n, product.b_format)
            c = memory.read(action, result).view(np.float32) if product.accumulate else None
            read = [
                self._scales(action, flight, each.byte)
                for flight, each in zip(scales, product.scales or (), strict=True)
            ]
            a_scales, b_scales = (read[0][rows], read[1][: product.n]) if read else (None, None)
            products = tcgen05_f32(a, b, c, product.a_format, product.b_format, a_scales, b_scales)
            memory.write(action, result, products.view(np.uint32))

        self._submit(warp, f"tcgen05.mma ({product.kind})", perform)

    def copy_scales(self, warp: Warp, address: int, descriptor: int) -> None:
        """32 lanes x 128 bits from shared memory to four columns, the same in all four quadrants of lanes."""
        place = self.memory.place(warp, address, ALL_LANES, 4)
        flight = self.memory.fly(warp, "a tcgen05.cp", self._queue(warp), place, writes=True)

        def perform(action: Action) -> None:
            addresses = operand_addresses(descriptor, 32)[:, :16]
            cells = self.block.shared.read(addresses, action, ASYNC).view("<u4")  # [32, 4]
            self.memory.write(action, flight, np.tile(cells, (QUADRANTS, 1)))

        self._submit(warp, "tcgen05.cp", perform)

    def commit(self, warp: Warp, barrier: int) -> None:
        """Arrive once at an mbarrier when everything that this thread has issued so far is done."""
        barriers, queue = self.block.unit(Mbarriers), self._queue(warp)
        barriers.engine_state(warp, barrier)
        seen = self.memory.seen_by(warp).copy()
        waited: list[Flight] = [flight for flight in self.memory.flights if flight.queue == queue]

        def perform(action: Action) -> None:
            self.memory.land(waited)
            self.memory.hand_on(action, seen)  # a commit stands for tcgen05.fence::before_thread_sync
            barriers.arrive(action, barrier, 1)

        self._submit(warp, "tcgen05.commit", perform)

    def _queue(self, warp: Warp) -> tuple[str, int, int]:
        if warp.active.sum() != 1:
            warp.fail("tcgen05", f"issued by {int(warp.active.sum())} lanes, each on its own; one is wanted")
        return "tcgen05", warp.index, int(warp.active.argmax())

    def _submit(self, warp: Warp, name: str, perform: Callable[[Action], None]) -> None:
        source = warp.source
        self.block.submit(f"{name} of warp {warp.index}", self._queue(warp), source, perform)

    def _operand(self, action: Action, descriptor: int, rows: int, format: Format) -> np.ndarray:
        """Codes [rows, 32 bytes of K]."""
        bytes = self.block.shared.read(operand_addresses(descriptor, rows), action, ASYNC)
        return bytes.view(f"<u{format.itemsize}")

    def _scales(self, action: Action, flight: Flight, byte: int) -> np.ndarray:
        """Row r's scale is byte `byte` of lane r mod 32, column r / 32; uint8 [32 x columns, 1]."""
        cells = self.memory.read(action, flight).reshape(QUADRANTS, 32, -1)
        if not (cells == cells[0]).all():
            action.fail("tcgen05", f"the scales in {flight.place} differ between the four quadrants of 32 lanes")
        return (cells[0].T.reshape(-1, 1) >> np.uint32(8 * byte)).astype(np.uint8)


def accumulator_lanes(m: int) -> np.ndarray:
    """The lane that each row of an accumulator is in: row r of 128 in lane r; of 64, 16 rows in each 32 lanes."""
    rows = np.arange(m)
    return rows if m == 128 else rows % 16 + rows // 16 * 32


def operand_addresses(descriptor: int, rows: int) -> np.ndarray:
    """Shared addresses [rows, 32] of the bytes of a K-major operand of one step.

    Descriptor fields (PTX ISA, "tcgen05: shared memory descriptor"): bits 13:0 start address / 16, 29:16 leading byte
    offset / 16, 45:32 stride byte offset / 16, 47:46 the version, 1; 63:61 swizzle (0 none, 2 128, 4 64, 6 32 bytes).
    """
    start, leading, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    span = _SPANS[descriptor >> 61]
    row, byte = np.arange(rows)[:, None], np.arange(STEP_BYTES)[None, :]
    if span == 0:  # 8-row groups of 16-byte rows; the two 16-byte halves of K lie `leading` apart
        return start + row // 8 * stride + row % 8 * 16 + byte // 16 * leading + byte % 16
    return swizzle(start + row // 8 * stride + row % 8 * span + byte, span)
