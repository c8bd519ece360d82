"""Wait counters and wait states: what a wave may touch, when; and each way to be too early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kingpost.formats import U32
from kingpost.program import Builder, Register, Registers, f32, u32
from kingpost.targets.amd.isa.cdna3 import (
    v_mfma_f32_16x16x32_fp8_fp8,
    v_mfma_f32_32x32x8f16,
    v_mfma_f32_32x32x16_fp8_fp8,
)
from kingpost.targets.amd.isa.cdna4 import v_mfma_f32_16x16x128_f8f6f4, v_mfma_f32_32x32x64_f8f6f4
from kingpost.targets.amd.isa.common import (
    buffer_load_dwordx4,
    ds_read_b32,
    ds_read_b64,
    ds_read_b128,
    ds_write_b32,
    ds_write_b64,
    global_load_dword,
    global_load_dwordx4,
    global_store_dword,
    global_store_dwordx4,
    s_barrier,
    s_nop,
    s_waitcnt,
    v_pk_add_f32,
    v_readfirstlane_b32,
)
from kingpost.targets.amd.targets import GFX942, GFX950

from ...emulate.harness import found, run
from .wave import SCHEDULES

LANES = 64
SOURCE = np.arange(4 * LANES, dtype=np.uint32).reshape(LANES, 4) * 3 + 7


def copied(body: Callable[..., None], order: str) -> np.ndarray:
    """What `body(k, source, result)` leaves in `result`, uint32 [64, 4] as `SOURCE` is."""
    result = np.zeros_like(SOURCE)
    run(body, order, seed=1, target=GFX942, source=SOURCE, result=result)
    return result


@pytest.mark.parametrize("order", SCHEDULES)
def test_a_load_and_a_store(order: str) -> None:
    def body(k: Builder, source: Register, result: Register) -> None:
        values = k.array(u32, 4)
        global_load_dwordx4(k, k.address(source, k.lane, 16), into=values)
        s_waitcnt(k, vmcnt=0)
        global_store_dwordx4(k, k.address(result, k.lane, 16), values)

    assert (copied(body, order) == SOURCE).all()


@pytest.mark.parametrize("order", SCHEDULES)
def test_a_register_in_flight_is_not_read(order: str) -> None:
    def body(k: Builder, source: Register, result: Register) -> None:
        values = k.array(u32, 4)
        global_load_dwordx4(k, k.address(source, k.lane, 16), into=values)
        s_waitcnt(k, lgkmcnt=0)
        global_store_dwordx4(k, k.address(result, k.lane, 16), values)

    with found("register in flight", "reads", "global_load_dwordx4 that no s_waitcnt vmcnt has waited for"):
        copied(body, order)


@pytest.mark.parametrize("order", SCHEDULES)
def test_a_register_in_flight_is_not_written(order: str) -> None:
    def body(k: Builder, source: Register, result: Register) -> None:
        values = k.array(u32, 1)
        global_load_dword(k, k.address(source, k.lane, 16), into=values)
        k.set(values, 0)

    with found("register in flight", "writes"):
        copied(body, order)

    def twice(k: Builder, source: Register, result: Register) -> None:
        values = k.array(u32, 1)
        global_load_dword(k, k.address(source, k.lane, 16), into=values)
        global_load_dword(k, k.address(source, k.lane, 16), into=values)

    with found("register in flight", "loads into"):
        copied(twice, order)


@pytest.mark.parametrize("order", SCHEDULES)
def test_loads_and_stores_fall_in_order(order: str) -> None:
    def body(k: Builder, source: Register, result: Register, left: int = 2) -> None:
        first, second = k.array(u32, 1), k.array(u32, 1)
        at, to = k.address(source, k.lane, 16), k.address(result, k.lane, 16)
        global_load_dword(k, at, into=first)
        global_load_dword(k, at, into=second, offset=4)
        s_waitcnt(k, vmcnt=1)
        global_store_dword(k, to, first)
        global_load_dword(k, at, into=first, offset=8)
        s_waitcnt(k, vmcnt=left)  # the store and the newest load may be in flight, the second load not
        global_store_dword(k, to, second, offset=4)
        s_waitcnt(k, vmcnt=1)
        global_store_dword(k, to, first, offset=8)

    result = copied(body, order)
    assert (result[:, :3] == SOURCE[:, :3]).all() and not result[:, 3].any()
    with found("register in flight", "vmcnt"):
        copied(lambda k, source, result: body(k, source, result, left=3), order)


@pytest.mark.parametrize("order", SCHEDULES)
def test_memory_is_accessed_in_order_of_issue(order: str) -> None:

    def body(k: Builder, source: Register, result: Register) -> None:
        values, at = k.array(u32, 2), k.address(result, k.lane, 16)
        global_load_dword(k, at, into=values[0])
        global_store_dword(k, at, k.new(u32, 5))
        global_load_dword(k, at, into=values[1])
        s_waitcnt(k, vmcnt=0)
        global_store_dword(k, at, values[0], offset=4)
        global_store_dword(k, at, values[1], offset=8)

    assert (copied(body, order)[:, :3] == [5, 0, 5]).all()


@pytest.mark.parametrize("order", SCHEDULES)
def test_only_active_lanes_load_and_store(order: str) -> None:
    def body(k: Builder, source: Register, result: Register) -> None:
        value = k.array(u32, 1)
        k.set(value, 1)
        with k.mask(k.lane < 10):
            global_load_dword(k, k.address(source, k.lane, 16), into=value)
            s_waitcnt(k, vmcnt=0)
        with k.mask(k.lane < 20):
            global_store_dword(k, k.address(result, k.lane, 16), value)

    wanted = np.where(np.arange(LANES) < 10, SOURCE[:, 0], np.where(np.arange(LANES) < 20, 1, 0))
    assert (copied(body, order)[:, 0] == wanted).all()


@pytest.mark.parametrize("order", SCHEDULES)
def test_lds_there_and_back(order: str) -> None:
    def body(k: Builder, source: Register, result: Register) -> None:
        tile, values, back = k.shared("tile", (LANES, 4), U32), k.array(u32, 4), k.array(u32, 4)
        at = tile.at(0) + k.lane * 16
        global_load_dwordx4(k, k.address(source, k.lane, 16), into=values)
        s_waitcnt(k, vmcnt=0)
        ds_write_b64(k, at, values[0:2])
        ds_write_b64(k, at, values[2:4], offset=8)
        ds_read_b128(k, tile.at(0) + (k.lane ^ 1) * 16, into=back)  # one wave's accesses to LDS stay in order
        s_waitcnt(k, lgkmcnt=0)
        global_store_dwordx4(k, k.address(result, k.lane, 16), back)

    assert (copied(body, order) == SOURCE.reshape(-1, 2, 4)[:, ::-1].reshape(SOURCE.shape)).all()


def test_lds_read_too_early() -> None:
    def body(k: Builder, source: Register, result: Register) -> None:
        tile, value = k.shared("tile", (LANES,), U32), k.array(u32, 1)
        at = tile.at(0) + k.lane * 4
        ds_write_b32(k, at, k.lane)
        ds_read_b32(k, at, into=value)
        s_waitcnt(k, vmcnt=0)
        global_store_dword(k, k.address(result, k.lane, 16), value)

    with found("register in flight", "ds_read_b32 that no s_waitcnt lgkmcnt"):
        copied(body, "early")


def exchanged(order: str, waits: bool) -> np.ndarray:
    """Two waves write a word of LDS each and read the other's."""
    result = np.zeros((2, LANES), np.uint32)

    def body(k: Builder, result: Register) -> None:
        k.warps(2)
        tile, value = k.shared("tile", (2, LANES), U32), k.array(u32, 1)
        ds_write_b32(k, tile.at(0) + k.thread * 4, k.thread)
        if waits:
            s_waitcnt(k, lgkmcnt=0)
        s_barrier(k)
        ds_read_b32(k, tile.at(0) + (k.thread ^ LANES) * 4, into=value)
        s_waitcnt(k, lgkmcnt=0)
        global_store_dword(k, k.address(result, k.thread, 4), value)

    run(body, order, seed=2, target=GFX942, result=result)
    return result


