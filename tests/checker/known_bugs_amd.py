"""Reported bugs of kernels for CDNA4: found under every schedule; repaired, clean and right."""

from __future__ import annotations

import numpy as np

from kingpost.formats import U32
from kingpost.program import Builder, Register, Registers, f32, u32, u64
from kingpost.targets.amd.isa.cdna3 import v_mfma_f32_32x32x8f16, v_mfma_f32_32x32x16_fp8_fp8
from kingpost.targets.amd.isa.cdna4 import v_mfma_f32_32x32x64_f8f6f4
from kingpost.targets.amd.isa.common import (
    ds_read_b32,
    ds_write_b32,
    global_load_dword,
    global_store_dword,
    global_store_dwordx4,
    s_barrier,
    s_nop,
    s_waitcnt,
    v_accvgpr_read_b32,
    v_pk_add_f32,
)
from kingpost.targets.amd.targets import GFX950

from .known_bugs import UNORDERED, KnownBugs, found

known_bug = KnownBugs(GFX950)

LANES, WAVES, TURNS = 64, 2, 6
WORDS = np.arange(TURNS * WAVES * LANES, dtype=np.uint32).reshape(TURNS, WAVES, LANES)
SUMS = WORDS.sum(0, dtype=np.uint32)


# Counters


@known_bug("HazyResearch/HipKittens#40",
           found("register in flight", "reads", "which a global_load_dword that no s_waitcnt vmcnt has waited for"),
           wanted=SUMS[0], x=np.ascontiguousarray(WORDS[:, 0]))  # fmt: skip
def epilogue_that_waits_as_if_there_were_a_newer_load(k: Builder, repaired: bool) -> None:
    """Words are loaded one turn ahead. The last turn loads none, so that vmcnt(1) waits for nothing there."""
    x, d, values = k.parameter("x", u64), k.parameter("d", u64), k.array(u32, 2)
    total = k.new(u32, 0)

    def load(turn: int) -> None:
        global_load_dword(k, k.address(x, k.lane + LANES * turn, 4), into=values[turn % 2])

    load(0)
    for turn in range(TURNS):
        last = turn + 1 == TURNS
        if not last:
            load(turn + 1)
        s_waitcnt(k, vmcnt=0 if last and repaired else 1)
        total += values[turn % 2]
    global_store_dword(k, k.address(d, k.lane, 4), total)


class Exchange:
    """A ring of words in LDS, one of each thread of two waves, who read the other wave's."""

    def __init__(self, k: Builder, slots: int) -> None:
        self.k, self.slots = k, slots
        k.warps(WAVES)
        self.x, self.d = k.parameter("x", u64), k.parameter("d", u64)
        self.tile, self.word, self.total = k.shared("tile", (slots, WAVES * LANES), U32), k.array(u32, 1), k.new(u32, 0)

    def write(self, turn: int) -> None:
        global_load_dword(self.k, self.k.address(self.x, self.k.thread + WAVES * LANES * turn, 4), into=self.word)
        s_waitcnt(self.k, vmcnt=0)
        ds_write_b32(self.k, self.tile.at(turn % self.slots) + self.k.thread * 4, self.word)

    def read(self, turn: int, into: Registers) -> None:
        ds_read_b32(self.k, self.tile.at(turn % self.slots) + (self.k.thread ^ LANES) * 4, into=into)

    def finish(self) -> None:
        global_store_dword(self.k, self.k.address(self.d, self.k.thread, 4), self.total)


OVERWRITTEN = found("race", "ds_write_b32 of block 0, warp", "overwrites tile[", "which ds_read_b32 of block 0, warp",
                    "may still read", UNORDERED)  # fmt: skip
READ_TOO_LATE = found("race", "ds_read_b32 of block 0, warp", "reads tile[", "which ds_write_b32 of block 0, warp",
                      "wrote", UNORDERED)  # fmt: skip


@known_bug("HazyResearch/HipKittens#67", OVERWRITTEN, READ_TOO_LATE, wanted=SUMS[::-1], x=WORDS)
def tile_refilled_while_waves_may_still_read_it(k: Builder, repaired: bool) -> None:
    """All waves have met, but with reads in flight: s_barrier waits for waves, not for their memory."""
    exchange, value = Exchange(k, 1), k.array(u32, 1)
    exchange.write(0)
    for turn in range(TURNS):
        s_waitcnt(k, lgkmcnt=0)
        s_barrier(k)
        exchange.read(turn, into=value)
        if repaired:
            s_waitcnt(k, lgkmcnt=0)
        s_barrier(k)
        if turn + 1 < TURNS:
            exchange.write(turn + 1)
        s_waitcnt(k, lgkmcnt=0)
        exchange.total += value
    exchange.finish()


@known_bug("ROCm/rocm-libraries#10653", OVERWRITTEN, READ_TOO_LATE, wanted=SUMS[::-1], x=WORDS)
def barrier_of_a_double_buffer_with_reads_outstanding(k: Builder, repaired: bool) -> None:
    """The wait before the barrier covers the writes, which were issued before the read, and not the read."""
    exchange, value = Exchange(k, 2), k.array(u32, 1)
    exchange.write(0)
    for turn in range(TURNS):
        s_waitcnt(k, lgkmcnt=0 if repaired or turn == 0 else 1)
        s_barrier(k)
        if turn + 1 < TURNS:
            exchange.write(turn + 1)
        if turn > 0:
            s_waitcnt(k, lgkmcnt=0)
            exchange.total += value
        exchange.read(turn, into=value)
    s_waitcnt(k, lgkmcnt=0)
    exchange.total += value
    exchange.finish()


