"""Reported bugs of kernels for Hopper: found under every schedule; repaired, clean and right."""

from __future__ import annotations

import numpy as np

from kingpost.formats import E4M3, F32
from kingpost.program import Builder, Register, Registers, SharedArray, f32, swizzle, u32, u64
from kingpost.targets.nvidia.isa.common import (
    bulk_commit,
    bulk_load_2d,
    bulk_store_2d,
    bulk_wait_read,
    elect,
    fence_proxy_async,
    mbarrier_arrive,
    mbarrier_arrive_expect,
    mbarrier_wait,
    named_barrier,
)
from kingpost.targets.nvidia.isa.hopper import matrix_descriptor, wgmma, wgmma_commit, wgmma_fence, wgmma_wait

from .known_bugs import UNORDERED, KnownBugs, barriers, found

known_bug = KnownBugs("sm_90a")

UNFENCED = "that thread's proxy fence between its access and what orders the two is missing"
ROWS = np.arange(6 * 32, dtype=np.float32).reshape(6, 32)


# Proxies


@known_bug("MoonshotAI/FlashKDA#24", found("proxy", "bulk store from state[0]", "reads state[0]", "wrote", UNFENCED),
           wanted=ROWS[:2])  # fmt: skip
def state_written_by_threads_and_stored_after_a_barrier_alone(k: Builder, repaired: bool) -> None:
    d, state = k.tensor_map("d", F32, (2, 32)), k.shared("state", (2, 32), F32)
    k.warps(2)
    k.store(state.at(0) + k.thread * 4, k.convert(f32, k.thread))
    if repaired:
        fence_proxy_async(k)
    k.barrier()
    with k.when(k.warp == 0), k.mask(elect(k)):
        bulk_store_2d(k, d.register, 0, 0, state.at(0), type=d.type)
        bulk_commit(k)
        bulk_wait_read(k, groups=0)


@known_bug("deepseek-ai/DeepGEMM#389", found("proxy", "bulk load into stage[", "overwrites stage[", "may still read",
           UNFENCED), wanted=ROWS.sum(0), x=ROWS)  # fmt: skip
