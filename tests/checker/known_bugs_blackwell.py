"""Reported bugs of kernels for Blackwell: found under every schedule; repaired, clean and right."""

from __future__ import annotations

import numpy as np

from kingpost.formats import E4M3, U8, U32
from kingpost.program import Builder, Register, Registers, f32, u32, u64
from kingpost.targets.nvidia.isa.blackwell import (
    mma_f8,
    shared_descriptor,
    tensor_allocate,
    tensor_commit,
    tensor_fence_after,
    tensor_fence_before,
    tensor_free,
    tensor_load,
    tensor_load_bits,
    tensor_store,
    tensor_wait_load,
    tensor_wait_store,
)
from kingpost.targets.nvidia.isa.clusters import bulk_load_multicast_3d, cluster_arrive, cluster_rank, cluster_wait
from kingpost.targets.nvidia.isa.common import (
    bulk_load_2d,
    elect,
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
)

from .known_bugs import UNORDERED, KnownBugs, barriers, found

known_bug = KnownBugs("sm_100a")

COLUMNS, COUNT = 32, 4  # allocated, and used by each thread
NUMBERS = np.arange(128 * COUNT, dtype=np.uint32).reshape(128, COUNT)


def allocate(k: Builder, barrier: bool = True) -> Register:
    """The address of columns that warp 0 allocates, as every thread reads it from shared memory."""
    slot = k.shared("slot", (1,), U32).at(0)
    with k.when(k.warp == 0):
        tensor_allocate(k, slot, columns=COLUMNS)
    if barrier:
        k.barrier()
    return k.load(u32, slot)


def free(k: Builder, address: Register) -> None:
    tensor_fence_before(k)
    k.barrier()
    with k.when(k.warp == 0):
        tensor_fence_after(k)
        tensor_free(k, address, columns=COLUMNS)


def numbered(k: Builder, thread: Register) -> Registers:
    """A thread's row of NUMBERS."""
    values = k.array(u32, COUNT)
    for i, value in enumerate(values):
        k.set(value, thread * COUNT + i)
    return values


def put(k: Builder, address: Register, values: Registers) -> None:
    tensor_store(k, address, values, count=COUNT)
    tensor_wait_store(k)


def write_row(k: Builder, d: Register, thread: Register, values: Registers) -> None:
    for i, value in enumerate(values):
        k.store(k.address(d, thread * len(values) + i, 4), value)


# Allocation


@known_bug("triton-lang/triton#7994",
           found("tensor memory", "block 0, warp 0", "frees columns 480 to 511, which a tcgen05.", "may still touch"),
           found("tensor memory", "block 0, warp 0", "frees columns", "which tcgen05.ld of warp", "read",
                 "something that synchronises the two threads is missing"),
           found("tensor memory", "touches columns 480 to 483; allocated: nothing"),
           wanted=NUMBERS)  # fmt: skip
def columns_freed_by_a_warp_that_has_not_met_the_others(k: Builder, repaired: bool) -> None:
    d, values = k.parameter("d", u64), k.array(u32, COUNT)
    k.warps(4)
    address = allocate(k)
    own = address + (k.warp << 21)
    put(k, own, numbered(k, k.thread))
    tensor_load_bits(k, own, count=COUNT, into=values)
    tensor_wait_load(k)
    write_row(k, d, k.thread, values)
    if repaired:
        free(k, address)
    else:
        with k.when(k.warp == 0):
            tensor_free(k, address, columns=COLUMNS)


@known_bug("NVIDIA/cutlass#2835", found("race", "reads slot[0], which block 0, warp 0", "wrote", UNORDERED),
           found("uninitialised", "reads slot[0], which is never written"), wanted=NUMBERS)  # fmt: skip
def address_of_columns_read_without_a_barrier(k: Builder, repaired: bool) -> None:
    d, values = k.parameter("d", u64), k.array(u32, COUNT)
    k.warps(4)
    address = allocate(k, barrier=repaired)
    own = address + (k.warp << 21)
    put(k, own, numbered(k, k.thread))
    tensor_load_bits(k, own, count=COUNT, into=values)
    tensor_wait_load(k)
    write_row(k, d, k.thread, values)
    free(k, address)


