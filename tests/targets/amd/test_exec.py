"""What lanes that are switched off (EXEC, by a mask) do to instructions that want all of them, and to scalar ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kingpost.program import Builder, Operation, Register, f32, u32
from kingpost.targets.amd.isa import cdna3, cdna4
from kingpost.targets.amd.isa.common import (
    global_store_dword,
    s_barrier,
    s_mov_b32,
    s_nop,
    s_waitcnt,
    v_readfirstlane_b32,
)
from kingpost.targets.amd.targets import GFX942, GFX950

from ...emulate.harness import found, run
from .wave import SCHEDULES

LANES = 64


def products() -> Iterator[Operation]:
    for module in (cdna3, cdna4):
        yield from (each for each in vars(module).values() if isinstance(each, Operation))


def multiply(k: Builder, product: Operation) -> None:
    """Any matrix instruction, on operands of 8 bits."""
    formats = "cbsz" in product.fields
    operand, scale = k.array(u32, 8 if formats else 2), k.array(u32, 1)
    total = k.array(f32, 16 if "_32x32x" in product.name else 4)
    k.set(operand, 0)
    k.set(scale, 127)
    s_nop(k, count=1)
    scales = [scale] * ("scale_a" in product.operands) * 2
    product(k, operand, operand, 0, *scales, into=total)


@pytest.mark.parametrize("product", list(products()), ids=lambda product: product.name)
def test_a_product_wants_all_lanes(product: Operation) -> None:
    target = GFX950 if "f8f6f4" in product.name else GFX942

    def body(k: Builder, lanes: int) -> None:
        with k.mask(k.lane < lanes):
            multiply(k, product)

    run(lambda k: body(k, LANES), target=target)
    with found("divergence", f"{product.name} in 63 of 64 lanes; all are wanted", "test_exec.py"):
        run(lambda k: body(k, LANES - 1), target=target)


def test_there_are_products() -> None:
    assert len(list(products())) == 7


@pytest.mark.parametrize("order", SCHEDULES)
def test_a_barrier_in_a_mask(order: str) -> None:
    def body(k: Builder, threads: int) -> None:
        k.warps(2)
        with k.mask(k.thread < threads):
            s_barrier(k)

    run(lambda k: body(k, 2 * LANES), order, target=GFX942)
    with found("divergence", "s_barrier in 32 of 64 lanes", "warp 1"):
        run(lambda k: body(k, 3 * LANES // 2), order, target=GFX942)
    with found("deadlock", "1 of 2 warps have arrived", "warp 0"):  # a wave of which no lane is active skips the mask
        run(lambda k: body(k, LANES), order, target=GFX942)


def test_a_wait_in_a_mask_is_the_waves() -> None:
    result = np.zeros((2, LANES), np.uint32)

    def body(k: Builder, result: Register) -> None:
        k.warps(2)
        own, other = (k.address(result, thread, 4) for thread in (k.thread, k.thread ^ LANES))
        global_store_dword(k, own, k.thread)
        with k.mask(k.lane < 5):
            s_waitcnt(k, vmcnt=0)
        s_barrier(k)
        global_store_dword(k, other, k.thread)

    run(body, target=GFX942, result=result)
    assert (result.ravel() == np.arange(2 * LANES) ^ LANES).all()


def test_scalar_registers_are_written_whatever_the_mask() -> None:
    scalars = []

    def body(k: Builder) -> None:
        scalars.extend(k.array(u32, 1, place=place) for place in ("s8", "s9", "s10"))
        s_mov_b32(k, 1, into=scalars[2])
        with k.mask(k.lane >= 60):
            s_mov_b32(k, 40, into=scalars[0])
            v_readfirstlane_b32(k, k.lane - 20, into=scalars[1])  # of the first active lane
            s_mov_b32(k, scalars[1], into=scalars[2])

    warp = run(body, target=GFX942).warps[0]
    for scalar in scalars:
        assert (warp.read(scalar) == np.full(LANES, 40)).all()
