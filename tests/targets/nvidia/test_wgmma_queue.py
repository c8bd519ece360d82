"""The wgmma family: operands by descriptor, accumulators in flight, the queue; and each way to misuse it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest

from kingpost import emulate
from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.formats import BF16, E4M3, E5M2, F16, F32, Format, canonical_nan
from kingpost.program import Builder, Register, Registers, f32, swizzle, u32
from kingpost.targets.nvidia.arithmetic import chain, chain_bf16, wgmma_f32
from kingpost.targets.nvidia.isa.common import (
    bulk_load_2d,
    fence_mbarrier_init,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
    unpack_f16,
)
from kingpost.targets.nvidia.isa.hopper import (
    matrix_descriptor,
    wgmma,
    wgmma_commit,
    wgmma_f16,
    wgmma_fence,
    wgmma_wait,
)
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
            fence_mbarrier_init(k)
            mbarrier_arrive_expect(k, self.full, bytes=sum(tile.bytes for tile in self.tiles))
            for map, tile in zip(self.maps, self.tiles):
                bulk_load_2d(k, tile.at(0), map.register, 0, 0, self.full, type=map.type)
        k.barrier()
        mbarrier_wait(k, self.full, 0)
        wgmma_fence(k)

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
        wgmma_fence(k)
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


@pytest.mark.parametrize("order", SCHEDULES)
def test_an_operand_that_is_overwritten_too_early(order: str) -> None:
    """The wait that should come before: only late shows the wrong bits, but the race is found in every order."""

    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        operands.product(total)
        wgmma_commit(k)
        with k.when(warp == 0), k.mask(k.lane < 8):
            k.store(swizzle(k.lane * 128 + operands.tiles[1].at(0), 128), k.new(u32, 0))
        wgmma_wait(k, groups=0)

    with found("race", "b_tile[0]", "wgmma of warp", "math warp 0", "nothing orders the two"):
        multiply(work, order)


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
        k.store(d, matrix_descriptor(k, address, offset=64, stride=512, swizzle=64, leading=8192))

    block = run(body, d=d)
    assert d[0] == 0x2440 >> 4 | 8192 >> 4 << 16 | 512 >> 4 << 32 | 2 << 62
    (high,) = re.findall(r"mov\.b64 %l\d+, \{low, (0x[0-9a-f]+)\}", ptx(block.program))
    assert int(high, 16) == int(d[0]) >> 32 and f"add.u32 low, low, {4 + (512 << 16)};" in ptx(block.program)


@pytest.mark.parametrize("span, code", [(128, 1), (64, 2), (32, 3)])
def test_mn_major_operands_are_where_copies_put_them(span: int, code: int) -> None:
    """Tiles of 64 rows of K, each `span` bytes of M or N, one after the other; steps of 16 rows."""
    base, width = 8 * span * 5, span // 2
    columns = 3 * width
    descriptor = base >> 4 | 64 * span >> 4 << 16 | 8 * span >> 4 << 32 | code << 62
    k, column = np.arange(64)[:, None], np.arange(columns)[None, :]
    wanted = swizzle(base + column // width * 64 * span + k * span + column % width * 2, span).T  # [columns, K]
    for step in range(4):
        found = operand_addresses(descriptor + step * 16 * span // 16, columns, "mn").reshape(columns, 16, 2)
        np.testing.assert_array_equal(found[:, :, 0], wanted[:, 16 * step : 16 * step + 16])
        np.testing.assert_array_equal(found[:, :, 1], found[:, :, 0] + 1)


def test_mn_major_operands_without_a_swizzle() -> None:
    """8 rows of K of 16 bytes together; the next 8 columns `stride` apart, the next 8 rows `leading`."""
    descriptor = 4096 >> 4 | (512 >> 4) << 16 | (128 >> 4) << 32
    at = operand_addresses(descriptor, 24, "mn")
    found = [int(at[column, 2 * k]) - 4096 for column, k in ((0, 0), (7, 0), (0, 1), (7, 7), (8, 0), (0, 8), (23, 15))]
    assert found == [0, 14, 16, 126, 128, 512, 256 + 512 + 126]


# bfloat16

K16 = 64  # of K in a block of 128 bytes
A16, B16 = (np.random.default_rng(rows).standard_normal((rows, K16)).astype(ml_dtypes.bfloat16) for rows in (64, 80))


def multiply_bf16(n: int, a_major: str, b_major: str, order: str = "late") -> np.ndarray:
    """A16 [64, 64] B16[:n] ^T, in four steps, each operand as its major lies in memory: float32 [64, n].

    MN-major operands come in tiles of 64 columns, one of 32 where there are no more."""
    d = np.full((64, n), np.nan, np.float32)
    memory, boxes = {}, {}
    for name, x, major in (("a", A16, a_major), ("b", B16[:n], b_major)):
        width = min(64, len(x))
        boxes[name] = (len(x), K16) if major == "k" else (K16, width)
        memory[name] = x if major == "k" else np.ascontiguousarray(x.T)
    spans = {name: box[1] * 2 for name, box in boxes.items()}

    def body(k: Builder, d, a, b) -> None:
        maps, tiles = {"a": a, "b": b}, {}
        for name, rows, major in (("a", 64, a_major), ("b", n, b_major)):
            count = 1 if major == "k" else -(-rows // boxes[name][1])
            tiles[name] = k.shared(f"{name}_tile", (count, *boxes[name]), BF16, spans[name])
        full = k.shared_barriers("full", 1).at(0)
        with k.role("math", warps=4) as warp:
            with k.when(warp == 0), k.mask(k.lane == 0):
                mbarrier_init(k, full, count=1)
                fence_mbarrier_init(k)
                mbarrier_arrive_expect(k, full, bytes=sum(tile.bytes for tile in tiles.values()))
                for name, tile in tiles.items():
                    for i in range(tile.shape[0]):
                        map = maps[name]
                        bulk_load_2d(k, tile.at(i), map.register, 0, i * tile.shape[2], full, type=map.type)
            k.barrier()
            mbarrier_wait(k, full, 0)
            total = k.array(f32, n // 2, "total")
            wgmma_fence(k)
            for step in range(4):
                parts = []
                for name, major in (("a", a_major), ("b", b_major)):
                    tile, span = tiles[name], spans[name]
                    offset = step * 32 if major == "k" else step * 16 * span
                    parts.append(
                        matrix_descriptor(
                            k, tile.at(0), offset=offset, stride=8 * span, swizzle=span, leading=tile.stride
                        )
                    )
                wgmma(k, *parts, into=total, n=n, accumulate=step > 0, a_format=BF16, b_format=BF16,
                      a_major=a_major, b_major=b_major)  # fmt: skip
            wgmma_commit(k)
            wgmma_wait(k, groups=0)
            first = k.address(d, (warp * 16 + k.lane // 4) * n + k.lane % 4 * 2, 4)
            for i, register in enumerate(total):
                k.store(first, register, offset=(i // 2 % 2 * 8 * n + i // 4 * 8 + i % 2) * 4)

    run(body, order, 3, d=d, maps={name: (memory[name], boxes[name], spans[name]) for name in ("a", "b")})
    return d


MAJORS = [(a, b) for a in ("k", "mn") for b in ("k", "mn")]


@pytest.mark.parametrize("n", [16, 32, 64, 80])
@pytest.mark.parametrize("a_major, b_major", MAJORS)
def test_bfloat16_in_every_major(a_major: str, b_major: str, n: int) -> None:
    assert multiply_bf16(n, a_major, b_major).tobytes() == chain_bf16(A16, B16[:n]).tobytes()


@pytest.mark.parametrize("order", SCHEDULES)
def test_bfloat16_under_every_schedule(order: str) -> None:
    assert multiply_bf16(32, "mn", "k", order).tobytes() == chain_bf16(A16, B16[:32]).tobytes()


FP8_PAIRS = [(a, b) for a in (E4M3, E5M2) for b in (E4M3, E5M2)]


@pytest.mark.parametrize("a_format, b_format", FP8_PAIRS, ids=str)
def test_fp8_of_either_kind(a_format: Format, b_format: Format) -> None:
    """The same bytes are other numbers in each format."""

    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        wgmma_fence(k)
        for step in range(4):
            a, b = (matrix_descriptor(k, tile.at(0), offset=32 * step) for tile in operands.tiles)
            wgmma(k, a, b, into=total, n=N, accumulate=step > 0, a_format=a_format, b_format=b_format)
        wgmma_commit(k)
        wgmma_wait(k, groups=0)

    assert multiply(work).tobytes() == chain(A.view(np.uint8), B.view(np.uint8), None, a_format, b_format).tobytes()


# Rows of A in registers, accumulators in float16


def rows_of_a(k: Builder, operands: Operands, warp: Register, step: int) -> Registers:
    """This warp's 16 rows of A and 32 bytes of K, as it reads them from shared memory."""
    rows = k.array(u32, 4, "rows")
    first = (warp * 16 + k.lane // 4) * 128 + k.lane % 4 * 4 + operands.tiles[0].at(0)
    for register, offset in zip(rows, (0, 8 * 128, 16, 16 + 8 * 128)):
        k.load(u32, swizzle(first + (offset + 32 * step), 128), into=register)
    return rows


def by_rows(k: Builder, operands: Operands, rows: Registers, into: Registers, step: int, accumulate: bool) -> None:
    b = matrix_descriptor(k, operands.tiles[1].at(0), offset=32 * step)
    wgmma(k, rows, b, into=into, n=N, accumulate=accumulate)


@pytest.mark.parametrize("order", SCHEDULES)
def test_rows_of_a_in_registers(order: str) -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        parts = [rows_of_a(k, operands, warp, step) for step in range(4)]
        wgmma_fence(k)
        for step, rows in enumerate(parts):
            by_rows(k, operands, rows, total, step, accumulate=step > 0)
        wgmma_commit(k)
        wgmma_wait(k, groups=0)
        for rows in parts:
            k.set(rows, 0)  # they are the warp's again

    assert multiply(work, order, seed=3).tobytes() == expected(4).tobytes()


@pytest.mark.parametrize("order", SCHEDULES)
@pytest.mark.parametrize("verb", ["reads", "writes"])
def test_rows_of_a_in_flight(verb: str, order: str) -> None:
    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        rows = rows_of_a(k, operands, warp, 0)
        wgmma_fence(k)
        by_rows(k, operands, rows, total, 0, accumulate=False)
        wgmma_commit(k)
        if verb == "reads":
            k.set(k.array(u32, 2), rows[2:])
        else:
            k.set(rows[2:], 0)
        wgmma_wait(k, groups=0)

    with found("register in flight", f"{verb} rows[2:4], which a wgmma in flight still holds", "math warp"):
        multiply(work, order)


@pytest.mark.parametrize("a_format, b_format", FP8_PAIRS, ids=str)
def test_into_float16(a_format: Format, b_format: Format) -> None:
    """Onto accumulators of 2.5, in a chain; what comes out of the halves of each register."""

    def work(k: Builder, operands: Operands, warp: Register, total: Registers) -> None:
        halves = k.array(u32, N // 4, "halves")
        k.set(halves, 0x41004100)
        wgmma_fence(k)
        for step in range(4):
            a, b = (matrix_descriptor(k, tile.at(0), offset=32 * step) for tile in operands.tiles)
            wgmma_f16(k, a, b, into=halves, n=N, accumulate=True, a_format=a_format, b_format=b_format)
        wgmma_commit(k)
        wgmma_wait(k, groups=0)
        for i, register in enumerate(total):
            k.set(register, unpack_f16(k, halves[i // 2], half=i % 2))

    c = np.full((64, N), 2.5, np.float16)
    want = chain(A.view(np.uint8), B.view(np.uint8), c, a_format, b_format, F16)
    np.testing.assert_array_equal(multiply(work), canonical_nan(want.astype(np.float32)))


# The family


def fields(a_format: Format, b_format: Format, a_major: str = "k", b_major: str = "k") -> dict:
    return {"a_format": a_format, "b_format": b_format, "a_major": a_major, "b_major": b_major}


NAMES = {BF16: "bf16", F16: "f16"}
HALVES = [(BF16, "f32"), (F16, "f32"), (F16, "f16")]
KINDS = {
    **{f"k32.{d}.{a}.{b}": fields(a, b) for d in ("f32", "f16") for a, b in FP8_PAIRS},
    **{
        f"k16.{d}.{NAMES[x]}.{NAMES[x]}, {int(a == 'mn')}, {int(b == 'mn')}": fields(x, x, a, b)
        for x, d in HALVES
        for a, b in MAJORS
    },
}
"""Fields of every kind of product, by what its text must say, its majors last."""
FROM_REGISTERS = {
    **{kind: fields for kind, fields in KINDS.items() if kind.startswith("k32")},
    **{kind.replace(", 0, ", ", "): fields for kind, fields in KINDS.items() if ", 0, " in kind},
}
"""The same with A in registers: only B has a major."""


@pytest.mark.parametrize(
    "kind, in_registers",
    [*((kind, False) for kind in KINDS), *((kind, True) for kind in FROM_REGISTERS)],
)
def test_ptxas_takes_every_kind(kind: str, in_registers: bool) -> None:
    sizes = (8, 136, 256) if kind.startswith("k32.f32") else (8, 136)
    text = family(sizes, ".f16." in kind[:9], in_registers, **(FROM_REGISTERS if in_registers else KINDS)[kind])
    shape, comma, majors = kind.partition(", ")
    a = r"\{%r\d+, %r\d+, %r\d+, %r\d+\}" if in_registers else r"%l\d+"
    found = re.findall(
        rf"m64n(\d+){re.escape(shape)} \{{[^}}]*\}}, {a}, %l\d+, accumulate, 1, 1{comma}{majors}; ", text
    )
    assert found == [str(n) for n in sizes]
    try:
        assemble(text, "sm_90a", find_ptxas())
    except AssemblerNotFound as error:
        pytest.skip(str(error))


def family(sizes: Sequence[int], into_f16: bool = False, in_registers: bool = False, **kind) -> str:
    k = Builder("family", "sm_90a")
    with k.role("math", warps=4):
        a, b = (matrix_descriptor(k, k.new(u32, place)) for place in (0, 16384))
        tile = k.shared("tile", (128,), F32)
        if in_registers:
            a = k.array(u32, 4)
            k.set(a, k.lane)
        for n in sizes:
            total = k.array(u32, n // 4) if into_f16 else k.array(f32, n // 2)
            wgmma_fence(k)
            (wgmma_f16 if into_f16 else wgmma)(k, a, b, into=total, n=n, accumulate=False, **kind)
            wgmma_commit(k)
            wgmma_wait(k, groups=0)
            for i in range(0, len(total), 4):
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
    (16, 8, {"a_format": F32}, "a_format is float32; e4m3, e5m2, bfloat16 or float16 is wanted"),
    (16, 8, {"b_format": F32}, "b_format is float32"),
    (16, 8, {"b_format": BF16}, "formats are e4m3 and bfloat16; two of fp8 or the same are wanted"),
    (16, 8, {"a_major": "mn"}, "a_major is 'mn'; k is wanted for e4m3"),
    (16, 8, {"b_format": E5M2, "b_major": "mn"}, "b_major is 'mn'; k is wanted for e4m3"),
    (16, 8, {"a_format": BF16, "b_format": BF16, "a_major": "m"}, "a_major is 'm'; k or mn is wanted for bfloat16"),
    (16, 8, {"a_format": F16, "b_format": BF16}, "formats are float16 and bfloat16; two of fp8 or the same are wanted"),
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


def test_what_the_family_refuses_of_registers_and_halves() -> None:
    k = Builder("refused", "sm_90a")
    a, rows = matrix_descriptor(k, k.new(u32, 0)), k.array(u32, 4, "rows")
    halves, d = k.array(u32, 4), k.array(f32, 8)
    wgmma_f16(k, rows, a, into=halves, n=16, accumulate=False)
    with pytest.raises(ValueError, match="4 packed float16 registers, the accumulator of n = 16, are wanted"):
        wgmma_f16(k, a, a, into=k.array(u32, 8), n=16, accumulate=False)
    with pytest.raises(TypeError, match="u32 is wanted"):
        wgmma_f16(k, a, a, into=d[:4], n=16, accumulate=False)
    with pytest.raises(ValueError, match="a_format is bfloat16; e4m3, e5m2 or float16 is wanted for float16 accumulat"):
        wgmma_f16(k, a, a, into=halves, n=16, accumulate=False, a_format=BF16, b_format=BF16)
    for wrong in (rows[:3], d[:4]):
        with pytest.raises(ValueError, match=r"a is .*; a descriptor or four u32 registers are wanted"):
            wgmma(k, wrong, a, into=d, n=16, accumulate=False)
    with pytest.raises(ValueError, match="a_major is 'mn'; k is wanted for registers"):
        wgmma(k, rows, a, into=d, n=16, accumulate=False, a_format=F16, b_format=F16, a_major="mn")


def test_rows_in_registers_cost_no_shared_bytes() -> None:
    k = Builder("uses", "sm_90a")
    wgmma(k, k.array(u32, 4), matrix_descriptor(k, k.new(u32, 0)), into=k.array(f32, 32), n=64, accumulate=False)
    (uses,) = [i.uses for i in k.finish({}).instructions() if i.operation.name == "wgmma.mma_async"]
    assert 4 * uses["tensor shared bytes"] == 64 * 32 and 4 * uses["tensor cycles"] == 32