@known_bug("ROCm/aiter#4537", OVERWRITTEN, READ_TOO_LATE, wanted=SUMS[::-1], x=WORDS)
def ring_filled_by_one_slot_too_many(k: Builder, repaired: bool) -> None:
    """With one barrier a turn, the slot that a turn reads must not be the one that it fills."""
    slots = 3
    ahead, value = slots - 1 if repaired else slots, k.array(u32, 1)
    exchange = Exchange(k, slots)
    for turn in range(ahead):
        exchange.write(turn)
    for turn in range(TURNS):
        s_waitcnt(k, lgkmcnt=0)
        s_barrier(k)
        if turn + ahead < TURNS:
            exchange.write(turn + ahead)
        exchange.read(turn, into=value)
        s_waitcnt(k, lgkmcnt=0)
        exchange.total += value
    exchange.finish()


# Wait states

ONES_FP8, ONES_F16 = 0x38383838, 0x3C003C00


def ones(k: Builder, registers: int, word: int) -> Registers:
    operand = k.array(u32, registers)
    k.set(operand, word)
    s_nop(k, count=1)
    return operand


def wait(k: Builder, states: int) -> None:
    for left in range(states, 0, -16):
        s_nop(k, count=min(left, 16) - 1)


def rows(k: Builder) -> Register:
    """The address of a lane's row of 16 sums."""
    return k.address(k.parameter("d", u64), k.lane, 64)


def store_row(k: Builder, row: Register, sums: Registers) -> None:
    for first in range(0, 16, 4):
        global_store_dwordx4(k, row, sums[first : first + 4], offset=4 * first)


def sums(value: float) -> np.ndarray:
    return np.full((LANES, 16), value, np.float32)


@known_bug("llvm/llvm-project#222040",
           found("wait states", "reads", "a product's result, 19 wait states after v_mfma_f32_32x32x64_f8f6f4",
                 "20 are wanted: s_nop for 1 more is missing"), wanted=sums(64))  # fmt: skip
def result_read_nineteen_wait_states_after_a_product_of_sixteen_passes(k: Builder, repaired: bool) -> None:
    row, operand, total = rows(k), ones(k, 8, ONES_FP8), k.array(f32, 16)
    v_mfma_f32_32x32x64_f8f6f4(k, operand, operand, 0, into=total)
    wait(k, 20 if repaired else 19)
    store_row(k, row, total)


@known_bug("llvm/llvm-project#218363",
           found("wait states", "reads", "a product's result, 0 wait states after v_mfma_f32_32x32x16_fp8_fp8",
                 "12 are wanted"), wanted=sums(16 + 8))  # fmt: skip
def accumulator_of_two_different_products(k: Builder, repaired: bool) -> None:
    """It is forwarded from a product to the next one of its kind, and to no other."""
    row, codes, halves, total = rows(k), ones(k, 2, ONES_FP8), ones(k, 2, ONES_F16), k.array(f32, 16)
    v_mfma_f32_32x32x16_fp8_fp8(k, codes, codes, 0, into=total)
    wait(k, 12 if repaired else 0)
    v_mfma_f32_32x32x8f16(k, halves, halves, total, into=total)
    wait(k, 12)
    store_row(k, row, total)


@known_bug("facebookexperimental/triton#3417",
           found("wait states", "reads", "a product's result", "after v_mfma_f32_32x32x16_fp8_fp8", "12 are wanted"),
           wanted=sums(48))  # fmt: skip
def accumulation_registers_copied_right_after_the_last_product(k: Builder, repaired: bool) -> None:
    """Within a chain of products no wait states are needed, at its end they are."""
    row, codes, kept, total = rows(k), ones(k, 2, ONES_FP8), k.array(f32, 16, place="a[0:15]"), k.array(f32, 16)
    for step in range(3):
        v_mfma_f32_32x32x16_fp8_fp8(k, codes, codes, kept if step else 0, into=kept)
    wait(k, 12 if repaired else 0)
    v_accvgpr_read_b32(k, kept, into=total)
    store_row(k, row, total)


@known_bug("llvm/llvm-project#197267",
           found("wait states", "writes", "data that a store still reads, 0 wait states after global_store_dwordx4",
                 "2 are wanted"), wanted=np.arange(LANES * 4, dtype=np.float32))  # fmt: skip
def data_of_a_store_overwritten_by_the_next_instruction(k: Builder, repaired: bool) -> None:
    d, row = k.parameter("d", u64), k.array(f32, 4)
    for i in range(4):
        k.set(row[i], k.convert(f32, k.lane * 4 + i))
    global_store_dwordx4(k, k.address(d, k.lane, 16), row)
    wait(k, 2 if repaired else 0)
    v_pk_add_f32(k, row[0:2], row[0:2], into=row[0:2])


# Tiles

BAND, COLUMNS, ALL = 2, 3, 15  # rows of tiles in a band; columns; tiles, the last row of which is in no band


@known_bug("ROCm/aiter#3445",
           found("race", "writes global address", "which block", "wrote: nothing orders blocks of one launch"),
           wanted=np.tile(np.arange(ALL, dtype=np.uint32)[:, None], LANES), grid=ALL)  # fmt: skip
def order_of_tiles_that_leaves_some_out(k: Builder, repaired: bool) -> None:
    """Blocks go down the columns of one band after another; those that are left, along the rows. Where the bands are
    cut short, after a number of blocks that is no whole band, some tiles are no block's, and others two blocks'."""
    d = k.parameter("d", u64)
    inside, band = k.block % (BAND * COLUMNS), k.block // (BAND * COLUMNS)
    banded = (band * BAND + inside % BAND) * COLUMNS + inside // BAND
    tile = k.select(k.block < (12 if repaired else 8), banded, k.block)
    k.store(k.address(d, tile * LANES + k.lane, 4), tile)
