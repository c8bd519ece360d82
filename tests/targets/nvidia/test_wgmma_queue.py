"""The wgmma family: operands by descriptor, accumulators in flight, the queue; and each way to misuse it."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from kingpost import emulate
from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.formats import E4M3, E5M2, F32
from kingpost.program import Builder, Register, Registers, f32, swizzle, u32
from kingpost.targets.nvidia.arithmetic import wgmma_f32
from kingpost.targets.nvidia.isa.common import (
    bulk_load_2d,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
)
from kingpost.targets.nvidia.isa.hopper import matrix_descriptor, wgmma, wgmma_commit, wgmma_fence, wgmma_wait
from kingpost.targets.nvidia.ptx import ptx
from kingpost.targets.nvidia.units.wgmma_queue import operand_addresses

from ...emulate.harness import found, run

SCHEDULES = ("late", "early", "random")
N = 16


def codes(rows: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.standard_normal((rows, 128)).astype(ml_dtypes.float8_e4m3fn)


A, B = codes(64, 1), codes(N, 2)


class Operands:
    """A [64, 128] and B [N, 128], loaded, and the index of the warp in its warpgroup; for use inside a role."""

    def __init__(self, k: Builder, a, b) -> None:
        self.k = k
        self.tiles = k.shared("a_tile", (64, 128), E4M3, 128), k.shared("b_tile", (N, 128), E4M3, 128)
        self.maps, self.full = (a, b), k.shared_barriers("full", 1).at(0)

    def load(self, warp: Register) -> None:
        k = self.k
        with k.when(warp == 0), k.mask(k.lane == 0):
            mbarrier_init(k, self.full, count=1)
            mbarrier_arrive_expect(k, self.full, bytes=sum(tile.bytes for tile in self.tiles))
            for map, tile in zip(self.maps, self.tiles):
                bulk_load_2d(k, tile.at(0), map.register, 0, 0, self.full, type=map.type)
        k.barrier()
        mbarrier_wait(k, self.full, 0)

    def product(self, into: Registers, accumulate: bool = False, offset: int = 0) -> None:
        k = self.k
        a, b = (matrix_descriptor(k, tile.at(0), offset=offset) for tile in self.tiles)
        wgmma(k, a, b, into=into, n=N, accumulate=accumulate)


def multiply(work, order: str = "late", seed: int = 0, warps: int = 4) -> np.ndarray:
    """`work(k, operands, warp, total)` on a warpgroup; what `total` holds at the end: float32 [64, N]."""
    d = np.full((64, N), np.nan, np.float32)

    def body(k: Builder, d, a, b) -> None:
        operands = Operands(k, a, b)
        with k.role("math", warps=warps) as warp:
            operands.load(warp)
            total = k.array(f32, N // 2, "total")
            work(k, operands, warp, total)
            first = k.address(d, (warp * 16 + k.lane // 4) * N + k.lane % 4 * 2, 4)
            for i, register in enumerate(total):
                k.store(first, register, offset=(i // 2 % 2 * 8 * N + i // 4 * 8 + i % 2) * 4)

    run(body, order, seed, d=d, maps={"a": (A, (64, 128), 128), "b": (B, (N, 128), 128)})
    return d


def expected(steps: int, c: np.ndarray | None = None) -> np.ndarray:
    for step in range(0, 32 * steps, 32):
        c = wgmma_f32(A.view(np.uint8)[:, step : step + 32], B.view(np.uint8)[:, step : step + 32], c)
    return c


def four_steps(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
    wgmma_fence(k)
    for step in range(4):
        operands.product(total, accumulate=step > 0, offset=32 * step)
    wgmma_commit(k)
    wgmma_wait(k, groups=0)


@pytest.mark.parametrize("order", SCHEDULES)
def test_a_chain_of_steps(order: str) -> None:
    assert multiply(four_steps, order, seed=3).tobytes() == expected(4).tobytes()


def test_from_an_accumulator() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        k.set(total, 2.5)
        wgmma_fence(k)
        operands.product(total, accumulate=True)
        wgmma_commit(k)
        wgmma_wait(k, groups=0)

    assert multiply(work).tobytes() == expected(1, np.full((64, N), 2.5, np.float32)).tobytes()


@pytest.mark.parametrize("order", SCHEDULES)
def test_accumulators_come_back_group_by_group(order: str) -> None:
    """Two halves of one array in flight: the first may be read while the second is not done."""

    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        both = k.array(f32, N, "both")
        first, second = both[: N // 2], both[N // 2 :]
        wgmma_fence(k)
        operands.product(first)
        wgmma_commit(k)
        operands.product(second, offset=32)
        wgmma_commit(k)
        wgmma_wait(k, groups=1)
        k.set(total, first)
        wgmma_wait(k, groups=0)
        total += second
        first *= 2.0

    second = wgmma_f32(A.view(np.uint8)[:, 32:64], B.view(np.uint8)[:, 32:64])
    assert multiply(work, order).tobytes() == (expected(1) + second).tobytes()


def test_waiting_for_fewer_leaves_the_rest_in_flight() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        other = k.array(f32, N // 2, "other")
        for into in (other, total):
            wgmma_fence(k)
            operands.product(into)
            wgmma_commit(k)
        wgmma_wait(k, groups=1)
        other += 1.0
        total += 1.0

    with found("register in flight", "reads total, which a wgmma in flight still holds", "test_wgmma_queue.py:"):
        multiply(work)


def test_an_accumulator_that_a_later_group_still_holds() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        wgmma_fence(k)
        for step in range(2):
            operands.product(total, accumulate=step > 0, offset=32 * step)
            wgmma_commit(k)
        wgmma_wait(k, groups=1)
        k.set(total, 0.0)
        wgmma_wait(k, groups=0)

    with found("register in flight", "writes total"):
        multiply(work, "early")


# What is found


@pytest.mark.parametrize("order", SCHEDULES)
@pytest.mark.parametrize("verb", ["reads", "writes"])
def test_an_accumulator_in_flight(verb: str, order: str) -> None:
    """Also when the product happens at once: the registers are the warp's again only after its wait."""

    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        wgmma_fence(k)
        operands.product(total)
        wgmma_commit(k)
        if verb == "reads":
            k.set(k.array(f32, 2), total[2:4])
        else:
            k.set(total[2:4], 0.0)
        wgmma_wait(k, groups=0)

    with found("register in flight", f"{verb} total[2:4], which a wgmma in flight still holds", "math warp"):
        multiply(work, order)


