"""The CDNA half of the page of instruction forms: each assembles, emulates, has a cost, its illegal form is refused.

A form stands in a small program on waves of 64 lanes; a lane reads its 16 bytes of `source` and writes its row of
`result`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kingpost import emulate
from kingpost.arrays import view
from kingpost.assemble import AssemblerNotFound
from kingpost.assemble.amdgcn import assemble
from kingpost.assemble.tools import find_clang
from kingpost.formats import U32
from kingpost.program import Builder, Launch, Operand, Program, Register, Registers, Target, f32, u32, u64
from kingpost.targets.amd.amdgcn import amdgcn
from kingpost.targets.amd.isa.cdna3 import v_mfma_f32_32x32x8f16
from kingpost.targets.amd.isa.cdna4 import v_mfma_scale_f32_32x32x64_f8f6f4
from kingpost.targets.amd.isa.common import (
    buffer_load_dwordx4,
    ds_read_b128,
    ds_write_b128,
    global_load_dwordx4,
    s_barrier,
    s_mov_b32,
    s_nop,
    s_setprio,
    s_waitcnt,
    v_pk_add_f32,
    v_readfirstlane_b32,
)
from kingpost.targets.amd.isa.layouts import contiguous_operand, halved_operand, lane_bytes, result_registers
from kingpost.targets.amd.targets import GFX942, GFX950

from .wave import SCHEDULES

LANES = 64


@dataclass(frozen=True)
class Form:
    """A form and a program of it.

    text: what of the assembler's text must be there. write(k, own, to): the program, from the address of a lane's 16
    bytes to that of its result. wanted: of the source, uint32 [threads, 4]. refused: an illegal form, and why.
    """

    text: str
    write: Callable[[Builder, Register, Register], None]
    wanted: Callable[[np.ndarray], np.ndarray]
    uses: dict[str, float]
    refused: Callable[[Builder], Any]
    reason: str
    target: Target = GFX942
    warps: int = 1


def loaded(k: Builder, own: Register) -> Registers:
    values = k.array(u32, 4)
    global_load_dwordx4(k, own, into=values)
    s_waitcnt(k, vmcnt=0)
    return values


def stored(k: Builder, to: Register, values: Registers) -> None:
    for place, value in enumerate(values):
        k.store(to, value, offset=4 * place)


# The programs


def f16_product(k: Builder, own: Register, to: Register) -> None:
    values, total = loaded(k, own), k.array(f32, 16)
    v_mfma_f32_32x32x8f16(k, values[0:2], values[2:4], 0, into=total)
    s_nop(k, count=10)
    stored(k, to, total)


def f16_wanted(source: np.ndarray) -> np.ndarray:
    a, b = (contiguous_operand(lane_bytes(x.T).view(np.float16), 32).astype(np.float64) for x in halves(source))
    return result_registers((a @ b.T).astype(np.float32)).T


def halves(source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return source[:, :2], source[:, 2:]


def scaled_product(k: Builder, own: Register, to: Register) -> None:
    """The source twice over as A and as B; A's scales 2^(lane % 4) in byte 1, B's 2 in byte 2."""
    values, operand, total = loaded(k, own), k.array(u32, 8), k.array(f32, 16)
    k.set(operand[0:4], values)
    k.set(operand[4:8], values)
    scale_a, scale_b = ((k.lane & 3) + 127) << 8, k.new(u32, 128 << 16)
    v_mfma_scale_f32_32x32x64_f8f6f4(k, operand, operand, 0, scale_a, scale_b, into=total, byte_a=1, byte_b=2)
    for states in (16, 4):
        s_nop(k, count=states - 1)
    stored(k, to, total)


def scaled_wanted(source: np.ndarray) -> np.ndarray:
    codes = lane_bytes(np.concatenate([source, source], axis=1).T)
    values = halved_operand(codes, 32).view(GFX950.float8.dtype).astype(np.float64)
    product = 2.0 ** (np.arange(32) % 4)[:, None] * 2 * (values @ values.T)
    return result_registers(product.astype(np.float32)).T


def packed_sum(k: Builder, own: Register, to: Register) -> None:
    values, total = k.from_bits(loaded(k, own)), k.array(f32, 2)
    v_pk_add_f32(k, values[0:2], values[2:4], into=total)
    stored(k, to, total)


def packed_wanted(source: np.ndarray) -> np.ndarray:
    low, high = halves(source.view(np.float32))
    return low + high


def through_lds(k: Builder, own: Register, to: Register) -> None:
    """To LDS, and the neighbouring lane's 16 bytes back."""
    tile, values = k.shared("tile", (LANES, 4), U32), k.array(u32, 4)
    ds_write_b128(k, tile.at(0) + k.lane * 16, loaded(k, own))
    ds_read_b128(k, tile.at(0) + (k.lane ^ 1) * 16, into=values)
    s_waitcnt(k, lgkmcnt=0)
    stored(k, to, values)