@pytest.mark.parametrize("order", SCHEDULES)
def test_waves_exchange_over_a_barrier(order: str) -> None:
    assert (exchanged(order, waits=True).ravel() == np.arange(2 * LANES) ^ LANES).all()


def test_a_barrier_does_not_wait_for_memory() -> None:
    with found("uninitialised", "tile"):
        exchanged("late", waits=False)
    with found("race", "reads tile[", "which ds_write_b32 of block 0, warp", "wrote: nothing orders the two"):
        exchanged("early", waits=False)


def test_alignment() -> None:
    def body(k: Builder, source: Register, result: Register) -> None:
        tile, values = k.shared("tile", (LANES, 4), U32), k.array(u32, 2)
        ds_read_b64(k, tile.at(0) + k.lane * 4, into=values)

    with found("misaligned", "8 bytes"):
        copied(body, "late")


# Wait states


def product_then(after: Callable[[Builder, Registers, Registers, Register], Any], target: Any = GFX942) -> None:
    """`after(k, total, operand, address)` after a product of 8 passes into `total`."""

    def body(k: Builder, result: Register) -> None:
        total, operand = k.array(f32, 16), k.array(u32, 2)
        at = k.address(result, k.lane, 4)
        k.set(operand, 0)
        v_mfma_f32_32x32x16_fp8_fp8(k, operand, operand, 0, into=total)
        after(k, total, operand, at)

    run(body, target=target, result=np.zeros(LANES, np.float32))


