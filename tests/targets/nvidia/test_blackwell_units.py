"""Tensor memory and the tcgen05 queue: allocation, loads and stores, products, and every way to get them wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from kingpost.formats import BF16, E4M3, E5M2, F16, F32, U32
from kingpost.program import Builder, Register, Registers, f32, u32
from kingpost.targets.nvidia.isa.blackwell import (
    instruction_descriptor,
    mma_f8,
    mma_f16,
    mma_f16_masked,
    mma_mxf8,
    shared_descriptor,
    tensor_allocate,
    tensor_commit,
    tensor_fence_after,
    tensor_fence_before,
    tensor_free,
    tensor_load,
    tensor_load_bits,
    tensor_relinquish,
    tensor_store,
    tensor_wait_load,
    tensor_wait_store,
)
from kingpost.targets.nvidia.isa.common import (
    elect,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_init,
    mbarrier_wait,
)
from kingpost.targets.nvidia.units.tcgen05 import operand_addresses

from ...emulate.harness import found, run

SCHEDULES = ("late", "early", "random")


@contextmanager
def allocated(k: Builder, columns: int = 32, warps: int = 4) -> Iterator[Register]:
    """The address of columns that the first warp allocates, and frees at the end."""
    k.warps(warps)
    slot = k.shared("slot", (1,), U32).at(0)
    with k.when(k.warp == 0):
        tensor_allocate(k, slot, columns=columns)
        tensor_relinquish(k)
    k.barrier()
    address = k.load(u32, slot)
    yield address
    tensor_fence_before(k)
    k.barrier()
    with k.when(k.warp == 0):
        tensor_fence_after(k)
        tensor_free(k, address, columns=columns)


def numbered(k: Builder, count: int) -> Registers:
    """Register i of thread t: 1000 t + i."""
    values = k.array(u32, count)
    for i, value in enumerate(values):
        k.set(value, k.thread * 1000 + i)
    return values


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_was_stored_is_loaded(schedule: str) -> None:
    d = np.zeros((128, 8), np.uint32)

    def body(k: Builder, d: Register) -> None:
        with allocated(k) as address:
            own = address + (k.warp << 21)
            tensor_store(k, own, numbered(k, 8), count=8, column=16)
            tensor_wait_store(k)
            values = k.array(u32, 8)
            tensor_load_bits(k, own, count=4, column=20, into=values[0:4])
            tensor_load_bits(k, own, count=4, column=16, into=values[4:8])
            tensor_wait_load(k)
            for i, value in enumerate(values):
                k.store(k.address(d, k.thread, 32), value, offset=4 * i)

    run(body, schedule, d=d)
    wanted = np.arange(128)[:, None] * 1000 + [4, 5, 6, 7, 0, 1, 2, 3]
    np.testing.assert_array_equal(d, wanted)


def test_two_halves_of_sixteen_lanes() -> None:
    """16x32bx2: lanes 16 to 31 get the columns `split` on, of the first 16 lanes or of the second."""
    d = np.zeros((2, 128), np.uint32)

    def body(k: Builder, d: Register) -> None:
        with allocated(k) as address:
            own = address + (k.warp << 21)
            tensor_store(k, own, numbered(k, 8), count=8)
            tensor_wait_store(k)
            for half in range(2):
                value = k.array(u32, 1)
                tensor_load_bits(k, own + (half << 20), count=1, column=1, split=4, into=value)
                tensor_wait_load(k)
                k.store(k.address(d, k.thread, 4), value[0], offset=512 * half)

    run(body, d=d)
    warp, lane = np.arange(128) // 32, np.arange(128) % 32
    for half in range(2):
        np.testing.assert_array_equal(d[half], (32 * warp + 16 * half + lane % 16) * 1000 + np.where(lane < 16, 1, 5))


def test_stores_of_two_halves() -> None:
    """Lanes 16 to 31 go to the first 16 lanes, `split` columns on."""
    d = np.zeros((128, 8), np.uint32)

    def body(k: Builder, d: Register) -> None:
        with allocated(k) as address:
            own = address + (k.warp << 21)
            tensor_store(k, own, numbered(k, 8), count=8)
            tensor_wait_store(k)
            tensor_store(k, own, numbered(k, 2), count=2, split=4)
            tensor_wait_store(k)
            values = k.array(u32, 8)
            tensor_load_bits(k, own, count=8, into=values)
            tensor_wait_load(k)
            for i, value in enumerate(values):
                k.store(k.address(d, k.thread, 32), value, offset=4 * i)

    run(body, d=d)
    wanted = np.arange(128)[:, None] * 1000 + np.arange(8)
    for half in range(2):
        for warp in range(4):
            rows = np.arange(16) + 32 * warp
            wanted[rows, 4 * half : 4 * half + 2] = (rows + 16 * half)[:, None] * 1000 + np.arange(2)
    np.testing.assert_array_equal(d, wanted)


# Refused while the program is written


def refused(body: Callable[[Builder], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        body(Builder("refused", "sm_100a"))


@pytest.mark.parametrize("columns", [0, 16, 48, 1024])
def test_columns_that_no_allocation_may_have(columns: int) -> None:
    refused(lambda k: tensor_allocate(k, k.new(u32, 0), columns=columns), "a power of two from 32 to 512 is wanted")
    refused(lambda k: tensor_free(k, k.new(u32, 0), columns=columns), f"columns is {columns}")


def test_as_many_registers_as_a_load_moves() -> None:
    message = r"tcgen05.ld/st .x64: \w+ are not 64 different registers"
    refused(lambda k: tensor_load(k, k.new(u32, 0), count=64, into=k.array(f32, 4)), message)
    refused(lambda k: tensor_store(k, k.new(u32, 0), k.array(f32, 65), count=64), message)
    refused(lambda k: tensor_load(k, k.new(u32, 0), count=64, into=k.array(f32, 4)[[0, 1, 2, 3] * 16]), "different")
    refused(lambda k: tensor_load(k, k.new(u32, 0), count=3, into=k.array(f32, 3)), "one of .1, 2, 4")


def mma(kind: str, m: int = 128, n: int = 128, a_format=E4M3, b_format=E4M3, **more):  # type: ignore[no-untyped-def]
    def body(k: Builder) -> None:
        d, a, b = k.new(u32, 0), *(shared_descriptor(k, k.new(u32, 0)) for _ in range(2))
        shape = {"n": n, "a_format": a_format, "b_format": b_format}
        match kind:
            case "f16":
                mma_f16(k, d, a, b, 0, m=m, **shape)
            case "masked":
                mma_f16_masked(k, d, a, b, 0, k.array(u32, more["words"]), m=m, **shape)
            case "f8":
                mma_f8(k, d, a, b, 0, m=m, **shape)
            case _:
                mma_mxf8(k, d, a, b, 0, d, d, a_scale=more.get("a_scale", 0), b_scale=more.get("b_scale", 0), **shape)

    return body


@pytest.mark.parametrize(
    "body, message",
    [
        (mma("f8", m=32), "m is 32; 64 or 128 is wanted"),
        (mma("f8", n=24), "n is 24; a multiple of 16 from 16 to 256 is wanted at m = 128"),
        (mma("f8", m=64, n=260), "n is 260; a multiple of 8 from 8 to 256 is wanted at m = 64"),
        (mma("f8", a_format=F16), "a_format is float16; e4m3 or e5m2 is wanted"),
        (mma("f16", a_format=BF16, b_format=E5M2), "b_format is e5m2; float16 or bfloat16 is wanted"),
        (mma("f16", a_format=BF16, b_format=F16), "a_format and b_format differ"),
        (mma("masked", a_format=F16, b_format=F16, words=2), "four u32, a bit for each of 128 lanes, are wanted"),
        (mma("mxf8", b_format=F32), "b_format is float32"),
        (mma("mxf8", b_scale=4), "b_scale is 4; a byte, 0 to 3, is wanted"),
    ],
)
def test_products_that_there_are_not(body: Callable, message: str) -> None:
    refused(body, message)


def test_instruction_descriptors() -> None:
    """Against the fields of the PTX ISA, put together by hand."""
    assert instruction_descriptor(128, 256, E4M3, E4M3) == 0b01000 << 24 | 0b100000 << 17 | 1 << 4
    assert instruction_descriptor(64, 8, E5M2, E4M3) == 0b00100 << 24 | 0b000001 << 17 | 1 << 7 | 1 << 4
    assert instruction_descriptor(128, 64, BF16, BF16) == 8 << 24 | 8 << 17 | 1 << 10 | 1 << 7 | 1 << 4
    assert (
        instruction_descriptor(128, 64, E4M3, E5M2, (3, 2)) == 3 << 29 | 8 << 24 | 1 << 23 | 8 << 17 | 1 << 10 | 2 << 4
    )


def test_operands_without_a_swizzle() -> None:
    """8-row groups of 16-byte rows, the two halves of K `leading` apart."""
    leading, stride = 256, 128
    found = operand_addresses(1 << 46 | stride >> 4 << 32 | leading >> 4 << 16 | 2048 >> 4, 16)
    row, byte = np.arange(16)[:, None], np.arange(32)[None]
    np.testing.assert_array_equal(found, 2048 + row // 8 * 128 + row % 8 * 16 + byte // 16 * 256 + byte % 16)


# Found while it runs


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("verb", ["reads", "writes"])
def test_registers_in_flight(schedule: str, verb: str) -> None:
    def body(k: Builder, stored: bool) -> None:
        with allocated(k) as address:
            own = address + (k.warp << 21)
            values = numbered(k, 4)
            tensor_store(k, own, values, count=4)
            if not stored:
                tensor_wait_store(k)
                tensor_load_bits(k, own, count=4, into=values)
            if verb == "reads":
                k.new(u32, values[1])
            else:
                k.set(values[1], 0)

    with found("register in flight", verb, "a tcgen05.ld without its tcgen05.wait::ld"):
        run(lambda k: body(k, stored=False), schedule)
    with found("register in flight", verb, "a tcgen05.st without its tcgen05.wait::st"):
        run(lambda k: body(k, stored=True), schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_loads_into_the_same_registers(schedule: str) -> None:
    def body(k: Builder) -> None:
        with allocated(k) as address:
            values = k.array(u32, 4)
            for column in (0, 4):
                tensor_load_bits(k, address + (k.warp << 21), count=4, column=column, into=values)

    with found("register in flight", "writes", "a tcgen05.ld without its tcgen05.wait::ld still holds"):
        run(body, schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_load_after_a_store_that_was_not_waited_for(schedule: str) -> None:
    def body(k: Builder) -> None:
        with allocated(k) as address:
            own = address + (k.warp << 21)
            tensor_store(k, own, numbered(k, 4), count=4)
            tensor_load_bits(k, own, count=4, into=k.array(u32, 4))

    with found("tensor memory", "while a tcgen05.st there has not been waited for"):
        run(body, schedule)


def test_cells_never_written_make_registers_without_a_value() -> None:
    def body(k: Builder) -> None:
        with allocated(k) as address:
            values = k.array(u32, 1)
            tensor_load_bits(k, address + (k.warp << 21), count=1, into=values)
            tensor_wait_load(k)
            k.new(u32, values[0])

    with found("uninitialised", "which was never written"):
        run(body)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_of_another_warp(schedule: str) -> None:
    def body(k: Builder) -> None:
        with allocated(k) as address:
            tensor_store(k, address, numbered(k, 1), count=1)
            tensor_wait_store(k)

    with found("tensor memory", "accesses lanes from 0; this warp may from"):
        run(body, schedule)


def test_columns_beyond_the_allocation() -> None:
    def body(k: Builder) -> None:
        with allocated(k) as address:
            tensor_store(k, address + (k.warp << 21), numbered(k, 4), count=4, column=30)

    with found("tensor memory", "touches columns", "allocated: 480 to 511"):
        run(body)


def test_use_after_dealloc() -> None:
    def body(k: Builder) -> None:
        with allocated(k, warps=1) as address:
            pass
        tensor_store(k, address, numbered(k, 4), count=4)

    with found("tensor memory", "touches columns 480 to 483; allocated: nothing"):
        run(body)


def test_columns_that_are_still_in_use_are_not_freed() -> None:
    def body(k: Builder) -> None:
        with allocated(k, warps=1) as address:
            tensor_store(k, address, numbered(k, 4), count=4)

    for schedule in SCHEDULES:
        with found("tensor memory", "frees columns 480 to 511, which a tcgen05.st may still touch"):
            run(body, schedule)


def test_what_is_not_freed_is_a_leak() -> None:
    def body(k: Builder) -> None:
        tensor_allocate(k, k.shared("slot", (1,), U32).at(0), columns=64)

    with found("tensor memory", "the block ends with columns 448 to 511 of tensor memory allocated"):
        run(body)


def test_what_was_not_allocated_is_not_freed() -> None:
    def body(k: Builder, columns: int) -> None:
        slot = k.shared("slot", (1,), U32).at(0)
        tensor_allocate(k, slot, columns=64)
        tensor_free(k, k.load(u32, slot), columns=columns)

    run(lambda k: body(k, 64))
    with found("tensor memory", "frees 32 columns at 448; allocated: 448 to 511"):
        run(lambda k: body(k, 32))


def test_allocation_waits_for_columns_and_asks_before_it_relinquishes() -> None:
    def full(k: Builder) -> None:
        slots = k.shared("slot", (2,), U32)
        for i in range(2):
            tensor_allocate(k, slots.at(i), columns=512)

    def late(k: Builder) -> None:
        tensor_relinquish(k)
        tensor_allocate(k, k.shared("slot", (1,), U32).at(0), columns=32)

    with pytest.raises(Exception, match="512 columns of tensor memory; allocated: 0 to 511"):
        run(full)
    with found("tensor memory", "gave up the right to"):
        run(late)


def test_two_warps_may_take_turns_with_all_columns() -> None:
    def body(k: Builder) -> None:
        k.warps(2)
        slots = k.shared("slot", (2,), U32)
        slot = slots.at(k.warp)
        tensor_allocate(k, slot, columns=512)
        tensor_free(k, k.load(u32, slot), columns=512)

    for schedule in SCHEDULES:
        run(body, schedule)


# Products


def multiplied(
    issue: Callable[[Builder, Register, Register, Register], None], commit: bool = True, lanes: int = 1
) -> Callable[[Builder], None]:
    """A body: zeros as operands, `issue` by the first `lanes` lanes of warp 0, then a commit that all wait for."""

    def body(k: Builder) -> None:
        a = k.shared("a", (128, 32), F32, swizzle=128)
        with allocated(k) as address:
            with k.loop(a.bytes // 512) as turn:
                k.store(k.fused_multiply_add(turn, 512, a.at(0) + k.thread * 4), k.new(u32, 0))
            done = k.shared_barriers("done", 1).at(0)
            with k.when(k.warp == 0), k.mask(elect(k)):
                mbarrier_init(k, done, count=1)
                fence_mbarrier_init(k)
            fence_proxy_async(k)
            tensor_fence_before(k)
            k.barrier()
            tensor_fence_after(k)
            with k.when(k.warp == 0), k.mask(k.lane < lanes):
                issue(k, address, shared_descriptor(k, a.at(0)), shared_descriptor(k, a.at(0)))
                if commit:
                    tensor_commit(k, done)
            if commit:
                mbarrier_wait(k, done, 0)

    return body


def f8(k: Builder, d: Register, a: Register, b: Register, accumulate: int = 0) -> None:
    mma_f8(k, d, a, b, accumulate, m=128, n=32)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_product_is_committed_before_its_accumulator_goes(schedule: str) -> None:
    run(multiplied(f8), schedule)
    with found("tensor memory", "which an mma (f8f6f4) may still touch"):
        run(multiplied(f8, commit=False), schedule)


def test_products_are_issued_by_one_thread() -> None:
    with found("tcgen05", "issued by 2 lanes, each on its own; one is wanted"):
        run(multiplied(f8, lanes=2))


def test_adding_to_what_was_never_written() -> None:
    with found("uninitialised", "of tensor memory, where some cells were never written"):
        run(multiplied(lambda k, d, a, b: f8(k, d, a, b, 1)))


def test_an_accumulator_beyond_the_allocation() -> None:
    with found("tensor memory", "touches columns 496 to 527"):
        run(multiplied(lambda k, d, a, b: f8(k, d + 16, a, b)))


def test_scales_that_were_never_written() -> None:
    def issue(k: Builder, d: Register, a: Register, b: Register) -> None:
        mma_mxf8(k, d, a, b, 0, d + 16, d + 20, n=16, a_scale=0, b_scale=0)

    with found("uninitialised", "columns 496 to 499 of tensor memory"):
        run(multiplied(issue))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_lane_mask(schedule: str) -> None:
    """Lanes whose bit is set keep what they hold."""
    d = np.zeros(128, np.float32)
    masks = np.array([0x80000001, 0, 0xFFFFFFFF, 0x0000FFFF], np.uint32)

    def body(k: Builder, d: Register) -> None:
        ones = k.shared("ones", (128, 64), BF16, swizzle=128)
        with allocated(k) as address:
            own = address + (k.warp << 21)
            held = k.array(f32, 16)
            k.set(held, 5.0)
            tensor_store(k, own, held, count=16)
            tensor_wait_store(k)
            with k.loop(ones.bytes // 512) as turn:
                k.store(k.fused_multiply_add(turn, 512, ones.at(0) + k.thread * 4), k.new(u32, 0x3F803F80))
            done = k.shared_barriers("done", 1).at(0)
            with k.when(k.warp == 0), k.mask(elect(k)):
                mbarrier_init(k, done, count=1)
                fence_mbarrier_init(k)
            fence_proxy_async(k)
            tensor_fence_before(k)
            k.barrier()
            tensor_fence_after(k)
            with k.when(k.warp == 0), k.mask(elect(k)):
                disabled = k.array(u32, 4)
                for word, mask in zip(disabled, masks):
                    k.set(word, int(mask))
                operand = shared_descriptor(k, ones.at(0))
                mma_f16_masked(k, address, operand, operand, 1, disabled, m=128, n=16, a_format=BF16, b_format=BF16)
                tensor_commit(k, done)
            mbarrier_wait(k, done, 0)
            tensor_fence_after(k)
            tensor_load(k, own, count=16, into=held)
            tensor_wait_load(k)
            k.store(k.address(d, k.thread, 4), held[15])

    run(body, schedule, d=d)
    disabled = np.unpackbits(masks.view(np.uint8), bitorder="little").astype(bool)
    np.testing.assert_array_equal(d, np.where(disabled, 5, 5 + 16))