def across_waves(k: Builder, own: Register, to: Register) -> None:
    """To LDS, and the same lane's 16 bytes of the other wave back."""
    tile, values = k.shared("tile", (2 * LANES, 4), U32), k.array(u32, 4)
    ds_write_b128(k, tile.at(0) + k.thread * 16, loaded(k, own))
    s_waitcnt(k, lgkmcnt=0)
    s_barrier(k)
    ds_read_b128(k, tile.at(0) + (k.thread ^ LANES) * 16, into=values)
    s_waitcnt(k, lgkmcnt=0)
    stored(k, to, values)


def from_buffer(k: Builder, own: Register, to: Register) -> None:
    """A lane's 16 bytes through a descriptor of the first 40 lanes' (and half of the next's): the others read 0."""
    descriptor, values = k.array(u32, 4, place="s[8:11]"), k.array(u32, 4)
    for place, word in enumerate(("low", "high")):
        v_readfirstlane_b32(k, k.new(u32, k.parameter(word)), into=descriptor[place])
    s_mov_b32(k, 40 * 16 + 8, into=descriptor[2])
    s_mov_b32(k, 0x00020000, into=descriptor[3])  # raw 32-bit data
    s_nop(k, count=4)
    buffer_load_dwordx4(k, k.lane * 16, descriptor, 0, into=values)
    s_waitcnt(k, vmcnt=0)
    stored(k, to, values)


def buffer_wanted(source: np.ndarray) -> np.ndarray:
    return np.where(np.arange(source.size) < 40 * 4 + 2, source.ravel(), 0).reshape(source.shape)


def with_priority(k: Builder, own: Register, to: Register) -> None:
    s_setprio(k, priority=1)
    values = loaded(k, own)
    s_setprio(k, priority=0)
    stored(k, to, values)


def neighbours(source: np.ndarray) -> np.ndarray:
    return source.reshape(-1, 2, 4)[:, ::-1].reshape(source.shape)


def other_wave(source: np.ndarray) -> np.ndarray:
    return np.roll(source, LANES, axis=0)


# The page


def address(k: Builder) -> Register:
    return k.new(u32, 0)


def scaled_by(k: Builder, scale: Operand) -> None:
    operand, total = k.array(u32, 8), k.array(f32, 16)
    v_mfma_scale_f32_32x32x64_f8f6f4(k, operand, operand, 0, scale, address(k), into=total)


