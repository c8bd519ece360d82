"""Configurations of the bfloat16 kernel for a problem, and a simple model of how long each takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from kingpost.arrays import View
from kingpost.formats import BF16, F16, F32
from kingpost.program import Launch, Program
from kingpost.registry import Operands, Problem
from kingpost.targets.nvidia.chip import BARRIER_BYTES, LAUNCH_MICROSECONDS, Chip
from kingpost.targets.nvidia.kernels.sm90_bf16 import sm90_bf16, stored_columns
from kingpost.targets.nvidia.parts.binding import finish_arguments, in_planes, plane_stride, row_stride
from kingpost.targets.nvidia.parts.block_tile import ROWS, BlockTile
from kingpost.targets.nvidia.parts.finish import Finish
from kingpost.targets.nvidia.parts.groups import MOST_GROUPS, ByCounts, ByEnds, ByRows, OverK
from kingpost.targets.nvidia.parts.operand_tiles import BLOCK_K, ROW_BYTES, STEP_K
from kingpost.targets.nvidia.parts.summed import Summed, slices
from kingpost.targets.nvidia.parts.walk import Batched, Dense
from kingpost.targets.nvidia.parts.work import Walk

FEWEST_STAGES, MOST_STAGES = 3, 10
GROUP = 8  # tile rows walked together
TILES = (  # the smaller ones first: they are taken where the model says that all are as fast
    BlockTile(1, 1, 32),
    BlockTile(1, 1, 64),
    BlockTile(1, 1, 128),
    BlockTile(1, 1, 256),
    BlockTile(2, 1, 128),
    BlockTile(2, 1, 192),
    BlockTile(2, 1, 256),
    BlockTile(2, 2, 128),
)
FEW_ROWS = tuple(BlockTile(1, 1, columns, rows) for rows in (16, 32) for columns in (32, 64, 128))
WALKS: dict[str, Callable[[int], Walk]] = {
    "mm": Dense,
    "batched_mm": Batched,
    "summed_mm": Summed,
    "rows": ByRows,
    "ends": ByEnds,
    "counts": ByCounts,
    "grouped_mm_k": OverK,
}

# Measured on an H200: the clock under wgmma of bfloat16; what the fp8 kernel's smallest tile takes for a K block of 128
# bytes, and its tiles for what comes once; what this kernel's tiles were seen to read from the L2 cache.
CYCLES = 1600.0  # a microsecond
LEAST_BLOCK = 0.14  # microseconds
ONCE, ONCE_PER_ELEMENT = 0.5, 7e-5  # microseconds
CACHE_BYTES, CACHE_BYTES_EACH = 1.0e7, 1.05e5  # a microsecond: all multiprocessors, and one


@dataclass(frozen=True)
class Bf16Candidate:
    """The bfloat16 kernel in one configuration, on one chip, for one problem.

    Of "summed_mm" it computes the slices, which are still to be added: then d is float32 [slices, M, N].
    """

    problem: Problem
    chip: Chip
    tile: BlockTile
    stages: int
    buffers: int
    group: int = GROUP

    @property
    def name(self) -> str:
        return f"{self.tile}, {self.stages} stages, {self.buffers} buffers"

    @property
    def walk(self) -> Walk:
        return WALKS[_kind(self.problem)](self.group)

    @cached_property
    def program(self) -> Program:
        problem = self.problem
        return sm90_bf16(
            walk=self.walk,
            tile=self.tile,
            stages=self.stages,
            buffers=self.buffers,
            finish=_finish(problem),
            a_major=problem.a_major,
            b_major=problem.b_major,
        )

    def microseconds(self, m: int) -> float:
        """Waves of tiles, each a chain of K blocks and an epilogue; or the time to bring every tile from the cache, or
        to move every byte of memory once."""
        problem, tile = self.problem, self.tile
        if m > tile.loaded_rows and not tile.whole:
            return float("inf")
        planes, depth = problem.groups, float(problem.k)
        if problem.op == "grouped_mm_k":
            depth /= planes
        moved = planes * depth * (m + problem.n) * BF16.itemsize
        if problem.op == "summed_mm":
            planes, depth = slices(planes), depth * planes / slices(planes)
        moved += planes * m * problem.n * problem.out_format.itemsize
        tiles, blocks = planes * -(-m // tile.loaded_rows) * -(-problem.n // tile.columns), -(-depth // BLOCK_K)
        waves = -(-tiles // self.chip.multiprocessors)
        chain = blocks * _block(tile) + ONCE + ONCE_PER_ELEMENT * tile.rows * tile.columns
        loaded = tiles * blocks * (tile.loaded_rows + tile.columns) * ROW_BYTES
        brought = loaded / min(CACHE_BYTES, CACHE_BYTES_EACH * tiles)
        longest = max(waves * chain, brought, moved / self.chip.memory_bytes)
        return LAUNCH_MICROSECONDS + longest + brought / 100  # where all else is the same, the less brought the better

    def bind(self, operands: Operands) -> Launch:
        problem, tile, walk = self.problem, self.tile, self.walk
        a, b, d = (in_planes(operands[name]) for name in ("a", "b", "d"))
        if problem.op == "summed_mm":
            _require_slices(d, (slices(a.shape[0]), a.shape[1], b.shape[1]))
        if operands["d"].shape[-2] > tile.loaded_rows and not (tile.whole or walk.partial):
            raise ValueError(
                f"d has {operands['d'].shape[-2]} rows; at most {tile.loaded_rows} are wanted by {self.name}"
            )
        tiles = walk.tiles(operands, tile.loaded_rows, tile.columns)
        a, b = _lines(a, problem.a_major), _lines(b, problem.b_major)
        arguments: dict[str, View | int | float] = {"a": a, "b": b, "d": d}
        if walk.partial:
            arguments |= {"d_plane_stride": plane_stride(d), "d_stride": row_stride(d)}
        arguments |= walk.arguments(operands)
        if problem.op != "summed_mm":
            arguments |= finish_arguments(operands, _finish(problem))
        return Launch.of(self.program, min(tiles, self.chip.multiprocessors), **arguments)


def _kind(problem: Problem) -> str:
    """What decides how the work is walked over."""
    return problem.by or problem.op


def _finish(problem: Problem) -> Finish:
    if problem.op == "summed_mm":
        return Finish(F32)  # of a slice
    in_place = problem.in_place and not WALKS[_kind(problem)](GROUP).partial
    return Finish(problem.out_format, problem.alpha, problem.c, problem.bias, in_place)


def _require_slices(d: View, wanted: tuple[int, ...]) -> None:
    if (d.format, d.shape) != (F32, wanted):
        raise ValueError(f"d is {d.format.name} {d.shape}; the slices of the sum, float32 {wanted}, are wanted")


def _lines(view: View, major: str) -> View:
    """[planes, rows, K], its last dimension made the one that is contiguous."""
    if major == "k":
        return view
    planes, rows, depth = zip(view.shape, view.strides)
    shape, strides = zip(planes, depth, rows)
    return replace(view, shape=shape, strides=strides)


def _block(tile: BlockTile) -> float:
    """Microseconds of a K block: a wgmma takes n / 2 cycles, or as many as its operands at 128 bytes each."""
    n = tile.columns
    cycles = max(n / 2, (ROWS + n) * STEP_K * BF16.itemsize / 128) * tile.subtiles * tile.warpgroups
    return max(LEAST_BLOCK, cycles * (BLOCK_K // STEP_K) / CYCLES)


def candidates(problem: Problem, chip: Chip) -> list[Bf16Candidate]:
    """Every configuration that fits the chip's shared memory; none if the kernel does not compute the problem."""
    if _kind(problem) not in WALKS or {problem.a_format, problem.b_format} != {BF16}:
        return []
    if problem.out_format not in (BF16, F16, F32):
        return []
    if _kind(problem) in ("ends", "counts", "grouped_mm_k") and problem.groups > MOST_GROUPS:
        return []
    found = []
    for tile in (*FEW_ROWS, *TILES) if problem.a_major == "k" else TILES:
        for buffers in (2, 1):  # more only where there is room beside enough stages
            stages = _stages(tile, buffers, problem, chip)
            if tile.columns // stored_columns(tile) % buffers == 0 and stages >= FEWEST_STAGES + buffers - 1:
                found.append(Bf16Candidate(problem, chip, tile, stages, buffers))
                break
    return found


def _stages(tile: BlockTile, buffers: int, problem: Problem, chip: Chip) -> int:
    """As many as fit beside the staging, each a tile of A and one of B."""
    room = chip.shared_bytes - BARRIER_BYTES - WALKS[_kind(problem)](GROUP).shared_bytes
    room -= buffers * tile.warpgroups * ROWS * stored_columns(tile) * _finish(problem).out.itemsize
    return min(MOST_STAGES, room // ((tile.rows + tile.columns) * ROW_BYTES))
