"""D[M, N] = A[M, K] B[N, K]^T on Hopper: e4m3, A scaled "1x128", B "128x128", bfloat16 or float32 out.

A persistent block walks over tiles of D. One thread loads 128-byte-swizzled tiles of A and B into a ring, a warp their
scales; math warpgroups multiply one K block of 128 at a time from zero, and promote it into float32 totals, ascending.
M, N and K are run-time values; what lies past the edges is filled with zeros by the copies and clipped by the store.
"""

from __future__ import annotations

from kingpost.formats import E4M3, Format
from kingpost.program import Builder, f32, kernel, u64
from kingpost.targets.nvidia.isa.common import bulk_load_2d, elect, fence_mbarrier_init
from kingpost.targets.nvidia.isa.hopper import matrix_descriptor, wgmma, wgmma_commit, wgmma_fence, wgmma_wait
from kingpost.targets.nvidia.parts.epilogue import TileStore
from kingpost.targets.nvidia.parts.promotion import Promotion, ScaleCopy, StagedScales
from kingpost.targets.nvidia.parts.ring import Ring
from kingpost.targets.nvidia.parts.tile_order import TileOrder

BLOCK_K = 128  # one scale block, one swizzled row
LOADING_THREADS = 1 + 1 + 32  # tiles and their bytes, the scale of B, the scales of A
LOADER_REGISTERS, MATH_REGISTERS = 40, {1: 232, 2: 232, 3: 152}  # a thread, by number of math warpgroups


@kernel(target="sm_90a")
def sm90_fp8_block_scaled(
    k: Builder, *, warpgroups: int, subtiles: int, columns: int, stages: int, buffers: int, group: int, out: Format
) -> None:
    """warpgroups, each of `subtiles` 64-row accumulators of `columns` columns; a ring of `stages` stages; `buffers`
    accumulators of staging for each warpgroup; tiles walked in groups of `group` tile rows."""
    if BLOCK_K % columns:
        raise ValueError(f"columns is {columns}; a divisor of {BLOCK_K} is wanted, for one scale of B in each K block")
    if stages < 2 or subtiles % buffers:  # the next slot is looked for before the last is left; buffers take turns
        raise ValueError(f"stages is {stages}, buffers {buffers}; 2 or more and a divisor of {subtiles} are wanted")
    rows = 64 * subtiles * warpgroups
    m, n, depth = k.parameter("m"), k.parameter("n"), k.parameter("k")
    a_map = k.tensor_map("a", E4M3, (rows, BLOCK_K), swizzle=128)
    b_map = k.tensor_map("b", E4M3, (columns, BLOCK_K), swizzle=128)
    scale_a = [k.parameter("scale_a", u64), k.parameter("scale_a_row_stride"), k.parameter("scale_a_block_stride")]
    scale_b = [k.parameter("scale_b", u64), k.parameter("scale_b_column_stride"), k.parameter("scale_b_block_stride")]

    a = k.shared("a_tiles", (stages, rows, BLOCK_K), E4M3, swizzle=128)
    b = k.shared("b_tiles", (stages, columns, BLOCK_K), E4M3, swizzle=128)
    result = TileStore(k, columns, out, warpgroups, buffers)
    scales = StagedScales(k, stages, rows)
    ring = Ring(k, stages, writers=LOADING_THREADS, readers=4 * warpgroups)

    with k.when(k.warp == 0), k.mask(elect(k)):
        ring.initialise()
        fence_mbarrier_init(k)
    k.barrier()

    tiles = TileOrder(k, k.ceil_div(m, rows), k.ceil_div(n, columns), group)
    blocks = k.ceil_div(depth, BLOCK_K)

    with k.role("math", warps=4 * warpgroups, registers=MATH_REGISTERS[warpgroups]) as warp:
        warpgroup = warp // 4
        first_thread = (warp % 4 == 0) & (k.lane == 0)
        own_rows = warpgroup * (64 * subtiles)
        totals = [k.array(f32, columns // 2, "total") for _ in range(subtiles)]
        partial = k.array(f32, columns // 2, "partial")
        operands, promotion = ring.consumer(), Promotion(scales, warp, subtiles)

        with k.loop(tiles.count, start=k.block, step=k.grid) as tile:
            tile_row, tile_column = tiles.place(tile)
            for total in totals:
                k.set(total, 0.0)
            operands.wait()
            with k.loop(blocks) as block:
                a_tile, b_tile = a.at(operands.slot) + own_rows * BLOCK_K, b.at(operands.slot)
                for t, total in enumerate(totals):
                    wgmma_fence(k)
                    for step in range(0, BLOCK_K, 32):
                        a_part = matrix_descriptor(k, a_tile, offset=t * 64 * BLOCK_K + step)
                        b_part = matrix_descriptor(k, b_tile, offset=step)
                        wgmma(k, a_part, b_part, into=partial, n=columns, accumulate=step > 0)
                    wgmma_commit(k)
                    # while these are multiplied, read their scales and look for the next operands
                    if t == 0:
                        promotion.read(operands.slot)
                    if t == subtiles - 1:
                        read = operands.turn()
                        with k.when(block + 1 < blocks):
                            operands.wait()
                    wgmma_wait(k, groups=0)
                    if t == subtiles - 1:
                        operands.leave(read)
                    promotion.add(total, partial, t)
            for t, total in enumerate(totals):
                row = tile_row * rows + own_rows + t * 64
                result.store(warpgroup, first_thread, total, row, tile_column * columns, t % buffers)
        result.drain(first_thread)

    with k.role("load", warps=4, registers=LOADER_REGISTERS) as warp:
        with k.when(warp == 0), k.mask(elect(k)):
            producer, column_scale = ring.producer(), ScaleCopy(k, 1, *scale_b)
            with k.loop(tiles.count, start=k.block, step=k.grid) as tile:
                tile_row, tile_column = tiles.place(tile)
                row, column = tile_row * rows, tile_column * columns
                column_scale.start(column // BLOCK_K)
                with k.loop(blocks) as block, producer.fill(a.stride + b.stride) as (slot, full):
                    at = block * BLOCK_K
                    bulk_load_2d(k, a.at(slot), a_map.register, row, at, full, type=a_map.type)
                    bulk_load_2d(k, b.at(slot), b_map.register, column, at, full, type=b_map.type)
                    column_scale.copy(scales.of_columns.at(slot), full)
        with k.when(warp == 1):
            producer, row_scales = ring.producer(), ScaleCopy(k, rows, *scale_a)
            with k.loop(tiles.count, start=k.block, step=k.grid) as tile:
                tile_row, _ = tiles.place(tile)
                row_scales.start(tile_row * rows + k.lane, last_row=m - 1)
                with k.loop(blocks), producer.fill() as (slot, full):
                    row_scales.copy(scales.of_rows.at(slot) + k.lane * 4, full)
