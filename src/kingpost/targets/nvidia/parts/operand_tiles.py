"""A bfloat16 operand's tiles in the slots of a ring, whichever of its dimensions is contiguous in memory."""

from __future__ import annotations

from kingpost.formats import BF16
from kingpost.program import Builder, Operand, Register, TensorMapType
from kingpost.targets.nvidia.isa.common import bulk_load_3d
from kingpost.targets.nvidia.isa.hopper import matrix_descriptor

BLOCK_K = 64  # elements of K in a slot
STEP_K = 16  # of one wgmma
ROW_BYTES = BLOCK_K * BF16.itemsize  # that a row of M or N takes in a slot, whatever its layout


class OperandTiles:
    """Tiles of `rows` rows of M or N and BLOCK_K of K. Parameter: `name`, a tensor map.

    major "k": over [planes, rows, K]; a tile is rows of K. "mn": over [planes, K, rows]; a tile is boxes of 64 rows, or
    of all where there are fewer, each lines of K. loaded: how many of the rows are loaded, if not all.
    """

    def __init__(self, k: Builder, name: str, stages: int, rows: int, major: str, loaded: int | None = None) -> None:
        loaded = rows if loaded is None else loaded
        self.k, self.major, self.bytes = k, major, loaded * ROW_BYTES
        if major == "k":
            self.width, self.span, box, kept = rows, ROW_BYTES, (loaded, BLOCK_K), (rows, BLOCK_K)
        else:
            self.width = min(rows, ROW_BYTES // BF16.itemsize)
            self.span, box = self.width * BF16.itemsize, (BLOCK_K, self.width)
            kept = box
            if loaded != rows:
                raise ValueError(f"{name} is MN-major, and {loaded} of {rows} rows are loaded; all are wanted")
        if rows % self.width:
            raise ValueError(f"{name} is MN-major, in tiles of {rows} rows; a multiple of {self.width} is wanted")
        self.type = TensorMapType(BF16, (1, *box), self.span)
        self.map = k.tensor_map(name, BF16, self.type.box, self.span)
        self.shared = k.shared(f"{name}_tiles", (stages, rows // self.width, *kept), BF16, self.span)

    @property
    def step_bytes(self) -> int:
        """From one step of K to the next."""
        return STEP_K * (BF16.itemsize if self.major == "k" else self.span)

    def load(self, slot: Register, plane: Operand, row: Register, depth: Register, full: Register) -> None:
        """Copy the tile at (row, depth) of a plane to a slot, counting its bytes on `full`; by one thread."""
        k, to = self.k, self.shared.at(slot)
        if self.major == "k":
            bulk_load_3d(k, to, self.map.register, plane, row, depth, full, type=self.type)
            return
        for i in range(self.shared.shape[1]):
            place, along = to + i * self.type.bytes, row + i * self.width
            bulk_load_3d(k, place, self.map.register, plane, depth, along, full, type=self.type)

    def descriptor(self, place: Register, offset: int) -> Register:
        """Of the operand of a step that begins at `place` + `offset` bytes."""
        if self.major == "k":
            return matrix_descriptor(self.k, place, offset=offset)
        span, leading = self.span, self.type.bytes
        return matrix_descriptor(self.k, place, offset=offset, stride=8 * span, swizzle=span, leading=leading)
