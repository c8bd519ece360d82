"""Each pair of instructions that must keep a distance: the wait states wanted are enough, one less is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kingpost.formats import U32
from kingpost.program import Builder, Register, Registers, Target, f32, u32
from kingpost.targets.amd.isa import cdna3, cdna4
from kingpost.targets.amd.isa.common import (
    buffer_load_dword,
    ds_write_b32,
    ds_write_b128,
    global_store_dword,
    global_store_dwordx2,
    global_store_dwordx4,
    s_nop,
    v_accvgpr_read_b32,
    v_accvgpr_write_b32,
    v_pk_add_f32,
    v_readfirstlane_b32,
)
from kingpost.targets.amd.targets import GFX942, GFX950

from ...emulate.harness import found, run

LANES = 64


class Prepared:
    """Registers with something in them, and addresses of 16 bytes a lane."""

    def __init__(self, k: Builder, result: Register) -> None:
        self.k, self.few = k, k.lane < 7
        self.at, self.lds = k.address(result, k.lane, 16), k.shared("tile", (LANES, 4), U32).at(0) + k.lane * 16
        self.operand, self.pair, self.scale = k.array(u32, 8), k.array(f32, 2), k.array(u32, 1)
        self.total, self.other = k.array(f32, 16), k.array(f32, 16)
        self.accumulation = k.array(f32, 16, place="a[0:15]")
        self.descriptor, self.offset = k.array(u32, 4, place="s[8:11]"), k.array(u32, 1, place="s12")
        for registers in (self.total, self.other, self.pair):
            k.set(registers, 0.0)
        for registers in (self.operand, self.descriptor, self.offset):
            k.set(registers, 0)
        k.set(self.scale, 0x7F7F7F7F)

    def large(self, c: Any, into: Registers) -> None:
        """A product of 8 passes into 16 registers."""
        cdna3.v_mfma_f32_32x32x16_fp8_fp8(self.k, self.operand[0:2], self.operand[0:2], c, into=into)

    def small(self, c: Any, into: Registers) -> None:
        """A product of 4 passes into 4 registers."""
        cdna3.v_mfma_f32_16x16x32_fp8_fp8(self.k, self.operand[0:2], self.operand[0:2], c, into=into)

    def half(self, c: Any, into: Registers) -> None:
        """Another instruction of 8 passes into 16 registers."""
        cdna3.v_mfma_f32_32x32x8f16(self.k, self.operand[0:2], self.operand[0:2], c, into=into)

    def wide(self, c: Any, into: Registers, side: int = 32, a: int = 0, b: int = 0) -> None:
        """A product of gfx950, in formats `a` and `b`: 8 passes or, for a side of 32, 16; half without 8 bits."""
        product = cdna4.v_mfma_f32_16x16x128_f8f6f4 if side == 16 else cdna4.v_mfma_f32_32x32x64_f8f6f4
        rows = [self.operand[0 : cdna4.FORMATS[code][1]] for code in (a, b)]
        product(self.k, *rows, c, into=into, cbsz=a, blgp=b)

    def scaled(self, c: Any, into: Registers) -> None:
        """A scaled product of gfx950, of 16 passes."""
        product = cdna4.v_mfma_scale_f32_32x32x64_f8f6f4
        product(self.k, self.operand, self.operand, c, self.scale, self.scale, into=into)

    def masked_store(self) -> None:
        with self.k.mask(self.few):
            self.k.store(self.at, self.total[1])


Step = Callable[[Prepared], Any]


def distant(first: Step, then: Step, states: int, target: Target) -> None:
    def body(k: Builder, result: Register) -> None:
        prepared = Prepared(k, result)
        s_nop(k, count=1)
        first(prepared)
        for left in range(states, 0, -16):
            s_nop(k, count=min(left, 16) - 1)
        then(prepared)

    run(body, target=target, result=np.zeros((LANES, 4), np.float32))


def exactly(wanted: int, what: str, first: Step, then: Step, target: Target = GFX942) -> None:
    """`then` may come `wanted` wait states after `first`, and not one less."""
    distant(first, then, wanted, target)
    with found("wait states", what, f"{wanted - 1} wait states after", f"{wanted} are wanted: s_nop for 1 more", ".py"):
        distant(first, then, wanted - 1, target)


USES_OF_A_RESULT: dict[str, Step] = {
    "stored": lambda p: global_store_dwordx4(p.k, p.at, p.total[12:16]),
    "stored to LDS": lambda p: ds_write_b128(p.k, p.lds, p.total[0:4]),
    "added": lambda p: v_pk_add_f32(p.k, p.pair, p.total[2:4], into=p.pair),
    "part of C": lambda p: p.small(p.total[4:8], p.total[4:8]),
    "part of C, elsewhere": lambda p: p.small(p.total[4:8], p.other[0:4]),
    "C of another instruction": lambda p: p.half(p.total, p.total),
    "written by a vector instruction": lambda p: v_pk_add_f32(p.k, p.pair, p.pair, into=p.total[14:16]),
    "written by a product": lambda p: p.large(0, p.total),
    "written by a smaller product": lambda p: p.small(0, p.total[0:4]),
}


@pytest.mark.parametrize("then", USES_OF_A_RESULT.values(), ids=USES_OF_A_RESULT)
def test_a_result(then: Step) -> None:
    exactly(11, "a product's result", lambda p: p.large(0, p.total), then)


LOWERED: dict[str, Step] = {
    "stored in a mask": lambda p: p.masked_store(),
    "moved": lambda p: p.k.set(p.pair[0], p.total[7]),
    "written": lambda p: p.k.set(p.total[9], 1.0),
}


@pytest.mark.parametrize("then", LOWERED.values(), ids=LOWERED)
def test_a_result_is_waited_for_by_what_is_lowered(then: Step) -> None:
    """Its s_nop is the lowering's: `test_waits.py`."""
    distant(lambda p: p.large(0, p.total), then, 0, GFX942)


