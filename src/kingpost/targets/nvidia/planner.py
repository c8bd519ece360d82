"""Ways to solve a problem on sm_90a, and a simple model of how long each takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kingpost.formats import E4M3, Format
from kingpost.program import Launch, Program
from kingpost.registry import AnyProblem, Operands, Problem
from kingpost.targets.nvidia.kernels.sm90_fp8_block_scaled import BLOCK_K, sm90_fp8_block_scaled

TARGET = "sm_90a"
BARRIER_BYTES = 512  # set aside for barriers and alignment
FEWEST_STAGES, MOST_STAGES = 3, 8
LARGEST_EXTENT = 1 << 31  # bytes that the kernel's 32-bit offsets reach


@dataclass(frozen=True)
class Chip:
    """What the model knows of a chip."""

    multiprocessors: int = 132
    shared_bytes: int = 232448  # that a block may use
    memory_bytes: float = 4.3e6  # a microsecond, read and written by a product, on an H200


H200 = Chip()
LAUNCH_MICROSECONDS = 2.0


@dataclass(frozen=True)
class Tile:
    """How a block of the kernel is laid out; microseconds that it takes a tile for a K block, and for what comes once.

    The times were fitted to every tile on 15 shapes (bench/results/candidates_h200.json); the fit is within 13 %.
    """

    warpgroups: int
    subtiles: int
    columns: int
    block: float
    once: float

    @property
    def rows(self) -> int:
        return 64 * self.subtiles * self.warpgroups


TILES = (
    Tile(2, 2, 128, block=0.681, once=2.7),
    Tile(3, 1, 128, block=0.632, once=0.7),
    Tile(2, 1, 128, block=0.444, once=1.7),
    Tile(1, 1, 128, block=0.262, once=1.0),
    Tile(2, 1, 64, block=0.284, once=1.2),
    Tile(1, 1, 64, block=0.186, once=0.7),
    Tile(1, 1, 32, block=0.150, once=0.6),
    Tile(1, 1, 16, block=0.140, once=0.5),
)


@dataclass(frozen=True)
class BlockScaledCandidate:
    """The block-scaled fp8 kernel in one configuration, on one chip, for one problem."""

    problem: Problem
    chip: Chip
    tile: Tile
    stages: int
    buffers: int
    group: int = 8  # tile rows walked together

    @property
    def name(self) -> str:
        return f"{self.tile.rows}x{self.tile.columns}, {self.stages} stages, {self.buffers} buffers"

    @cached_property
    def program(self) -> Program:
        tile = self.tile
        return sm90_fp8_block_scaled(
            warpgroups=tile.warpgroups,
            subtiles=tile.subtiles,
            columns=tile.columns,
            stages=self.stages,
            buffers=self.buffers,
            group=self.group,
            out=self.problem.out_format,
        )

    def tiles(self, m: int) -> int:
        return -(-m // self.tile.rows) * -(-self.problem.n // self.tile.columns)

    def microseconds(self, m: int) -> float:
        """Waves of tiles, each a chain of K blocks and an epilogue; or the time to move every byte once."""
        n, k = self.problem.n, self.problem.k
        waves = -(-self.tiles(m) // self.chip.multiprocessors)
        moved = m * k + n * k + m * n * self.problem.out_format.itemsize
        chain = -(-k // BLOCK_K) * self.tile.block + self.tile.once
        return LAUNCH_MICROSECONDS + max(waves * chain, moved / self.chip.memory_bytes)

    def bind(self, operands: Operands) -> Launch:
        program, chip = self.program, self.chip
        (m, k), n = operands["a"].shape, operands["b"].shape[0]
        for name in ("a", "b"):
            view = operands[f"scale_{name}"]
            if min(view.strides) < 0 or view.extent()[1] >= LARGEST_EXTENT:
                raise ValueError(
                    f"{name}.scales have strides {view.strides} bytes over shape {view.shape}; strides of "
                    f"at least 0 and an extent below {LARGEST_EXTENT} bytes are wanted"
                )
        scale_a, scale_b = operands["scale_a"], operands["scale_b"]
        return Launch.of(
            program,
            min(self.tiles(m), chip.multiprocessors),
            m=m,
            n=n,
            k=k,
            a=operands["a"],
            b=operands["b"],
            d=operands["d"],
            scale_a=scale_a,
            scale_a_row_stride=scale_a.strides[0],
            scale_a_block_stride=scale_a.strides[1],
            scale_b=scale_b,
            scale_b_column_stride=scale_b.strides[0],
            scale_b_block_stride=scale_b.strides[1],
        )


def candidates(problem: AnyProblem, chip: Chip) -> list[BlockScaledCandidate]:
    """Every configuration that fits the chip's shared memory; none if no kernel computes the problem."""
    if not isinstance(problem, Problem):
        return []
    if (problem.op, problem.a_scaling, problem.b_scaling) != ("mm", "1x128", "128x128"):
        return []
    if (problem.a_format, problem.b_format, problem.order) != (E4M3, E4M3, "ascending"):
        return []
    found = []
    for tile in TILES:
        for buffers in range(tile.subtiles, 0, -1):
            stages = _stages(tile, buffers, problem.out_format, chip)
            if stages >= FEWEST_STAGES:  # fewer buffers only where that many have no room
                found.append(BlockScaledCandidate(problem, chip, tile, stages, buffers))
                break
    return found


def _stages(tile: Tile, buffers: int, out: Format, chip: Chip) -> int:
    """As many as fit beside the staging, each a tile of A, one of B and their scales."""
    room = chip.shared_bytes - BARRIER_BYTES - buffers * tile.warpgroups * 64 * tile.columns * out.itemsize
    stage = (tile.rows + tile.columns) * BLOCK_K + tile.rows * 4 + 16
    return min(MOST_STAGES, room // stage)
