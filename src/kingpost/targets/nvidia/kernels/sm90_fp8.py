"""D = A B^T on Hopper: fp8 with float32 scales, promoted K block by K block; dense, batched or grouped as `walk` says.

A persistent block walks over its items, tiles of D. One thread loads 128-byte-swizzled tiles of A [planes, rows, K] and
B [planes, columns, K] into a ring, a warp their scales; math warpgroups multiply one K block of 128 at a time from
zero, and promote it into float32 totals, ascending. All sizes are run-time values; what lies past the edges is filled
with zeros by the copies and not stored.
"""

from __future__ import annotations

from contextlib import nullcontext

from kingpost.formats import Format
from kingpost.program import Builder, kernel
from kingpost.targets.nvidia.isa.common import bulk_load_3d, elect, fence_mbarrier_init
from kingpost.targets.nvidia.parts.block_tile import ROWS, WARPS, BlockTile, clear_rows
from kingpost.targets.nvidia.parts.epilogue import RowStore, Staging, TileStore
from kingpost.targets.nvidia.parts.finish import Finish
from kingpost.targets.nvidia.parts.products import BLOCK_K, BlockProducts, Operands, StepProducts
from kingpost.targets.nvidia.parts.ring import Ring
from kingpost.targets.nvidia.parts.scales import Scales
from kingpost.targets.nvidia.parts.tail import clear_tail
from kingpost.targets.nvidia.parts.work import Walk

LOADER_REGISTERS, MATH_REGISTERS = 40, {1: 232, 2: 232, 3: 152}  # a thread, by number of math warpgroups


@kernel(target="sm_90a")
def sm90_fp8(
    k: Builder,
    *,
    walk: Walk,
    tile: BlockTile,
    stages: int,
    buffers: int,
    scales: Scales,
    finish: Finish,
    a_format: Format,
    b_format: Format,
) -> None:
    """A ring of `stages` stages; `buffers` accumulators of staging for each warpgroup."""
    if stages < 2 or tile.subtiles % buffers:  # the next slot is looked for before the last is left; buffers take turns
        raise ValueError(
            f"stages is {stages}, buffers {buffers}; 2 or more and a divisor of {tile.subtiles} are wanted"
        )
    scales.check(tile)
    a_map = k.tensor_map("a", a_format, (1, tile.loaded_rows, BLOCK_K), swizzle=128)
    b_map = k.tensor_map("b", b_format, (1, tile.columns, BLOCK_K), swizzle=128)
    work = walk.over(k, tile.loaded_rows, tile.columns, readers=tile.warps + 2, block_k=BLOCK_K)
    n = work.n
    finished = finish.over(k, n)

    a = k.shared("a_tiles", (stages, tile.rows, BLOCK_K), a_format, swizzle=128)
    b = k.shared("b_tiles", (stages, tile.columns, BLOCK_K), b_format, swizzle=128)
    staging = Staging(k, tile, finish.out, buffers)
    result = RowStore(k, staging, n) if walk.partial else TileStore(k, staging, finish.adds_by_copies)
    staged = scales.stage(k, stages, tile)
    ring = Ring(k, stages, writers=1 + staged.writers, readers=tile.warps)

    with k.when(k.warp == 0), k.mask(elect(k)):
        ring.initialise()
        work.initialise()
        fence_mbarrier_init(k)
    work.prepare()
    if not tile.whole:
        clear_rows(k, a, tile.loaded_rows, threads=32 * tile.warps)
    k.barrier()

    with k.role("math", warps=tile.warps, registers=MATH_REGISTERS[tile.warpgroups]) as warp:
        slots = ring.consumer()
        operands = Operands(k, tile, a, b, (a_format, b_format), slots, warp)
        totals = operands.accumulators(tile.subtiles, "total")
        products = (StepProducts if scales.steps else BlockProducts)(operands, staged.promotion(warp))

        with work.items() as item:
            for total in totals:
                k.set(total, 0.0)
            with k.when(item.blocks > 0):
                slots.wait()
            with k.loop(item.blocks) as block:
                more = block + 1 < item.blocks
                if walk.tails:
                    clear_tail(k, [a.at(slots.slot), b.at(slots.slot)], tile, item.tail, more)
                products.add(totals, more)
            end = item.end if tile.whole else k.minimum(item.end, item.row + tile.loaded_rows)
            for t, total in enumerate(totals):
                row = item.row + warp // WARPS * (ROWS * tile.subtiles) + t * ROWS
                with k.when(row < end) if walk.partial else nullcontext():
                    finished(total, item.plane_d, item.plane_b, row, end, item.column)
                    result.store(warp, total, item.plane_d, row, end, item.column, t % buffers)
        result.drain(warp)

    with k.role("load", warps=4, registers=LOADER_REGISTERS) as warp:
        with k.when(warp == 0), k.mask(elect(k)):
            producer = ring.producer()
            bytes = (tile.loaded_rows + tile.columns) * BLOCK_K
            with (
                work.items(one_thread=True) as item,
                k.loop(item.blocks) as block,
                producer.fill(bytes) as (slot, full),
            ):
                at = item.depth + block * BLOCK_K
                bulk_load_3d(k, a.at(slot), a_map.register, item.plane_a, item.row, at, full, type=a_map.type)
                bulk_load_3d(k, b.at(slot), b_map.register, item.plane_b, item.column, at, full, type=b_map.type)
        with k.when(warp == 1):
            producer, filler = ring.producer(), staged.filler(last_column=n - 1)
            with work.items() as item:
                filler.start(item)
                with k.loop(item.blocks), producer.fill() as (slot, full):
                    filler.copy(slot, full)
        if work.scheduled:
            with k.when(warp == 2):
                work.schedule()
