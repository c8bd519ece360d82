"""D = A B^T on Hopper: bfloat16, either operand K- or MN-major; dense, batched, summed or grouped as `walk` says.

A persistent block walks over its items, tiles of D. One thread loads swizzled tiles of A and B, 64 of K at a time, into
a ring; math warpgroups add up their products in the tensor cores' accumulators, one chain over all of K, ascending. All
sizes are run-time values; what lies past the edges is filled with zeros by the copies and not stored.
"""

from __future__ import annotations

from dataclasses import replace

from kingpost.program import Builder, Operand, Register, kernel
from kingpost.targets.nvidia.isa.common import elect, fence_mbarrier_init
from kingpost.targets.nvidia.parts.block_tile import BlockTile, clear_rows
from kingpost.targets.nvidia.parts.chain import Chain
from kingpost.targets.nvidia.parts.epilogue import RowStore, Staging, TileStore
from kingpost.targets.nvidia.parts.finish import Finish
from kingpost.targets.nvidia.parts.operand_tiles import BLOCK_K, STEP_K, OperandTiles
from kingpost.targets.nvidia.parts.ring import Ring
from kingpost.targets.nvidia.parts.summed import SummedWork
from kingpost.targets.nvidia.parts.work import Item, Walk, Work

LOADER_REGISTERS, MATH_REGISTERS = 40, 232  # a thread


def stored_columns(tile: BlockTile) -> int:
    """Columns of an accumulator that are on their way out together: all, or equal parts of at most 128."""
    return tile.columns // -(-tile.columns // 128)


@kernel(target="sm_90a")
def sm90_bf16(
    k: Builder,
    *,
    walk: Walk,
    tile: BlockTile,
    stages: int,
    buffers: int,
    finish: Finish,
    a_major: str,
    b_major: str,
) -> None:
    """A ring of `stages` stages; `buffers` buffers of staging for each warpgroup."""
    parts = tile.columns // stored_columns(tile)
    if stages < 2 or parts % buffers:  # a slot is left when the next one is in use; a row's parts take turns
        raise ValueError(f"stages is {stages}, buffers {buffers}; 2 or more and a divisor of {parts} are wanted")
    a = OperandTiles(k, "a", stages, tile.rows, a_major, tile.loaded_rows)
    b = OperandTiles(k, "b", stages, tile.columns, b_major)
    work = walk.over(k, tile.loaded_rows, tile.columns, readers=tile.warps + 1, block_k=BLOCK_K)
    finished = finish.over(k, work.n)
    staging = Staging(k, replace(tile, columns=stored_columns(tile)), finish.out, buffers)
    result = RowStore(k, staging, work.n) if walk.partial else TileStore(k, staging, finish.adds_by_copies)
    ring = Ring(k, stages, writers=1, readers=tile.warps)

    with k.when(k.warp == 0), k.mask(elect(k)):
        ring.initialise()
        work.initialise()
        fence_mbarrier_init(k)
    work.prepare()
    if not tile.whole:
        clear_rows(k, a.shared, tile.loaded_rows, threads=32 * tile.warps)
    k.barrier()

    with k.role("math", warps=tile.warps, registers=MATH_REGISTERS) as warp:
        chain = Chain(k, tile, a, b, ring.consumer(), warp)
        with work.items() as item:
            for total in chain.totals:
                k.set(total, 0.0)
            if walk.tails:
                whole = item.blocks + item.tail // BLOCK_K - 1  # a tail of BLOCK_K is a whole block
                chain.add_blocks(whole)
                with k.when(whole < item.blocks):
                    chain.add_steps(item.tail // STEP_K)
            else:
                chain.add_blocks(item.blocks)
            end = item.end if tile.whole else k.minimum(item.end, item.row + tile.loaded_rows)
            for i, (row, column, total) in enumerate(chain.parts(stored_columns(tile))):
                place = item.row + chain.own_rows + row, end, item.column + column
                with k.when(place[0] < end):
                    finished(total, item.plane_d, item.plane_b, *place)
                    result.store(warp, total, item.plane_d, *place, i % buffers)
        result.drain(warp)

    with k.role("load", warps=4, registers=LOADER_REGISTERS) as warp:
        with k.when(warp == 0), k.mask(elect(k)):
            producer = ring.producer()
            with work.items(one_thread=True) as item, k.loop(item.blocks) as block:
                with producer.fill(a.bytes + b.bytes) as (slot, full):
                    plane_a, plane_b, depth = _source(work, item, block)
                    a.load(slot, plane_a, item.row, depth, full)
                    b.load(slot, plane_b, item.column, depth, full)
        if work.scheduled:
            with k.when(warp == 1):
                work.schedule()


def _source(work: Work, item: Item, block: Register) -> tuple[Operand, Operand, Register]:
    """Where an item's K block lies: the planes of a and b, and its first element of K in them."""
    if isinstance(work, SummedWork):
        return work.source(item, block)
    return item.plane_a, item.plane_b, block * BLOCK_K + item.depth