def stage_read_by_threads_and_loaded_again(k: Builder, repaired: bool) -> None:
    """Contributions come by turns through two stages, and are added up."""
    x, d = k.tensor_map("x", F32, (1, 32)), k.parameter("d", u64)
    stage, (full,) = k.shared("stage", (2, 32), F32), barriers(k, 2, full=1)
    total = k.new(f32, 0.0)

    def load(row: int) -> None:
        with k.mask(elect(k)):
            mbarrier_arrive_expect(k, full.at(row % 2), bytes=128)
            bulk_load_2d(k, stage.at(row % 2), x.register, row, 0, full.at(row % 2), type=x.type)

    load(0)
    load(1)
    for row in range(len(ROWS)):
        mbarrier_wait(k, full.at(row % 2), row // 2 % 2)
        total += k.load(f32, stage.at(row % 2) + k.lane * 4)
        if row + 2 < len(ROWS):
            if repaired:
                fence_proxy_async(k)
            load(row + 2)
    k.store(k.address(d, k.lane, 4), total)


@known_bug("uccl mKernel#18",
           found("race", "overwrites row[0], which bulk store from row[0]", "may still read", UNORDERED),
           found("race", "bulk store from row[0]", "reads row[0], which block 0, warp 0", "wrote", UNORDERED),
           wanted=ROWS[:3])  # fmt: skip
def buffer_written_while_its_store_drains(k: Builder, repaired: bool) -> None:
    d, row = k.tensor_map("d", F32, (1, 32)), k.shared("row", (1, 32), F32)
    for turn in range(3):
        k.store(row.at(0) + k.lane * 4, k.convert(f32, k.lane + 32 * turn))
        fence_proxy_async(k)
        with k.mask(elect(k)):
            bulk_store_2d(k, d.register, turn, 0, row.at(0), type=d.type)
            bulk_commit(k)
            bulk_wait_read(k, groups=0 if repaired else 1)
        elect(k)  # the other lanes go on when that one has waited


# Products

K_TILES, M, N = 4, 64, 8
random = np.random.default_rng(0)
A, B = (random.integers(-4, 5, (rows, 32 * K_TILES)).astype(E4M3.dtype) for rows in (M, 2 * N))
PRODUCT = A.astype(np.float32) @ B.astype(np.float32).T  # exact: small integers


def multiply(k: Builder, a: Register, b: Register, into: Registers, accumulate: bool) -> None:
    """a [64, 32] b [8, 32]^T, from tiles of 32 bytes a row."""
    wgmma(k, *(matrix_descriptor(k, each, stride=256, swizzle=32) for each in (a, b)), into=into, n=N,
          accumulate=accumulate)  # fmt: skip


def store_product(k: Builder, d: Register, total: Registers, warp: Register, columns: int = N) -> None:
    """A warp's 16 rows, to an address in rows of `columns` float32."""
    own = k.address(d, (warp * 16 + k.lane // 4) * columns + k.lane % 4 * 2, 4)
    for i, register in enumerate(total):
        k.store(own, register, offset=4 * (i // 2 * 8 * columns + i % 2))


def copy_tile(k: Builder, tile: SharedArray, source: Register, column: int, thread: Register, threads: int) -> None:
    """32 bytes of each row of an operand, from `column` on, by threads, as the swizzle of 32 bytes has them."""
    for first in range(0, tile.bytes // 4, threads):
        word = thread + first
        value = k.load(u32, k.address(source, word // 8 * 32 * K_TILES + word % 8 * 4), offset=column)
        k.store(swizzle(tile.at(0) + word * 4, 32), value)


@known_bug("tile-ai/tilelang#2634", found("proxy", "wgmma of warp", "reads a_tile[", "wrote", UNFENCED),
           wanted=A[:, :32].astype(np.float32) @ B[:N, :32].astype(np.float32).T, a=A, b=B)  # fmt: skip
def operand_written_by_threads_and_multiplied(k: Builder, repaired: bool) -> None:
    a, b, d = (k.parameter(name, u64) for name in "abd")
    tiles = k.shared("a_tile", (M, 32), E4M3, 32), k.shared("b_tile", (N, 32), E4M3, 32)
    k.warps(4)
    total = k.array(f32, 4, "total")
    copy_tile(k, tiles[0], a, 0, k.thread, 128)
    with k.mask(k.thread < 64):
        copy_tile(k, tiles[1], b, 0, k.thread, 64)
    if repaired:
        fence_proxy_async(k)
    k.barrier()
    wgmma_fence(k)
    multiply(k, tiles[0].at(0), tiles[1].at(0), total, False)
    wgmma_commit(k)
    wgmma_wait(k, groups=0)
    store_product(k, d, total, k.warp)


@known_bug("tile-ai/tilelang#2613",
           found("race", "overwrites a_tile[", "which wgmma of warp", "may still read", UNORDERED),
           found("race", "wgmma of warp", "reads", "_tile[", "which block 0, warp", "wrote", UNORDERED),
           wanted=PRODUCT, a=A, b=B)  # fmt: skip
def operand_of_two_warpgroups_written_when_one_has_waited(k: Builder, repaired: bool) -> None:
    """Each warpgroup has 8 columns of the product; they share A, which all threads copy."""
    a, b, d = (k.parameter(name, u64) for name in "abd")
    a_tile, b_tile = k.shared("a_tile", (M, 32), E4M3, 32), k.shared("b_tile", (2 * N, 32), E4M3, 32)
    k.warps(8)
    group, total = k.warp // 4, k.array(f32, 4, "total")
    for tile in range(K_TILES):
        copy_tile(k, a_tile, a, 32 * tile, k.thread, 256)
        with k.mask(k.thread < 128):
            copy_tile(k, b_tile, b, 32 * tile, k.thread, 128)
        fence_proxy_async(k)
        k.barrier()
        wgmma_fence(k)
        multiply(k, a_tile.at(0), b_tile.at(group * N), total, tile > 0)
        wgmma_commit(k)
        wgmma_wait(k, groups=0)
        named_barrier(k, group + 1, threads=128)  # the warps of a group have all waited, not those of the other
        if repaired:
            k.barrier()
    store_product(k, k.address(d, group * N, 4), total, k.warp % 4, 2 * N)


def load_tiles(k: Builder, maps: list, tiles: list[SharedArray], slot: int, tile: int, full: Register) -> None:
    """The boxes of both operands that are 32 bytes of K; by one lane."""
    mbarrier_arrive_expect(k, full, bytes=32 * (M + N))
    for map, to in zip(maps, tiles):
        bulk_load_2d(k, to.at(slot), map.register, 0, 32 * tile, full, type=map.type)


def operands(k: Builder, stages: int) -> tuple[list, list[SharedArray]]:
    rows = {"a": M, "b": N}
    maps = [k.tensor_map(name, E4M3, (rows[name], 32), swizzle=32) for name in rows]
    return maps, [k.shared(f"{name}_tile", (stages, rows[name], 32), E4M3, 32) for name in rows]


@known_bug("NVIDIA/Fuser#3865", found("race", "bulk load into", "overwrites", "which wgmma of warp", "may still read",
           UNORDERED), wanted=PRODUCT[:, :N], a=A, b=B[:N])  # fmt: skip
def stage_loaded_again_when_one_warp_has_waited(k: Builder, repaired: bool) -> None:
    """wgmma.wait_group waits for the warp's own part of a product: the other three warps' may go on."""
    (maps, tiles), d = operands(k, 1), k.parameter("d", u64)
    k.warps(4)
    (full,) = barriers(k, 1, full=1)
    total = k.array(f32, 4, "total")
    for tile in range(K_TILES):
        with k.when(k.warp == 0), k.mask(elect(k)):
            load_tiles(k, maps, tiles, 0, tile, full.at(0))
        mbarrier_wait(k, full.at(0), tile % 2)
        wgmma_fence(k)
        multiply(k, tiles[0].at(0), tiles[1].at(0), total, tile > 0)
        wgmma_commit(k)
        wgmma_wait(k, groups=0)
        if repaired:
            k.barrier()
    store_product(k, d, total, k.warp)


@known_bug("NVIDIA/Fuser#3573",
           found("race", "bulk load into", "overwrites", "which wgmma of warp", "may still read", UNORDERED),
           found("race", "wgmma of warp", "reads a_tile[", "which bulk load into a_tile[", "wrote", UNORDERED),
           found("uninitialised", "wgmma of warp", "reads a_tile[", "which is still being written"),
           wanted=PRODUCT[:, :N], a=A, b=B[:N])  # fmt: skip
def stage_released_before_the_wait_for_its_products(k: Builder, repaired: bool) -> None:
    (maps, tiles), d = operands(k, 2), k.parameter("d", u64)
    full, empty = barriers(k, 2, full=1, empty=4)

    def release(slot: int) -> None:
        with k.mask(elect(k)):
            mbarrier_arrive(k, empty.at(slot))

    with k.role("math", warps=4) as warp:
        total = k.array(f32, 4, "total")
        for tile in range(K_TILES):
            slot = tile % 2
            mbarrier_wait(k, full.at(slot), tile // 2 % 2)
            wgmma_fence(k)
            multiply(k, tiles[0].at(slot), tiles[1].at(slot), total, tile > 0)
            wgmma_commit(k)
            if not repaired:
                release(slot)
            wgmma_wait(k, groups=0)
            if repaired:
                release(slot)
        store_product(k, d, total, warp)
    with k.role("load", warps=1), k.mask(elect(k)):
        for tile in range(K_TILES):
            slot = tile % 2
            mbarrier_wait(k, empty.at(slot), 1 - tile // 2 % 2)
            load_tiles(k, maps, tiles, slot, tile, full.at(slot))


# Barriers

STAGES = 3


@known_bug("facebookexperimental/triton#3472",
           found("mbarrier", "completes phase 1 of mbarrier met[0], while block 0, leader warp 0",
                 "may still wait for phase 0: no arrival comes after its going on"),
           found("deadlock", "leader warp 0", "waits for mbarrier met[0] (phase parity 0): 2 of 2 arrivals"),
           wanted=ROWS.sum(0), x=ROWS)  # fmt: skip
def rendezvous_at_one_barrier_by_one_who_runs_stages_ahead(k: Builder, repaired: bool) -> None:
    """The follower may fill three stages before the leader has come to its first: so the barrier must be threefold."""
    x, d = k.parameter("x", u64), k.parameter("d", u64)
    met, empty = barriers(k, STAGES, met=2, empty=1)
    stages = k.shared("stages", (STAGES, 32), F32)
    slots = STAGES if repaired else 1

    def meet(turn: int) -> Register:
        place = met.at(turn % slots)
        with k.mask(elect(k)):
            mbarrier_arrive(k, place)
        return place

    with k.role("leader", warps=1):
        total = k.new(f32, 0.0)
        for turn in range(len(ROWS)):
            mbarrier_wait(k, meet(turn), turn // slots % 2)
            total += k.load(f32, stages.at(turn % STAGES) + k.lane * 4)
            with k.mask(elect(k)):
                mbarrier_arrive(k, empty.at(turn % STAGES))
        k.store(k.address(d, k.lane, 4), total)
    with k.role("follower", warps=1):
        for turn in range(len(ROWS)):
            mbarrier_wait(k, empty.at(turn % STAGES), 1 - turn // STAGES % 2)
            k.store(stages.at(turn % STAGES) + k.lane * 4, k.load(f32, k.address(x, k.lane + 32 * turn, 4)))
            meet(turn)