PAGE = {
    "v_mfma_f32_32x32x8f16": Form(
        text="v_mfma_f32_32x32x8f16 v[",
        write=f16_product,
        wanted=f16_wanted,
        uses={"issue": 1.0, "tensor cycles": 32.0},
        refused=lambda k: v_mfma_f32_32x32x8f16(k, k.array(u32, 2), k.array(u32, 2), 0, into=k.array(f32, 4)),
        reason="D is .*, 4 registers; 16 are wanted",
    ),
    "v_mfma_scale_f32_32x32x64_f8f6f4": Form(
        text="op_sel:[1,0,0] op_sel_hi:[0,1,0]",
        write=scaled_product,
        wanted=scaled_wanted,
        uses={"issue": 1.0, "tensor cycles": 64.0},
        refused=lambda k: scaled_by(k, k.array(u32, 1, place="s4")),
        reason="scale of A is .* at s4; vector registers are wanted",
        target=GFX950,
    ),
    "v_pk_add_f32": Form(
        text="v_pk_add_f32 v[",
        write=packed_sum,
        wanted=packed_wanted,
        uses={"issue": 1.0, "fma": 2.0},
        refused=lambda k: v_pk_add_f32(k, k.array(f32, 4)[1:3], k.array(f32, 2), into=k.array(f32, 2)),
        reason="starts in the middle of an aligned tuple",
    ),
    "ds_read_b128": Form(
        text="ds_read_b128 v[",
        write=through_lds,
        wanted=neighbours,
        uses={"issue": 1.0, "shared load bytes": 1024.0},
        refused=lambda k: ds_read_b128(k, address(k), into=k.array(u32, 2)),
        reason="destination is .*, 2 registers; 4 are wanted",
    ),
    "global_load_dwordx4": Form(
        text="global_load_dwordx4 v[",
        write=lambda k, own, to: stored(k, to, loaded(k, own)),
        wanted=lambda source: source,
        uses={"issue": 1.0, "global load bytes": 1024.0},
        refused=lambda k: global_load_dwordx4(k, k.parameter("p", u64), into=k.array(u32, 4), offset=4096),
        reason="offset is 4096; 0 to 4095 is wanted",
    ),
    "buffer_load_dwordx4": Form(
        text=", s[8:11], 0 offen",
        write=from_buffer,
        wanted=buffer_wanted,
        uses={"issue": 1.0, "global load bytes": 1024.0},
        refused=lambda k: buffer_load_dwordx4(k, address(k), k.array(u32, 4, place="v[8:11]"), 0, into=k.array(u32, 4)),
        reason="descriptor is .* at v8; scalar registers are wanted",
    ),
    "s_waitcnt": Form(
        text="s_waitcnt lgkmcnt(0)",
        write=through_lds,
        wanted=neighbours,
        uses={"issue": 1.0},
        refused=lambda k: s_waitcnt(k, lgkmcnt=16),
        reason="lgkmcnt is 16; 0 to 15 is wanted",
    ),
    "s_barrier": Form(
        text="s_barrier",
        write=across_waves,
        wanted=other_wave,
        uses={"issue": 1.0},
        refused=lambda k: s_barrier(k, address(k)),
        reason="takes operands",
        warps=2,
    ),
    "s_setprio": Form(
        text="s_setprio 1",
        write=with_priority,
        wanted=lambda source: source,
        uses={"issue": 1.0},
        refused=lambda k: s_setprio(k, priority=4),
        reason="priority is 4; 0 to 3 is wanted",
    ),
}


def program(form: Form) -> Program:
    k = Builder("form", form.target)
    k.warps(form.warps)
    source, result, words = k.parameter("source", u64), k.parameter("result", u64), k.parameter("words")
    own = k.address(source, k.thread, 16)
    form.write(k, own, k.address(result, k.thread * words, 4))
    return k.finish({})


@pytest.mark.parametrize("name", PAGE)
def test_it_assembles(name: str) -> None:
    form = PAGE[name]
    try:
        find_clang()
    except AssemblerNotFound:
        pytest.skip("no assembler for AMDGCN")
    text = amdgcn(program(form))
    assert form.text in text
    assert len(assemble(text, form.target.name).image) > 1000


@pytest.mark.parametrize("order", SCHEDULES)
@pytest.mark.parametrize("name", PAGE)
def test_it_emulates(name: str, order: str) -> None:
    form = PAGE[name]
    random = np.random.default_rng(7)
    # bytes of which float32, float16 and e4m3 alike make numbers of middling size
    bytes = random.integers(0, 256, (LANES * form.warps, 16)).astype(np.uint8) & 0x9F | 0x20
    source = np.ascontiguousarray(bytes).view(np.uint32)
    wanted = form.wanted(source)
    result = np.zeros(wanted.shape, wanted.dtype)
    at = view(source)
    scalars: dict[str, Any] = {"words": wanted.shape[1]}
    if name == "buffer_load_dwordx4":
        scalars |= {"low": at.pointer & 0xFFFFFFFF, "high": at.pointer >> 32}
    emulate.run(Launch.of(program(form), 1, source=at, result=view(result), **scalars), order, seed=3)
    if "v_mfma" in name:  # added in another order than numpy's
        assert np.allclose(result, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())
    else:
        assert result.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", PAGE)
def test_it_has_a_cost(name: str) -> None:
    found = [i for i in program(PAGE[name]).instructions() if i.operation.name == name]
    assert found and all(i.uses == PAGE[name].uses for i in found)


@pytest.mark.parametrize("name", PAGE)
def test_its_illegal_form_is_refused(name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=PAGE[name].reason):
        PAGE[name].refused(Builder("refused", PAGE[name].target))
