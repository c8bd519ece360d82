"""Configurations of the fp8 kernel for a problem, and a simple model of how long each takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from kingpost.arrays import View
from kingpost.formats import BF16, E4M3, E5M2, F16, F32
from kingpost.program import Launch, Program
from kingpost.registry import Operands, Problem
from kingpost.targets.nvidia.chip import BARRIER_BYTES, LAUNCH_MICROSECONDS, Chip
from kingpost.targets.nvidia.kernels.sm90_fp8 import sm90_fp8
from kingpost.targets.nvidia.parts.binding import finish_arguments, in_planes, plane_stride, row_stride, scale_arguments
from kingpost.targets.nvidia.parts.block_tile import BlockTile
from kingpost.targets.nvidia.parts.finish import Finish
from kingpost.targets.nvidia.parts.groups import MOST_GROUPS, ByCounts, ByEnds, ByRows, OverK
from kingpost.targets.nvidia.parts.products import BLOCK_K
from kingpost.targets.nvidia.parts.scales import STEPS, Scales
from kingpost.targets.nvidia.parts.walk import Batched, Dense
from kingpost.targets.nvidia.parts.work import Walk

FEWEST_STAGES, MOST_STAGES = 3, 8
GROUP = 8  # tile rows walked together
A_SCALINGS, B_SCALINGS = {"1x128", "row", "tensor"}, {"1x128", "128x128", "row", "tensor"}
STEPPED = "1x32:ue8m0"


@dataclass(frozen=True)
class TimedTile:
    """A tile, and the microseconds that it takes for a K block, and for what comes once.

    The times of "1x128" by "128x128" were fitted to every tile on 15 shapes (bench/results/candidates_h200.json); the
    fit is within 13 %.
    """

    tile: BlockTile
    block: float
    once: float


BY_BLOCK = (
    TimedTile(BlockTile(2, 2, 128), block=0.681, once=2.7),
    TimedTile(BlockTile(3, 1, 128), block=0.632, once=0.7),
    TimedTile(BlockTile(2, 1, 128), block=0.444, once=1.7),
    TimedTile(BlockTile(1, 1, 128), block=0.262, once=1.0),
    TimedTile(BlockTile(2, 1, 64), block=0.284, once=1.2),
    TimedTile(BlockTile(1, 1, 64), block=0.186, once=0.7),
    TimedTile(BlockTile(1, 1, 32), block=0.170, once=0.6),
    TimedTile(BlockTile(1, 1, 16), block=0.140, once=0.5),
)
FEW_ROWS = tuple(
    TimedTile(BlockTile(1, 1, columns, loaded_rows=rows), block, once)
    for rows in (16, 32)  # the fewest first: where all are as fast by the model, they move least
    for columns, block, once in ((128, 0.26, 0.9), (64, 0.173, 0.6), (32, 0.163, 0.5), (16, 0.124, 0.4))
)
BY_COLUMN = (
    TimedTile(BlockTile(2, 1, 160), block=0.762, once=4.0),
    TimedTile(BlockTile(2, 1, 144), block=0.68, once=4.9),
    TimedTile(BlockTile(2, 1, 128), block=0.66, once=3.1),
    TimedTile(BlockTile(1, 1, 128), block=0.43, once=1.5),
    TimedTile(BlockTile(2, 1, 64), block=0.41, once=1.2),
    TimedTile(BlockTile(1, 1, 64), block=0.27, once=0.9),
    TimedTile(BlockTile(1, 1, 32), block=0.205, once=0.7),
    TimedTile(BlockTile(1, 1, 16), block=0.165, once=0.5),
)
BY_STEP = tuple(
    each for each in BY_COLUMN if each.tile.columns < 128
)  # two partial accumulators leave room for no more
WALKS: dict[str, Callable[[int], Walk]] = {
    "mm": Dense,
    "batched_mm": Batched,
    "rows": ByRows,
    "ends": ByEnds,
    "counts": ByCounts,
    "grouped_mm_k": OverK,
}


@dataclass(frozen=True)
class Fp8Candidate:
    """The fp8 kernel in one configuration, on one chip, for one problem."""

    problem: Problem
    chip: Chip
    timed: TimedTile
    stages: int
    buffers: int
    group: int = GROUP

    @property
    def tile(self) -> BlockTile:
        return self.timed.tile

    @property
    def name(self) -> str:
        return f"{self.tile}, {self.stages} stages, {self.buffers} buffers"

    @property
    def walk(self) -> Walk:
        return WALKS[_kind(self.problem)](self.group)

    @property
    def finish(self) -> Finish:
        problem = self.problem
        in_place = problem.in_place and not self.walk.partial
        return Finish(problem.out_format, problem.alpha, problem.c, problem.bias, in_place)

    @cached_property
    def program(self) -> Program:
        problem = self.problem
        return sm90_fp8(
            walk=self.walk,
            tile=self.tile,
            stages=self.stages,
            buffers=self.buffers,
            scales=scales_of(problem),
            finish=self.finish,
            a_format=problem.a_format,
            b_format=problem.b_format,
        )

    def microseconds(self, m: int) -> float:
        """Waves of tiles, each a chain of K blocks and an epilogue; or the time to move every byte once."""
        problem, groups = self.problem, self.problem.groups
        if m > self.tile.loaded_rows and not self.tile.whole:
            return float("inf")
        n, k = problem.n, problem.k
        depth = k / groups if problem.op == "grouped_mm_k" else k
        tiles = groups * -(-m // self.tile.loaded_rows) * -(-n // self.tile.columns)
        waves = -(-tiles // self.chip.multiprocessors)
        moved = (m * depth + n * depth + m * n * problem.out_format.itemsize) * groups
        chain = -(-depth // BLOCK_K) * self.timed.block + self.timed.once
        return LAUNCH_MICROSECONDS + max(waves * chain, moved / self.chip.memory_bytes)

    def bind(self, operands: Operands) -> Launch:
        problem, tile, walk = self.problem, self.tile, self.walk
        if operands["d"].shape[-2] > tile.loaded_rows and not (tile.whole or walk.partial):
            raise ValueError(
                f"a has {operands['a'].shape[-2]} rows; at most {tile.loaded_rows} are wanted by {self.name}"
            )
        a, b, d = (in_planes(operands[name]) for name in ("a", "b", "d"))
        tiles = walk.tiles(operands, tile.loaded_rows, tile.columns)
        arguments: dict[str, View | int | float] = {"a": a, "b": b, "d": d}
        if walk.partial:
            arguments |= {"d_plane_stride": plane_stride(d), "d_stride": row_stride(d)}
        for name in ("scale_a", "scale_b"):
            arguments |= scale_arguments(operands, name, getattr(problem, f"{name[-1]}_scaling"))
        arguments |= walk.arguments(operands) | finish_arguments(operands, self.finish)
        return Launch.of(self.program, min(tiles, self.chip.multiprocessors), **arguments)


def _kind(problem: Problem) -> str:
    """What decides how the work is walked over."""
    return problem.by or problem.op


def scales_of(problem: Problem) -> Scales:
    return Scales(problem.b_scaling not in ("128x128", "tensor"), problem.b_scaling == STEPPED)


def candidates(problem: Problem, chip: Chip) -> list[Fp8Candidate]:
    """Every configuration that fits the chip's shared memory; none if the kernel does not compute the problem."""
    if _kind(problem) not in WALKS or {problem.a_format, problem.b_format} - {E4M3, E5M2}:
        return []
    if (problem.a_major, problem.b_major) != ("k", "k") or problem.out_format not in (BF16, F16, F32):
        return []
    a, b = problem.a_scaling, problem.b_scaling
    if not (a in A_SCALINGS and b in B_SCALINGS) and not a == b == STEPPED:
        return []
    if _kind(problem) in ("ends", "counts", "grouped_mm_k") and problem.groups > MOST_GROUPS:
        return []
    if problem.op == "grouped_mm_k" and not a == b == "1x128":
        return []
    scales = scales_of(problem)
    found = []
    for timed in BY_STEP if scales.steps else BY_COLUMN if scales.by_column else (*FEW_ROWS, *BY_BLOCK):
        for buffers in range(timed.tile.subtiles, 0, -1):
            stages = _stages(timed.tile, buffers, problem, chip)
            if stages >= FEWEST_STAGES:  # fewer buffers only where that many have no room
                found.append(Fp8Candidate(problem, chip, timed, stages, buffers))
                break
    return found


def _stages(tile: BlockTile, buffers: int, problem: Problem, chip: Chip) -> int:
    """As many as fit beside the staging, each a tile of A, one of B and their scales."""
    room = chip.shared_bytes - BARRIER_BYTES - WALKS[_kind(problem)](GROUP).shared_bytes
    room -= buffers * tile.warpgroups * 64 * tile.columns * problem.out_format.itemsize
    scales = tile.rows * 4 + (tile.columns * 4 if scales_of(problem).by_column else 16)
    stage = (tile.rows + tile.columns) * BLOCK_K + scales * (STEPS if problem.a_scaling == STEPPED else 1)
    return min(MOST_STAGES, room // stage)