def test_a_result_in_accumulation_registers() -> None:
    def first(p: Prepared) -> None:
        p.large(0, p.accumulation)

    exactly(11, "reads", first, lambda p: global_store_dword(p.k, p.at, p.accumulation[5]))
    exactly(11, "reads", first, lambda p: ds_write_b32(p.k, p.lds, p.accumulation[5]))
    exactly(11, "reads", first, lambda p: v_accvgpr_read_b32(p.k, p.accumulation[3], into=p.pair[0]))
    exactly(11, "writes", first, lambda p: v_accvgpr_write_b32(p.k, p.pair[0], into=p.accumulation[3]))


RESULTS: dict[str, tuple[int, Target, Step]] = {
    "4 passes": (7, GFX942, lambda p: p.small(0, p.total[0:4])),
    "8 passes": (11, GFX942, lambda p: p.half(0, p.total)),
    "4 passes on gfx950": (8, GFX950, lambda p: p.small(0, p.total[0:4])),
    "8 passes on gfx950": (12, GFX950, lambda p: p.half(0, p.total)),
    "16x16x128": (12, GFX950, lambda p: p.wide(0, p.total[0:4], 16)),
    "16x16x128, one operand of 8 bits": (12, GFX950, lambda p: p.wide(0, p.total[0:4], 16, 4, 0)),
    "16x16x128, 4 bits": (8, GFX950, lambda p: p.wide(0, p.total[0:4], 16, 4, 4)),
    "32x32x64": (20, GFX950, lambda p: p.wide(0, p.total)),
    "32x32x64, 6 bits": (12, GFX950, lambda p: p.wide(0, p.total, 32, 2, 3)),
    "scaled": (20, GFX950, lambda p: p.scaled(0, p.total)),
}


@pytest.mark.parametrize("wanted, target, first", RESULTS.values(), ids=RESULTS)
def test_a_result_of_each_instruction(wanted: int, target: Target, first: Step) -> None:
    exactly(wanted, "a product's result", first, lambda p: global_store_dword(p.k, p.at, p.total[0]), target)


def test_a_chain_is_forwarded_within_one_instruction_and_its_formats() -> None:
    distant(lambda p: p.large(0, p.total), lambda p: p.large(p.total, p.total), 0, GFX942)
    distant(lambda p: p.large(0, p.total), lambda p: p.large(p.total, p.other), 0, GFX942)
    distant(lambda p: p.wide(0, p.total), lambda p: p.wide(p.total, p.total), 0, GFX950)
    exactly(20, "reads", lambda p: p.wide(0, p.total), lambda p: p.wide(p.total, p.total, b=4), GFX950)
    exactly(20, "reads", lambda p: p.wide(0, p.total), lambda p: p.scaled(p.total, p.total), GFX950)


def test_an_accumulator_that_a_product_reads() -> None:
    what = "an accumulator that a product still reads"
    exactly(3, what, lambda p: p.small(p.other[0:4], p.total[0:4]), lambda p: p.k.set(p.other[0], 1.0))
    exactly(7, what, lambda p: p.half(p.other, p.total), lambda p: v_pk_add_f32(p.k, p.pair, p.pair, into=p.other[0:2]))
    exactly(15, what, lambda p: p.wide(p.other, p.total), lambda p: p.k.set(p.other[0], 1.0), GFX950)


def test_a_vector_result_for_a_product() -> None:
    what = "a vector instruction's result, for a product"

    def add(p: Prepared) -> None:
        v_pk_add_f32(p.k, p.pair, p.pair, into=p.total[14:16])

    exactly(2, what, add, lambda p: p.half(p.total, p.other))
    accumulate = lambda p: v_accvgpr_write_b32(p.k, p.total, into=p.accumulation)  # noqa: E731
    exactly(2, what, accumulate, lambda p: p.large(p.accumulation, p.accumulation))


def test_a_scalar_of_a_vector_instruction_for_memory() -> None:
    def load(p: Prepared) -> None:
        buffer_load_dword(p.k, p.operand[0], p.descriptor, p.offset, into=p.k.array(u32, 1))

    what = "a vector instruction's scalar result, for a memory instruction"
    exactly(5, what, lambda p: v_readfirstlane_b32(p.k, p.operand[0], into=p.offset), load)
    exactly(5, what, lambda p: v_readfirstlane_b32(p.k, p.operand[0], into=p.descriptor[3]), load)


def test_the_data_of_a_wide_store() -> None:
    def store(p: Prepared) -> None:
        global_store_dwordx4(p.k, p.at, p.total[4:8])

    exactly(2, "data that a store still reads", store, lambda p: p.k.set(p.total[7], 1.0))
    exactly(2, "data that a store still reads", store, lambda p: v_pk_add_f32(p.k, p.pair, p.pair, into=p.total[4:6]))
    exactly(2, "data that a store still reads", store, lambda p: p.small(0, p.total[4:8]))
    distant(lambda p: global_store_dwordx2(p.k, p.at, p.total[4:6]), lambda p: p.k.set(p.total[4], 1.0), 0, GFX942)
    distant(lambda p: ds_write_b128(p.k, p.lds, p.total[4:8]), lambda p: p.k.set(p.total[4], 1.0), 0, GFX942)