@known_bug("NVIDIA/cutlass#3652",
           found("tensor memory", "block 0, warp 0", "frees columns 480 to 511, which a tcgen05.ld may still touch"),
           wanted=NUMBERS[:64])  # fmt: skip
def columns_released_by_warps_that_need_not_what_they_load(k: Builder, repaired: bool) -> None:
    """Two warps use their rows, and wait; two load rows beyond the edge, and arrive at once."""
    d, values = k.parameter("d", u64), k.array(u32, COUNT)
    k.warps(4)
    (done,) = barriers(k, 1, done=4)
    address = allocate(k)
    own = address + (k.warp << 21)
    put(k, own, numbered(k, k.thread))
    tensor_load_bits(k, own, count=COUNT, into=values)
    with k.when(k.warp < (4 if repaired else 2)):
        tensor_wait_load(k)
    with k.when(k.warp < 2):
        write_row(k, d, k.thread, values)
    tensor_fence_before(k)
    with k.mask(elect(k)):
        mbarrier_arrive(k, done.at(0))
    with k.when(k.warp == 0):
        mbarrier_wait(k, done.at(0), 0)
        tensor_fence_after(k)
        tensor_free(k, address, columns=COLUMNS)


# Reuse


@known_bug("mlc-ai/TIRx-kernels#19",
           found("tensor memory", "tcgen05.st of warp", "writes columns", "which tcgen05.ld of warp", "read",
                 "something that synchronises the two threads is missing"),
           found("tensor memory", "tcgen05.ld of warp", "reads columns", "which tcgen05.st of warp", "wrote",
                 "something that synchronises the two threads is missing"),
           found("tensor memory", "while a tcgen05.", "there has not been waited for"),
           wanted=np.stack([NUMBERS, NUMBERS + 1000]))  # fmt: skip
def slot_of_tensor_memory_written_anew_without_its_token(k: Builder, repaired: bool) -> None:
    """Four warps store a state, twice; four others load it, and say when the slot is empty."""
    d, values = k.parameter("d", u64), k.array(u32, COUNT)
    k.warps(8)
    full, empty = barriers(k, 2, full=4, empty=4)
    address = allocate(k)
    own, thread = address + (k.warp % 4 << 21), k.thread % 128
    for turn in range(2):
        with k.when(k.warp < 4):
            if turn and repaired:
                mbarrier_wait(k, empty.at(0), 0)
                tensor_fence_after(k)
            put(k, own, numbered(k, thread + 250 * turn))
            tensor_fence_before(k)
            with k.mask(elect(k)):
                mbarrier_arrive(k, full.at(turn))
        with k.when(k.warp >= 4):
            mbarrier_wait(k, full.at(turn), 0)
            tensor_fence_after(k)
            tensor_load_bits(k, own, count=COUNT, into=values)
            tensor_wait_load(k)
            tensor_fence_before(k)
            with k.mask(elect(k)):
                mbarrier_arrive(k, empty.at(0))
            write_row(k, k.address(d, turn * 128 * COUNT, 4), thread, values)
    free(k, address)


# Products

M, N, STAGES, TILES = 64, 8, 3, 6
random = np.random.default_rng(0)
A, B = (random.integers(-4, 5, (rows, 32 * TILES)).astype(E4M3.dtype) for rows in (M, N))
PRODUCT = A.astype(np.float32) @ B.astype(np.float32).T  # exact: small integers