def test_products_that_are_not_committed_are_not_waited_for() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        operands.product(total)
        wgmma_wait(k, groups=0)

    with found("register in flight", "reads total[0]"):
        multiply(work)


def test_accumulating_onto_nothing() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        operands.product(total, accumulate=True)

    with found("uninitialised", "reads total, which was never written"):
        multiply(work)


def test_an_operand_without_a_value() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        empty = k.shared("empty", (N, 128), E4M3, 128)
        a = matrix_descriptor(k, operands.tiles[0].at(0))
        wgmma(k, a, matrix_descriptor(k, empty.at(0)), into=total, n=N, accumulate=False)
        wgmma_commit(k)
        wgmma_wait(k, groups=0)

    with found("uninitialised", "reads empty[0], which is never written", "wgmma of warp"):
        multiply(work)


def test_a_descriptor_that_leaves_shared_memory() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        a, b = (matrix_descriptor(k, tile.at(0)) for tile in operands.tiles)
        wgmma(k, a, b + (1 << 12), into=total, n=N, accumulate=False)
        wgmma_commit(k)
        wgmma_wait(k, groups=0)

    with found("out of bounds", "wgmma"):
        multiply(work)


def test_warps_that_issue_different_products() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        a, b = (matrix_descriptor(k, tile.at(0) + k.select(warp == 3, 32, 0)) for tile in operands.tiles)
        wgmma(k, a, b, into=total, n=N, accumulate=False)
        wgmma_commit(k)
        wgmma_wait(k, groups=0)

    with found("wgmma", "where another warp of its warpgroup issued", "math warp 3"):
        multiply(work)


def test_descriptors_that_differ_between_lanes() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        a, b = (matrix_descriptor(k, tile.at(0) + k.lane * 16) for tile in operands.tiles)
        wgmma(k, a, b, into=total, n=N, accumulate=False)

    with found("divergence", "wgmma with descriptors that differ between lanes"):
        multiply(work)


def test_a_product_in_some_lanes() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        with k.mask(k.lane < 16):
            operands.product(total)

    with found("divergence", "wgmma.mma_async in 16 of 32 lanes"):
        multiply(work)


def test_a_warp_that_does_not_take_part() -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        k.set(total, 0.0)
        with k.when(warp < 3):
            operands.product(total)
            wgmma_commit(k)
            wgmma_wait(k, groups=0)

    with pytest.raises(emulate.DeadlockError) as info:
        multiply(work)
    waiting = str(info.value).splitlines()[1:]
    assert len(waiting) == 3 and all("1 wgmma in flight" in line for line in waiting)