@pytest.mark.parametrize("target, wanted", [(GFX942, 11), (GFX950, 12)], ids=["gfx942", "gfx950"])
def test_a_result_is_read_too_early(target: Any, wanted: int) -> None:
    def store(k: Builder, total: Registers, at: Register, nop: int) -> None:
        s_nop(k, count=nop)
        global_store_dword(k, at, total[3])

    product_then(lambda k, total, operand, at: store(k, total, at, wanted - 1), target)
    with found("wait states", f"{wanted - 1} wait states after v_mfma_f32_32x32x16_fp8_fp8", "s_nop for 1 more"):
        product_then(lambda k, total, operand, at: store(k, total, at, wanted - 2), target)
    with found("wait states", "reads", "0 wait states", f"s_nop for {wanted} more"):
        product_then(lambda k, total, operand, at: global_store_dword(k, at, total[0]), target)


def test_other_instructions_pass_the_time() -> None:
    def after(k: Builder, total: Registers, operand: Registers, at: Register, moves: int) -> None:
        k.set(k.array(u32, moves), 5)  # one line of text each
        v_pk_add_f32(k, total[0:2], total[2:4], into=k.array(f32, 2))

    product_then(lambda *given: after(*given, moves=11))
    with found("wait states", "s_nop for 1 more"):
        product_then(lambda *given: after(*given, moves=10))


def test_a_chain_of_one_instruction_needs_no_wait() -> None:
    def chain(k: Builder, total: Registers, operand: Registers, at: Register) -> None:
        v_mfma_f32_32x32x16_fp8_fp8(k, operand, operand, total, into=total)
        v_mfma_f32_32x32x16_fp8_fp8(k, operand, operand, total, into=k.array(f32, 16))

    product_then(chain)


def test_an_accumulator_that_is_still_read_is_not_written() -> None:
    def after(k: Builder, total: Registers, operand: Registers, at: Register, nop: int) -> None:
        other, c = k.array(f32, 16), k.array(f32, 16)
        k.set(c, 0.0)
        v_mfma_f32_32x32x16_fp8_fp8(k, operand, operand, c, into=other)
        s_nop(k, count=nop)
        k.set(c, 1.0)

    product_then(lambda *given: after(*given, nop=6))
    with found("wait states", "writes", "an accumulator that a product still reads", "7 are wanted: s_nop for 1 more"):
        product_then(lambda *given: after(*given, nop=5))


def test_a_vector_result_for_a_product() -> None:
    def after(k: Builder, total: Registers, operand: Registers, at: Register, nop: int) -> None:
        c = k.array(f32, 4)
        k.set(c, 0.0)
        v_pk_add_f32(k, c[0:2], c[0:2], into=c[2:4])
        s_nop(k, count=nop)
        v_mfma_f32_16x16x32_fp8_fp8(k, operand, operand, c, into=c)

    product_then(lambda *given: after(*given, nop=1))
    with found("wait states", "a vector instruction's result, for a product", "2 are wanted: s_nop for 1 more"):
        product_then(lambda *given: after(*given, nop=0))


def test_another_product_on_the_accumulator_needs_one() -> None:
    with found("wait states", "reads"):
        product_then(
            lambda k, total, operand, at: v_mfma_f32_32x32x8f16(k, operand, operand, total, into=k.array(f32, 16))
        )
    with found("wait states", "writes"):
        product_then(lambda k, total, operand, at: v_mfma_f32_32x32x16_fp8_fp8(k, operand, operand, 0, into=total))
    with found("wait states", "writes"):
        product_then(lambda k, total, operand, at: v_mfma_f32_16x16x32_fp8_fp8(k, operand, operand, 0, into=total[4:8]))


@pytest.mark.parametrize(
    "product, registers, wanted",
    [(v_mfma_f32_16x16x128_f8f6f4, 4, 12), (v_mfma_f32_32x32x64_f8f6f4, 16, 20)],
    ids=["16x16x128", "32x32x64"],
)
def test_wait_states_of_gfx950(product: Any, registers: int, wanted: int) -> None:
    def body(k: Builder, result: Register, short: int = 0) -> None:
        total, operand = k.array(f32, registers), k.array(u32, 8)
        k.set(operand, 0)
        at = k.address(result, k.lane, 4)
        product(k, operand, operand, 0, into=total)
        for states in (wanted // 2, wanted - wanted // 2 - short):
            s_nop(k, count=states - 1)
        global_store_dword(k, at, total[0])

    given = {"target": GFX950, "result": np.zeros(LANES, np.float32)}
    run(body, **given)
    with found("wait states", f"{wanted} are wanted: s_nop for 1 more"):
        run(lambda k, result: body(k, result, short=1), **given)


def test_a_scalar_from_the_vector_unit_for_a_memory_instruction() -> None:
    def body(k: Builder, source: Register, result: Register, nop: int = 4) -> None:
        descriptor, values = k.array(u32, 4, place="s[8:11]"), k.array(u32, 4)
        address = k.lane * 16
        for word in descriptor:
            v_readfirstlane_b32(k, k.new(u32, 0), into=word)
        s_nop(k, count=nop)
        buffer_load_dwordx4(k, address, descriptor, 0, into=values)  # of no records: reads zeros

    copied(body, "late")
    with found("wait states", "v_readfirstlane_b32", "s_nop for 1 more"):
        copied(lambda k, source, result: body(k, source, result, nop=3), "late")