def pipelined(k: Builder, wait_by_turn: bool, fenced: bool) -> None:
    """The product, one thread loading and multiplying, three stages ahead; it waits for each step before it loads on.

    wait_by_turn: for the phase of the turn, of the one barrier that all steps arrive at; else for that of the ring.
    fenced: between what says that all is done and the loads from tensor memory.
    """
    maps = [k.tensor_map(name, E4M3, (rows, 32), swizzle=32) for name, rows in (("a", M), ("b", N))]
    d, tiles = k.parameter("d", u64), [k.shared(f"{m.name}_tile", (STAGES, *m.type.box), E4M3, 32) for m in maps]
    k.warps(4)
    full, done = barriers(k, STAGES, full=1, done=1)
    address = allocate(k)

    def load(tile: int) -> None:
        barrier = full.at(tile % STAGES)
        mbarrier_arrive_expect(k, barrier, bytes=32 * (M + N))
        for map, to in zip(maps, tiles):
            bulk_load_2d(k, to.at(tile % STAGES), map.register, 0, 32 * tile, barrier, type=map.type)

    with k.when(k.warp == 0), k.mask(elect(k)):
        for tile in range(STAGES):
            load(tile)
        for tile in range(TILES):
            mbarrier_wait(k, full.at(tile % STAGES), tile // STAGES % 2)
            a, b = (shared_descriptor(k, each.at(tile % STAGES), stride=256, swizzle=32) for each in tiles)
            mma_f8(k, address, a, b, int(tile > 0), m=M, n=N)
            tensor_commit(k, done.at(0))
            mbarrier_wait(k, done.at(0), (tile if wait_by_turn else tile // STAGES) % 2)
            if tile + STAGES < TILES:
                load(tile + STAGES)
    k.barrier()
    if fenced:
        tensor_fence_after(k)
    values = k.array(f32, N)
    tensor_load(k, address + (k.warp << 21), count=N, into=values)
    tensor_wait_load(k)
    with k.mask(k.lane < 16):  # a warp's 16 rows
        write_row(k, d, k.warp * 16 + k.lane, values)
    free(k, address)


@known_bug("tile-ai/tilelang#3087",
           found("race", "tcgen05.mma (f8f6f4) of warp 0", "reads a_tile[1], which bulk load into", UNORDERED),
           found("uninitialised", "tcgen05.mma (f8f6f4) of warp 0", "reads a_tile[1], which is still being written"),
           # where the product is over before the wait, the phase after it has the wrong parity for ever
           found("deadlock", "warp 0", "waits for mbarrier done[0] (phase parity 0): 1 of 1 arrivals"),
           wanted=PRODUCT, a=A, b=B)  # fmt: skip
def wait_by_the_parity_of_a_ring_for_one_barrier(k: Builder, repaired: bool) -> None:
    pipelined(k, wait_by_turn=repaired, fenced=True)


@known_bug("tile-ai/tilelang#1980",
           found("tensor memory", "tcgen05.ld of warp", "reads columns", "which tcgen05.mma (f8f6f4) of warp 0",
                 "a tcgen05.fence, before_thread_sync there or after_thread_sync here, is missing"),
           wanted=PRODUCT, a=A, b=B)  # fmt: skip
def result_loaded_without_a_fence_after_the_barrier(k: Builder, repaired: bool) -> None:
    pipelined(k, wait_by_turn=True, fenced=repaired)


# Clusters


@known_bug("mlc-ai/TIRx-kernels#9",
           found("mbarrier", "block 0, warp 0", "has an engine arrive at mbarrier full[0], which block",
                 "initialises without a fence.mbarrier_init after it"),
           wanted=np.tile(NUMBERS[0], (2, 1)), grid=2, x=NUMBERS[:1].view(np.uint8)[None])  # fmt: skip
def barriers_of_a_cluster_initialised_without_a_fence(k: Builder, repaired: bool) -> None:
    """A block of two copies a row to both; they have met at the cluster's barrier."""
    x, d = k.tensor_map("x", U8, (1, 1, 16)), k.parameter("d", u64)
    k.cluster(2)
    row, full = k.shared("row", (1, 128), U8).at(0), k.shared_barriers("full", 1).at(0)
    with k.mask(elect(k)):
        mbarrier_init(k, full, count=1)
        if repaired:
            fence_mbarrier_init(k)
    cluster_arrive(k)
    cluster_wait(k)
    with k.mask(elect(k)):
        mbarrier_arrive_expect(k, full, bytes=16)
        with k.when(cluster_rank(k) == 0):
            bulk_load_multicast_3d(k, row, x.register, 0, 0, 0, full, type=x.type, blocks=0b11)
    mbarrier_wait(k, full, 0)
    with k.mask(k.lane < 4):
        k.store(k.address(d, k.block * 4 + k.lane, 4), k.load(u32, row + k.lane * 4))
    cluster_arrive(k)
    cluster_wait(k)
