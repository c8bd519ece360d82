"""The page of instruction forms that a kernel engineer expects, its NVIDIA half: each is in one program, which
assembles and emulates, has a cost, and where the form can be misused, it is refused with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kingpost import emulate
from kingpost.arrays import view
from kingpost.assemble import AssemblerNotFound, AssemblyError, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.emulate import EmulationError, Report
from kingpost.formats import BF16, U32
from kingpost.program import Builder, Launch, Program, TensorMapType, f32, kernel, u32, u64
from kingpost.targets.nvidia.isa import blackwell as isa
from kingpost.targets.nvidia.isa.common import (
    bulk_load_2d,
    elect,
    fence_mbarrier_init,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
)
from kingpost.targets.nvidia.ptx import ptx

from .test_broken_kernels import changed, without

LINES = {  # what is looked for in the text, and which operation writes it
    "tcgen05.alloc": "tcgen05.alloc",
    "tcgen05.dealloc": "tcgen05.dealloc",
    "tcgen05.ld.sync.aligned.32x32b.x64.b32 {": "tcgen05.ld",
    "tcgen05.wait::st": "tcgen05.wait::st",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one": "tcgen05.commit",
    "tcgen05.mma.cta_group::1.kind::f16 [%r0], %l0, %l0, shape, {%r0, %r0, %r0, %r0}, accumulate;": (
        "tcgen05.mma.kind::f16.masked"
    ),
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes": (
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    ),
    "mbarrier.try_wait.parity": "mbarrier.try_wait.parity",
    "setp.lt.u32 %p0": "lt.u32",
}
ROWS, COLUMNS, DEPTH = 128, 64, 64
ODD_LANES = 0xAAAAAAAA


@kernel(target="sm_100a")
def page(k: Builder) -> None:
    """d[128, 64] = a[128, 64] a[:64]^T, bfloat16, of the first step of 16 of K alone in odd rows, and 1 more."""
    k.warps(4)
    a_map, result = k.tensor_map("a", BF16, (ROWS, DEPTH), swizzle=128), k.parameter("d", u64)
    a = k.shared("a_tile", (ROWS, DEPTH), BF16, swizzle=128)
    barriers, slot = k.shared_barriers("barriers", 2), k.shared("slot", (1,), U32).at(0)
    loaded, multiplied = barriers.at(0), barriers.at(1)
    with k.when(k.warp == 0):
        isa.tensor_allocate(k, slot, columns=COLUMNS)
        with k.mask(elect(k)):
            for barrier in (loaded, multiplied):
                mbarrier_init(k, barrier, count=1)
            fence_mbarrier_init(k)
            mbarrier_arrive_expect(k, loaded, bytes=a.bytes)
            bulk_load_2d(k, a.at(0), a_map.register, 0, 0, loaded, type=a_map.type)
    isa.tensor_fence_before(k)
    k.barrier()
    isa.tensor_fence_after(k)
    d = k.load(u32, slot)
    own_lanes = d + (k.warp << 21)
    values = k.array(f32, COLUMNS)
    k.set(values, 1.0)
    isa.tensor_store(k, own_lanes, values, count=COLUMNS)
    isa.tensor_wait_store(k)
    isa.tensor_fence_before(k)
    k.barrier()
    isa.tensor_fence_after(k)
    with k.when(k.thread // 32 < 1), k.mask(elect(k)):
        mbarrier_wait(k, loaded, 0)
        disabled = k.array(u32, 4)
        k.set(disabled, 0)
        for step in range(DEPTH // 16):
            operand = isa.shared_descriptor(k, a.at(0), offset=32 * step)
            isa.mma_f16_masked(k, d, operand, operand, 1, disabled, m=ROWS, n=COLUMNS, a_format=BF16, b_format=BF16)
            k.set(disabled, ODD_LANES)
        isa.tensor_commit(k, multiplied)
    mbarrier_wait(k, multiplied, 0)
    isa.tensor_fence_after(k)
    isa.tensor_load(k, own_lanes, count=COLUMNS, into=values)
    isa.tensor_wait_load(k)
    isa.tensor_fence_before(k)
    k.barrier()
    with k.when(k.warp == 0):
        isa.tensor_free(k, d, columns=COLUMNS)
    row = k.address(result, k.thread, 4 * COLUMNS)
    for i in range(0, COLUMNS, 4):
        k.store_vector(row, values[i : i + 4], offset=4 * i)


def launch() -> tuple[Launch, np.ndarray, np.ndarray]:
    """The launch, its result, and what must be there: small integers, so every order of sums is exact."""
    a = np.random.default_rng(0).integers(-4, 5, (ROWS, DEPTH)).astype(np.float32)
    d = np.zeros((ROWS, COLUMNS), np.float32)
    wanted = a @ a[:COLUMNS].T + 1
    wanted[1::2] = a[1::2, :16] @ a[:COLUMNS, :16].T + 1
    return Launch.of(page(), 1, a=view(a.astype(BF16.dtype)), d=view(d)), d, wanted


def without_numbers(text: str) -> str:
    """PTX with every register called by its type's first."""
    return re.sub(r"(%[a-z])\d+", r"\g<1>0", text)


