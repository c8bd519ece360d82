"""Weakened waits that are proved to do the same, and their neighbours that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kingpost.program import Builder, f32, u32, u64
from kingpost.targets.amd.harmless import nothing_in_flight
from kingpost.targets.amd.isa.cdna3 import v_mfma_f32_32x32x16_fp8_fp8
from kingpost.targets.amd.isa.common import ds_read_b32, global_load_dword, s_waitcnt
from kingpost.targets.amd.targets import GFX942


def portable(k: Builder) -> None:
    k.store(k.shared_base, k.load(u32, k.parameter("y", u64)))


def by_hand(k: Builder) -> None:
    global_load_dword(k, k.parameter("x", u64), into=k.array(u32, 1))


def from_lds(k: Builder) -> None:
    ds_read_b32(k, k.shared_base, into=k.array(u32, 1))


def product(k: Builder) -> None:
    a, b, total = k.array(u32, 2), k.array(u32, 2), k.array(f32, 16)
    v_mfma_f32_32x32x16_fp8_fp8(k, a, b, 0, into=total)


@pytest.mark.parametrize(
    ("before", "after", "proved"),
    [
        ([portable], [by_hand], True),
        ([by_hand], [], False),
        ([portable, from_lds], [], False),
        ([], [by_hand, from_lds], True),
        ([product], [], False),  # of whose wait states it is one
    ],
)
@pytest.mark.parametrize("looped", [False, True])
def test_a_wait_with_nothing_in_flight(
    before: list[Callable], after: list[Callable], proved: bool, looped: bool
) -> None:
    k = Builder("program", GFX942)

    def write() -> None:
        for each in before:
            each(k)
        s_waitcnt(k, vmcnt=0, lgkmcnt=0)
        for each in after:
            each(k)

    if looped:
        with k.loop(2):
            write()
    else:
        write()
    program = k.finish({})
    (wait,) = (each for each in program.instructions() if each.operation.name == "s_waitcnt")
    found: Any = nothing_in_flight(program, wait)
    assert (found is not None) == (proved and not (looped and after))