def test_a_product_in_flight_at_exit() -> None:
    def body(k: Builder, a, b) -> None:
        operands = Operands(k, a, b)
        with k.role("math", warps=4) as warp:
            operands.load(warp)
            operands.product(k.array(f32, N // 2))

    with found("in flight at exit", "wgmma of warp 0"):
        run(body, "late", maps={"a": (A, (64, 128), 128), "b": (B, (N, 128), 128)})


def test_an_operand_that_is_overwritten_too_early() -> None:
    """The wait that should come before: late shows the wrong bits, and so do some random orders."""

    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        operands.product(total)
        wgmma_commit(k)
        with k.when(warp == 0), k.mask(k.lane < 8):
            k.store(swizzle(k.lane * 128 + operands.tiles[1].at(0), 128), k.new(u32, 0))
        wgmma_wait(k, groups=0)

    assert multiply(work, "late").tobytes() != expected(1).tobytes()


# Operands in shared memory


@pytest.mark.parametrize("span, code", [(128, 1), (64, 2), (32, 3)])
def test_swizzled_operands_are_where_a_copy_puts_them(span: int, code: int) -> None:
    base, rows = 8 * span * 5, 24
    descriptor = base >> 4 | (8 * span >> 4) << 32 | code << 62
    lines = base + np.arange(rows * span).reshape(rows, span)
    np.testing.assert_array_equal(operand_addresses(descriptor, rows), swizzle(lines[:, :32], span))
    if span > 32:
        np.testing.assert_array_equal(operand_addresses(descriptor + 2, rows), swizzle(lines[:, 32:64], span))


def test_operands_without_a_swizzle() -> None:
    """8-row groups of 16-byte rows, `stride` apart; the halves of K `leading` apart."""
    descriptor = 4096 >> 4 | (512 >> 4) << 16 | (128 >> 4) << 32
    at = operand_addresses(descriptor, 24)
    assert (at[0, 0], at[0, 15], at[0, 16], at[1, 0], at[8, 0], at[23, 31]) == (
        4096,
        4111,
        4608,
        4112,
        4224,
        4096 + 895,
    )


def test_descriptor_fields() -> None:
    """The emulated value and the text's high word say the same."""
    d = np.zeros(1, np.uint64)

    def body(k: Builder, d) -> None:
        address = k.new(u32, 0x2400)
        k.store(d, matrix_descriptor(k, address, offset=64, stride=512, swizzle=64))

    block = run(body, d=d)
    assert d[0] == 0x2440 >> 4 | 512 >> 4 << 32 | 2 << 62
    (high,) = re.findall(r"mov\.b64 %l\d+, \{low, (0x[0-9a-f]+)\}", ptx(block.program))
    assert int(high, 16) == int(d[0]) >> 32 and "add.u32 low, low, 4;" in ptx(block.program)


# The family


def family(sizes: range) -> str:
    k = Builder("family", "sm_90a")
    with k.role("math", warps=4):
        a, b = (matrix_descriptor(k, k.new(u32, place)) for place in (0, 16384))
        tile = k.shared("tile", (128,), F32)
        for n in sizes:
            total = k.array(f32, n // 2)
            wgmma_fence(k)
            wgmma(k, a, b, into=total, n=n, accumulate=False)
            wgmma_commit(k)
            wgmma_wait(k, groups=0)
            for i in range(0, n // 2, 4):
                k.store(tile.at(k.lane), total[i])
    return ptx(k.finish({}))


def test_one_definition_covers_every_n() -> None:
    text = family(range(8, 257, 8))
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k32\.f32\.e4m3\.e4m3 \{([^}]*)\}", text)
    assert [int(n) for n, _ in found] == list(range(8, 257, 8))
    assert all(len(registers.split(", ")) == int(n) // 2 for n, registers in found)
    try:
        assemble(text, "sm_90a", find_ptxas())
    except AssemblerNotFound as error:
        pytest.skip(str(error))


def test_uses_grow_with_n() -> None:
    k = Builder("uses", "sm_90a")
    a = matrix_descriptor(k, k.new(u32, 0))
    for n in (64, 128, 256):
        wgmma(k, a, a, into=k.array(f32, n // 2), n=n, accumulate=False)
    uses = [i.uses for i in k.finish({}).instructions() if i.operation.name == "wgmma.mma_async"]
    assert [4 * use["tensor cycles"] for use in uses] == [32, 64, 128]
    assert [4 * use["tensor shared bytes"] for use in uses] == [(64 + n) * 32 for n in (64, 128, 256)]


@pytest.mark.parametrize("n, registers, formats, message", [
    (12, 6, {}, "n is 12; a multiple of 8 from 8 to 256 is wanted"),
    (0, 0, {}, "n is 0"),
    (264, 132, {}, "n is 264"),
    (16, 16, {}, "8 float32 registers, the accumulator of n = 16, are wanted"),
    (16, 4, {}, "8 float32 registers"),
    (16, 8, {"a_format": F32}, "a_format is float32; e4m3 or e5m2 is wanted"),
    (16, 8, {"b_format": F32}, "b_format is float32"),
])  # fmt: skip
def test_what_the_family_refuses(n: int, registers: int, formats: dict, message: str) -> None:
    k = Builder("refused", "sm_90a")
    a = matrix_descriptor(k, k.new(u32, 0))
    with pytest.raises(ValueError, match=re.escape(message)):
        wgmma(k, a, a, into=k.array(f32, max(registers, 1)), n=n, accumulate=False, **formats)
    wgmma(k, a, a, into=k.array(f32, 8), n=16, accumulate=False, a_format=E5M2)
    with pytest.raises(ValueError, match="8 float32 registers"):
        wgmma(k, a, a, into=k.array(f32, 8)[[0, 0, 1, 2, 3, 4, 5, 6]], n=16, accumulate=False)
    with pytest.raises((ValueError, TypeError)):
        wgmma(k, a, a, n=16, accumulate=False)
