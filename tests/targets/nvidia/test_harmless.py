"""Weakened instructions that are proved to do the same, and their neighbours that are not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from kingpost.formats import BF16, E4M3
from kingpost.program import Builder, Program, f32, u32, u64
from kingpost.targets.nvidia.harmless import nothing_to_order, own_barrier, unused_leading
from kingpost.targets.nvidia.isa.blackwell import tensor_fence_before, tensor_load, tensor_relinquish, tensor_wait_load
from kingpost.targets.nvidia.isa.common import named_barrier
from kingpost.targets.nvidia.isa.hopper import matrix_descriptor, wgmma


def proofs(rule: Any, name: str, write: Callable[[Builder], Any]) -> list[bool]:
    """For each instruction of a name in the program that `write` writes, whether the rule proves it harmless."""
    k = Builder("program", "sm_90a")
    k.warps(8)
    write(k)
    program: Program = k.finish({})
    return [rule(program, each) is not None for each in program.instructions() if each.operation.name == name]


def products(major: str, n: int, swizzle: int = 128) -> Callable[[Builder], Any]:
    def write(k: Builder) -> None:
        a, b = (matrix_descriptor(k, k.shared_base, swizzle=swizzle, leading=1024) for _ in range(2))
        formats = {"a_format": E4M3, "b_format": E4M3} if major == "e4m3" else {"a_format": BF16, "b_format": BF16}
        majors = {} if major == "e4m3" else {"a_major": major, "b_major": major}
        wgmma(k, a, b, into=k.array(f32, n // 2), n=n, accumulate=False, **formats, **majors)

    return write


@pytest.mark.parametrize(
    ("write", "proved"),
    [
        (products("k", 128), [True, True]),
        (products("e4m3", 128), [True, True]),
        (products("e4m3", 128, swizzle=0), [False, False]),
        (products("mn", 128), [True, False]),  # two tiles of 64 columns
        (products("mn", 64), [True, True]),
        (products("mn", 32, swizzle=64), [False, True]),  # 64 rows are two tiles of 32
    ],
)
def test_the_leading_offset_of_a_descriptor(write: Callable[[Builder], Any], proved: list[bool]) -> None:
    assert proofs(unused_leading, "matrix_descriptor", write) == proved


def test_a_leading_offset_that_is_kept_for_something_else() -> None:
    def write(k: Builder) -> None:
        k.set(k.array(u64, 1), matrix_descriptor(k, k.shared_base, leading=1024))

    assert proofs(unused_leading, "matrix_descriptor", write) == [False]


def transfers(before: bool, loop: bool = False, after: bool = False) -> Callable[[Builder], Any]:
    """A fence among loads from tensor memory."""

    def load(k: Builder) -> None:
        tensor_load(k, k.new(u32, 0), count=1, into=k.array(f32, 1))
        tensor_wait_load(k)

    def write(k: Builder) -> None:
        tensor_relinquish(k)
        with k.when(k.warp == 0) if not loop else k.loop(2):
            if before:
                load(k)
            tensor_fence_before(k)
            if after:
                load(k)

    return write


@pytest.mark.parametrize(
    ("write", "proved"),
    [
        (transfers(before=False), True),
        (transfers(before=False, after=True), True),
        (transfers(before=True), False),
        (transfers(before=False, after=True, loop=True), False),
        (transfers(before=False, loop=True), True),
    ],
)
def test_a_fence_with_nothing_before_it(write: Callable[[Builder], Any], proved: bool) -> None:
    assert proofs(nothing_to_order, "tcgen05.fence::before_thread_sync", write) == [proved]


def meetings(
    number: Callable[[Builder], Any], threads: int = 128, sites: int = 2, apart: bool = False, other: int | None = None
) -> Callable[[Builder], Any]:
    """Two groups of four warps meet at two places, in a loop."""

    def write(k: Builder) -> None:
        mine = number(k)
        with k.loop(3):
            for site in range(sites):
                with k.when(k.warp < 9) if apart and site else nullcontext():
                    named_barrier(k, mine, threads=threads)
        if other is not None:
            named_barrier(k, k.new(u32, other), threads=256)

    return write


@pytest.mark.parametrize(
    ("write", "proved"),
    [
        (meetings(lambda k: k.new(u32, 1), threads=256), [True, True]),
        (meetings(lambda k: 3, threads=256), [True, True]),
        (meetings(lambda k: k.warp // 4 * 4 + 1), [True, True]),
        (meetings(lambda k: k.warp // 4 + 1), [False, False]),  # the first group's next is the second's
        (meetings(lambda k: k.new(u32, 15), threads=256), [False, False]),  # there is no barrier 16
        (meetings(lambda k: k.new(u32, 1), threads=128), [False, False]),  # any four of eight warps
        (meetings(lambda k: k.new(u32, 1), threads=256, apart=True), [False, False]),
        (meetings(lambda k: k.new(u32, 1), threads=256, other=2), [False, False, True]),
        (meetings(lambda k: k.new(u32, 1), threads=256, other=7), [True, True, True]),
        (meetings(lambda k: k.select(k.lane == 0, 1, 2), threads=256), [False, False]),  # not known here
    ],
)
def test_a_barrier_to_itself(write: Callable[[Builder], Any], proved: list[bool]) -> None:
    assert proofs(own_barrier, "bar.sync", write) == proved