@pytest.fixture(scope="module")
def report() -> Report:
    """What the program executed."""
    given, d, wanted = launch()
    report = emulate.run(given)
    np.testing.assert_array_equal(d, wanted)
    return report


@pytest.mark.parametrize("line", LINES)
def test_each_line_is_written_emulated_and_has_a_cost(line: str, report: Report) -> None:
    assert line in without_numbers(ptx(page()))
    executed = [i for i in report.executed if i.operation.name == LINES[line]]
    assert executed and all(i.uses["issue"] > 0 for i in executed)


def test_all_lines_assemble() -> None:
    try:
        tool = find_ptxas()
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    binary = assemble(ptx(page()), "sm_100a", tool)
    assert binary.spill_bytes == binary.stack_bytes == 0
    with pytest.raises(AssemblyError, match="tcgen05"):
        assemble(ptx(page()).replace("sm_100a", "sm_90a"), "sm_90a", tool)


@pytest.mark.parametrize("schedule", ["early", "random"])
def test_other_schedules(schedule: str) -> None:
    given, d, wanted = launch()
    emulate.run(given, schedule)
    np.testing.assert_array_equal(d, wanted)


def test_costs(report: Report) -> None:
    """What the tensor core, tensor memory and the copies are used for."""
    uses = report.uses
    assert uses["tensor cycles"] == ROWS * COLUMNS * DEPTH / 4096
    assert uses["tensor memory bytes"] == 2 * ROWS * COLUMNS * 4
    assert uses["bulk copy bytes"] == ROWS * DEPTH * 2


# Each line misused: refused while it is written, with the reason


def descriptor(k: Builder) -> object:
    return isa.shared_descriptor(k, k.new(u32, 0))


def masked(k: Builder, words: int, n: int = COLUMNS) -> object:
    d, a, mask = k.new(u32, 0), descriptor(k), k.array(u32, words)
    return isa.mma_f16_masked(k, d, a, a, 1, mask, m=ROWS, n=n, a_format=BF16, b_format=BF16)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "write, message",
    [
        (lambda k: isa.tensor_allocate(k, k.new(u32, 0), columns=48), "a power of two from 32 to 512 is wanted"),
        (lambda k: isa.tensor_free(k, k.new(u32, 0), columns=0), "a power of two from 32 to 512 is wanted"),
        (
            lambda k: isa.tensor_load(k, k.new(u32, 0), count=64, into=k.array(f32, 4)),
            "tcgen05.ld/st .x64: .* are not 64 different registers, which it moves",
        ),
        (lambda k: isa.tensor_commit(k, 1.5), "operand barrier is 1.5; u32 is wanted"),
        (lambda k: masked(k, words=3), "the lane mask is .*; four u32, a bit for each of 128 lanes, are wanted"),
        (lambda k: masked(k, words=4, n=24), "n is 24; a multiple of 16 from 16 to 256 is wanted at m = 128"),
        (lambda k: TensorMapType(BF16, (ROWS, 128), swizzle=128), "256 bytes; a multiple of 16 is wanted, at most"),
        (lambda k: k.new(u32, 0) < k.new(f32, 0.0), "u32 is wanted"),
    ],
)
def test_misuse_is_refused(write: Callable[[Builder], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        write(Builder("refused", "sm_100a"))


# And in a run: the waits of the page taken away


@pytest.mark.parametrize(
    "name, words",
    [
        ("tcgen05.wait::st", "a tcgen05.st"),
        ("tcgen05.wait::ld", "without its tcgen05.wait::ld"),
        ("mbarrier.try_wait.parity", "has not been waited for"),
        ("tcgen05.commit", "deadlock"),
        ("tcgen05.dealloc", "the block ends with columns 448 to 511 of tensor memory allocated"),
    ],
)
def test_what_is_taken_away_is_found(name: str, words: str) -> None:
    given, _, _ = launch()
    broken: Program = changed(given.program, without(name))
    with pytest.raises(EmulationError) as info:
        emulate.run(replace(given, program=broken), "late")
    assert words in str(info.value), str(info.value)
