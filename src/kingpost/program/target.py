"""What the virtual machine must know of the chip that a program is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kingpost.formats import E4M3, Format
from kingpost.program.memory import SharedArray
from kingpost.program.registers import Register, Registers

if TYPE_CHECKING:
    from kingpost.program.builder import Builder


@dataclass(frozen=True)
class Fragment:
    """A thread's share of a block's tile product: float32 `values`, value i at row `row + places[i][0]` and column
    `column + places[i][1]` of the tile."""

    values: Registers
    row: Register
    column: Register
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Target:
    """A chip: its name as the assembler knows it, the lanes of its warp (or wave), the e4m3 that it computes with.

    tile_product(k, a, b): a [rows, 128] and b [columns, 128], e4m3 in shared memory as `Builder.tile` declares them and
    written by any of the block's threads, multiplied from zero by all `tile_warps` warps of a block. They meet at a
    barrier before and after it has read a and b: from then on these may be written again.
    """

    name: str
    lanes: int = 32
    float8: Format = E4M3
    tile_warps: int = 0
    tile_swizzle: int = 0
    tile_product: Callable[[Builder, SharedArray, SharedArray], Fragment] | None = None
