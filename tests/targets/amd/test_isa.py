"""CDNA instructions one by one: their text by the real assembler, what they compute, and the forms that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kingpost.program import Builder, Register, Registers, f32, u32, u64
from kingpost.targets.amd.isa import cdna3, cdna4, common
from kingpost.targets.amd.isa.layouts import (
    contiguous_operand,
    halved_operand,
    result_matrix,
)
from kingpost.targets.amd.targets import GFX942, GFX950

from ...emulate.harness import run
from .wave import assemble, lines

LANES = 64
TARGETS = {"gfx942": GFX942, "gfx950": GFX950}


def v(k: Builder, count: int, first: int = 0, type: Any = u32, file: str = "v") -> Registers:
    words = count * type.bits // 32
    return k.array(type, count, place=f"{file}{first}" if words == 1 else f"{file}[{first}:{first + words - 1}]")


# Text

TEXTS: dict[str, tuple[Callable[[Builder], Any], tuple[str, ...]]] = {
    "s_waitcnt vmcnt(3)": (lambda k: common.s_waitcnt(k, vmcnt=3), ("gfx942", "gfx950")),
    "s_waitcnt vmcnt(63) lgkmcnt(15)": (lambda k: common.s_waitcnt(k, vmcnt=63, lgkmcnt=15), ("gfx942", "gfx950")),
    "s_barrier": (common.s_barrier, ("gfx942",)),
    "s_nop 15": (lambda k: common.s_nop(k, count=15), ("gfx942",)),
    "s_setprio 3": (lambda k: common.s_setprio(k, priority=3), ("gfx942",)),
    "s_mov_b32 s8, 77": (lambda k: common.s_mov_b32(k, 77, into=v(k, 1, 8, file="s")), ("gfx942",)),
    "v_readfirstlane_b32 s8, v3": (
        lambda k: common.v_readfirstlane_b32(k, v(k, 1, 3), into=v(k, 1, 8, file="s")),
        ("gfx942",),
    ),
    "global_load_dword v4, v[2:3], off": (
        lambda k: common.global_load_dword(k, v(k, 1, 2, u64), into=v(k, 1, 4)),
        ("gfx942",),
    ),
    "global_load_dwordx4 v[4:7], v[2:3], off offset:4080": (
        lambda k: common.global_load_dwordx4(k, v(k, 1, 2, u64), into=v(k, 4, 4), offset=4080),
        ("gfx942", "gfx950"),
    ),
    "global_store_dwordx2 v[2:3], a[4:5], off offset:8": (
        lambda k: common.global_store_dwordx2(k, v(k, 1, 2, u64), v(k, 2, 4, f32, "a"), offset=8),
        ("gfx942",),
    ),
    "buffer_load_dwordx4 v[4:7], v1, s[8:11], 0 offen offset:16": (
        lambda k: common.buffer_load_dwordx4(k, v(k, 1, 1), v(k, 4, 8, file="s"), 0, into=v(k, 4, 4), offset=16),
        ("gfx942", "gfx950"),
    ),
    "buffer_load_dword v4, v1, s[8:11], s12 offen": (
        lambda k: common.buffer_load_dword(k, v(k, 1, 1), v(k, 4, 8, file="s"), v(k, 1, 12, file="s"), into=v(k, 1, 4)),
        ("gfx942",),
    ),
    "ds_read_b128 v[4:7], v1 offset:65520": (
        lambda k: common.ds_read_b128(k, v(k, 1, 1), into=v(k, 4, 4), offset=65520),
        ("gfx942", "gfx950"),
    ),
    "ds_write_b64 v1, v[4:5]": (lambda k: common.ds_write_b64(k, v(k, 1, 1), v(k, 2, 4)), ("gfx942",)),
    "v_pk_add_f32 v[0:1], v[2:3], v[4:5]": (
        lambda k: common.v_pk_add_f32(k, v(k, 2, 2, f32), v(k, 2, 4, f32), into=v(k, 2, 0, f32)),
        ("gfx942", "gfx950"),
    ),
    "v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[0:1]": (
        lambda k: (lambda d: common.v_pk_fma_f32(k, v(k, 2, 2, f32), v(k, 2, 4, f32), d, into=d))(v(k, 2, 0, f32)),
        ("gfx942",),
    ),
    "v_accvgpr_read_b32 v1, a2": (
        lambda k: common.v_accvgpr_read_b32(k, v(k, 1, 2, f32, "a"), into=v(k, 1, 1, f32)),
        ("gfx942",),
    ),
    "v_accvgpr_write_b32 a2, v1": (
        lambda k: common.v_accvgpr_write_b32(k, v(k, 1, 1, f32), into=v(k, 1, 2, f32, "a")),
        ("gfx942",),
    ),
    "v_mfma_f32_32x32x16_fp8_fp8 a[0:15], v[2:3], v[4:5], 0": (
        lambda k: cdna3.v_mfma_f32_32x32x16_fp8_fp8(k, v(k, 2, 2), v(k, 2, 4), 0, into=v(k, 16, 0, f32, "a")),
        ("gfx942", "gfx950"),
    ),
    "v_mfma_f32_16x16x32_fp8_fp8 v[8:11], v[2:3], a[4:5], v[8:11]": (
        lambda k: (lambda d: cdna3.v_mfma_f32_16x16x32_fp8_fp8(k, v(k, 2, 2), v(k, 2, 4, file="a"), d, into=d))(
            v(k, 4, 8, f32)
        ),
        ("gfx942", "gfx950"),
    ),
    "v_mfma_f32_32x32x8f16 v[8:23], v[2:3], v[4:5], 0": (
        lambda k: cdna3.v_mfma_f32_32x32x8f16(k, v(k, 2, 2), v(k, 2, 4), 0, into=v(k, 16, 8, f32)),
        ("gfx942", "gfx950"),
    ),
    "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:21], 0 blgp:2": (
        lambda k: cdna4.v_mfma_f32_16x16x128_f8f6f4(k, v(k, 8, 8), v(k, 6, 16), 0, into=v(k, 4, 0, f32), blgp=2),
        ("gfx950",),
    ),
    "v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[16:23], v[24:27], 0 cbsz:1 blgp:4": (
        lambda k: cdna4.v_mfma_f32_32x32x64_f8f6f4(
            k, v(k, 8, 16), v(k, 4, 24), 0, into=v(k, 16, 0, f32), cbsz=1, blgp=4
        ),
        ("gfx950",),
    ),
    "v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[16:23], v[24:31], 0, v32, v33 op_sel:[1,0,0] op_sel_hi:[0,1,0]": (
        lambda k: cdna4.v_mfma_scale_f32_32x32x64_f8f6f4(
            k, v(k, 8, 16), v(k, 8, 24), 0, v(k, 1, 32), v(k, 1, 33), into=v(k, 16, 0, f32), byte_a=1, byte_b=2
        ),
        ("gfx950",),
    ),
    "v_mfma_scale_f32_16x16x128_f8f6f4 a[0:3], v[16:19], v[24:27], 0, v32, v32 op_sel:[0,0,0] op_sel_hi:[0,0,0] "
    "cbsz:4 blgp:4": (
        lambda k: (
            lambda scale: cdna4.v_mfma_scale_f32_16x16x128_f8f6f4(
                k, v(k, 4, 16), v(k, 4, 24), 0, scale, scale, into=v(k, 4, 0, f32, "a"), cbsz=4, blgp=4
            )
        )(v(k, 1, 32)),
        ("gfx950",),
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text: str) -> None:
    emit, targets = TEXTS[text]
    k = Builder("text", TARGETS[targets[0]])
    emit(k)
    assert lines(k.finish({})) == [text]


@pytest.mark.parametrize("target", TARGETS)
def test_the_assembler_takes_every_text(target: str, tmp_path: Path) -> None:
    assemble([text for text, (_, targets) in TEXTS.items() if target in targets], target, tmp_path)


ENCODINGS: list[tuple[Callable[[Builder], Any], tuple[int, ...]]] = [  # as LLVM's own code generation encodes them
    (lambda k: common.s_waitcnt(k, vmcnt=0), (0xBF8C0F70,)),
    (lambda k: common.s_waitcnt(k, lgkmcnt=0), (0xBF8CC07F,)),
    (
        lambda k: (lambda d: cdna3.v_mfma_f32_32x32x16_fp8_fp8(k, v(k, 2, 2), v(k, 2, 4), d, into=d))(
            v(k, 16, 0, f32, "a")
        ),
        (0xD3F78000, 0x04020902),
    ),
    (
        lambda k: cdna4.v_mfma_scale_f32_32x32x64_f8f6f4(
            k, v(k, 8, 4), v(k, 8, 12), 0, v(k, 1, 3), v(k, 1, 3), into=v(k, 16, 2, f32, "a"), byte_b=1
        ),
        (0xD3AC1000, 0x00020703, 0xD3AE8802, 0x02021904),
    ),
]


@pytest.mark.parametrize("emit, words", ENCODINGS, ids=[hex(words[0]) for _, words in ENCODINGS])
def test_encoding(emit: Callable[[Builder], Any], words: tuple[int, ...], tmp_path: Path) -> None:
    k = Builder("encoding", GFX950)
    emit(k)
    code = assemble(lines(k.finish({})), "gfx950", tmp_path)
    assert b"".join(word.to_bytes(4, "little") for word in words) in code


# Refused

REFUSED: list[tuple[str, str, Callable[[Builder], Any]]] = [
    ("vmcnt is 64; 0 to 63", "gfx942", lambda k: common.s_waitcnt(k, vmcnt=64)),
    ("lgkmcnt is 16; 0 to 15", "gfx942", lambda k: common.s_waitcnt(k, lgkmcnt=16)),
    ("waits for nothing", "gfx942", common.s_waitcnt),
    ("count is 16; 0 to 15", "gfx942", lambda k: common.s_nop(k, count=16)),
    ("priority is 4; 0 to 3", "gfx942", lambda k: common.s_setprio(k, priority=4)),
    (
        "destination is .*, 2 registers; 4 are wanted",
        "gfx942",
        lambda k: common.ds_read_b128(k, v(k, 1, 1), into=v(k, 2, 4)),
    ),
    ("destination is None; 4 registers", "gfx942", lambda k: common.ds_read_b128(k, v(k, 1, 1))),
    (
        "at v5; a tuple that starts at a multiple of 2",
        "gfx942",
        lambda k: common.ds_read_b128(k, v(k, 1, 1), into=v(k, 4, 5)),
    ),
    (
        "middle of an aligned tuple",
        "gfx942",
        lambda k: common.ds_read_b64(k, v(k, 1, 1), into=k.array(u32, 4)[1:3]),
    ),
    (
        "neighbouring registers",
        "gfx942",
        lambda k: common.ds_read_b64(k, v(k, 1, 1), into=k.array(u32, 4)[[0, 2]]),
    ),
    (
        "offset is 65536; 0 to 65535",
        "gfx942",
        lambda k: common.ds_read_b128(k, v(k, 1, 1), into=v(k, 4, 4), offset=65536),
    ),
    ("address is 4; 1 register", "gfx942", lambda k: common.ds_read_b128(k, 4, into=v(k, 4, 4))),
    (
        "offset is 4096; 0 to 4095",
        "gfx942",
        lambda k: common.global_load_dword(k, v(k, 1, 2, u64), into=v(k, 1, 4), offset=4096),
    ),
    (
        "address is .* at s2; vector registers",
        "gfx942",
        lambda k: common.global_load_dword(k, v(k, 1, 2, u64, "s"), into=v(k, 1, 4)),
    ),
    (
        "descriptor is .* at v8; scalar registers",
        "gfx942",
        lambda k: common.buffer_load_dwordx4(k, v(k, 1, 1), v(k, 4, 8), 0, into=v(k, 4, 4)),
    ),
    (
        "at s10; a tuple that starts at a multiple of 4",
        "gfx942",
        lambda k: common.buffer_load_dwordx4(k, v(k, 1, 1), v(k, 4, 10, file="s"), 0, into=v(k, 4, 4)),
    ),
    (
        "descriptor is .*; a scalar register placed by hand",
        "gfx942",
        lambda k: common.buffer_load_dwordx4(k, v(k, 1, 1), k.array(u32, 4), 0, into=v(k, 4, 4)),
    ),
    (
        "scalar offset is 65; a scalar register or 0 to 64",
        "gfx942",
        lambda k: common.buffer_load_dwordx4(k, v(k, 1, 1), v(k, 4, 8, file="s"), 65, into=v(k, 4, 4)),
    ),
    (
        "a is .* at a2; vector registers",
        "gfx942",
        lambda k: common.v_pk_add_f32(k, v(k, 2, 2, f32, "a"), v(k, 2, 4, f32), into=v(k, 2, 0, f32)),
    ),
    (
        "source is .* at v2; file a",
        "gfx942",
        lambda k: common.v_accvgpr_read_b32(k, v(k, 1, 2, f32), into=v(k, 1, 1, f32)),
    ),
    (
        "A is .*, 4 registers; 2 are wanted",
        "gfx942",
        lambda k: cdna3.v_mfma_f32_32x32x16_fp8_fp8(k, v(k, 4, 4), v(k, 2, 2), 0, into=v(k, 16, 8, f32)),
    ),
    (
        "D is .*, 4 registers; 16 are wanted",
        "gfx942",
        lambda k: cdna3.v_mfma_f32_32x32x16_fp8_fp8(k, v(k, 2, 4), v(k, 2, 2), 0, into=v(k, 4, 8, f32)),
    ),
    (
        "C is 1.0; registers or the constant 0",
        "gfx942",
        lambda k: cdna3.v_mfma_f32_32x32x8f16(k, v(k, 2, 4), v(k, 2, 2), 1.0, into=v(k, 16, 8, f32)),
    ),
    (
        "the same registers, or none in common",
        "gfx942",
        lambda k: (lambda many: cdna3.v_mfma_f32_32x32x8f16(k, v(k, 2, 4), v(k, 2, 2), many[0:16], into=many[4:20]))(
            v(k, 20, 8, f32)
        ),
    ),
    (
        "C lies in file v, D in a; one file",
        "gfx942",
        lambda k: cdna3.v_mfma_f32_32x32x8f16(k, v(k, 2, 4), v(k, 2, 2), v(k, 16, 8, f32), into=v(k, 16, 0, f32, "a")),
    ),
    (
        "exists on gfx950, not on gfx942",
        "gfx942",
        lambda k: cdna4.v_mfma_f32_32x32x64_f8f6f4(k, v(k, 8, 16), v(k, 8, 24), 0, into=v(k, 16, 0, f32)),
    ),
    (
        "cbsz is 5",
        "gfx950",
        lambda k: cdna4.v_mfma_f32_32x32x64_f8f6f4(k, v(k, 8, 16), v(k, 8, 24), 0, into=v(k, 16, 0, f32), cbsz=5),
    ),
    (
        "B is .*, 8 registers; 4 are wanted",
        "gfx950",
        lambda k: cdna4.v_mfma_f32_32x32x64_f8f6f4(k, v(k, 8, 16), v(k, 8, 24), 0, into=v(k, 16, 0, f32), blgp=4),
    ),
    (
        "scale of A is .* at s32; vector registers",
        "gfx950",
        lambda k: cdna4.v_mfma_scale_f32_32x32x64_f8f6f4(
            k, v(k, 8, 16), v(k, 8, 24), 0, v(k, 1, 32, file="s"), v(k, 1, 33), into=v(k, 16, 0, f32)
        ),
    ),
    (
        "scale of B is 127; 1 register",
        "gfx950",
        lambda k: cdna4.v_mfma_scale_f32_32x32x64_f8f6f4(
            k, v(k, 8, 16), v(k, 8, 24), 0, v(k, 1, 32), 127, into=v(k, 16, 0, f32)
        ),
    ),
    (
        "scale byte of A is 4; 0 to 3",
        "gfx950",
        lambda k: cdna4.v_mfma_scale_f32_32x32x64_f8f6f4(
            k, v(k, 8, 16), v(k, 8, 24), 0, v(k, 1, 32), v(k, 1, 33), into=v(k, 16, 0, f32), byte_a=4
        ),
    ),
]


@pytest.mark.parametrize("reason, target, emit", REFUSED, ids=[each[0] for each in REFUSED])
def test_refused(reason: str, target: str, emit: Callable[[Builder], Any]) -> None:
    with pytest.raises(ValueError, match=reason):
        emit(Builder("refused", TARGETS[target]))


def test_a_scale_that_was_allocated_to_a_scalar_register_is_refused() -> None:
    k = Builder("scale", GFX950)
    emit, _ = next(each for text, each in TEXTS.items() if text.startswith("v_mfma_scale_f32_32x32x64"))
    emit(k)
    (instruction,) = k.finish({}).instructions()
    with pytest.raises(ValueError, match="a scale lies in s0; a vector register is wanted"):
        instruction.operation.text(instruction, lambda operand: "s0")


def test_every_instruction_has_a_cost() -> None:
    for emit, targets in TEXTS.values():
        k = Builder("uses", TARGETS[targets[0]])
        emit(k)
        (instruction,) = k.finish({}).instructions()
        assert instruction.uses["issue"] == 1.0


# What the matrix instructions compute


def computed(
    product: Callable[..., Any], target: Any, a: np.ndarray, b: np.ndarray, c: np.ndarray, **scales: np.ndarray
) -> np.ndarray:
    """`product(k, a, b, c, *scales, into=)` on registers [n, 64] of each operand: its result as a matrix."""
    d = np.zeros_like(c)

    def body(k: Builder, d: Register, **given: Register) -> None:
        values = []
        for name, array in {"a": a, "b": b, "c": c, **scales}.items():
            registers = k.array(u32, len(array))
            for i in range(len(array)):
                k.set(registers[i], k.load(u32, k.address(given[name], k.lane, 4), offset=4 * LANES * i))
            if name == "c":
                k.set(total := k.array(f32, len(array)), k.from_bits(registers))
            values.append(total if name == "c" else registers)
        product(k, *values, into=total)
        for states in (16, 16):
            common.s_nop(k, count=states - 1)
        for i, register in enumerate(total):
            k.store(k.address(d, k.lane, 4), register, offset=4 * LANES * i)

    run(body, target=target, d=d, a=a, b=b, c=c, **scales)
    return result_matrix(d)


def random_registers(count: int, seed: int) -> np.ndarray:
    """Bytes of [count, 64] registers, none of them a NaN in any 8-bit format, of exponents near 1."""
    bytes = np.random.default_rng(seed).integers(0, 256, (count, LANES, 4)).astype(np.uint8)
    return (bytes & 0x9F | 0x20).view(np.uint32)[..., 0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "product, side",
    [
        (cdna3.v_mfma_f32_32x32x16_fp8_fp8, 32),
        (cdna3.v_mfma_f32_16x16x32_fp8_fp8, 16),
        (cdna3.v_mfma_f32_32x32x8f16, 32),
    ],
    ids=lambda each: each.name if hasattr(each, "name") else None,
)
def test_products_of_cdna3(product: Any, side: int, target: str) -> None:
    a, b = random_registers(2, 1), random_registers(2, 2)
    c = np.random.default_rng(3).standard_normal((side * side // LANES, LANES)).astype(np.float32)
    dtype = np.float16 if "f16" in product.name else TARGETS[target].float8.dtype
    rows = [
        contiguous_operand(np.ascontiguousarray(x.T).view(np.uint8).view(dtype), side).astype(np.float64)
        for x in (a, b)
    ]
    wanted = rows[0] @ rows[1].T + result_matrix(c)
    assert np.allclose(computed(product, TARGETS[target], a, b, c), wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def values_of(registers: np.ndarray, side: int, code: int) -> np.ndarray:
    """An f8f6f4 operand's values, element by element."""
    dtype, bits = cdna4.FORMATS[code]
    lanes = np.ascontiguousarray(registers.T).view(np.uint8)
    elements = np.zeros((LANES, 32), np.uint8)
    for lane in range(LANES):
        word = int.from_bytes(lanes[lane].tobytes(), "little")
        elements[lane] = [word >> bits * e & (1 << bits) - 1 for e in range(32)]
    return (halved_operand if bits == 8 else contiguous_operand)(elements, side).view(dtype).astype(np.float64)


@pytest.mark.parametrize("cbsz, blgp", [(0, 0), (1, 0), (2, 4), (3, 1), (4, 4)])
@pytest.mark.parametrize(
    "product, side", [(cdna4.v_mfma_f32_16x16x128_f8f6f4, 16), (cdna4.v_mfma_f32_32x32x64_f8f6f4, 32)], ids=["16", "32"]
)
def test_products_of_cdna4(product: Any, side: int, cbsz: int, blgp: int) -> None:
    a, b = (random_registers(cdna4.FORMATS[code][1], code) for code in (cbsz, blgp))
    c = np.random.default_rng(3).standard_normal((side * side // LANES, LANES)).astype(np.float32)
    wanted = values_of(a, side, cbsz) @ values_of(b, side, blgp).T + result_matrix(c)

    def emit(k: Builder, *operands: Registers, into: Registers) -> None:
        product(k, *operands, into=into, cbsz=cbsz, blgp=blgp)

    assert (computed(emit, GFX950, a, b, c) == wanted.astype(np.float32)).all()


@pytest.mark.parametrize("byte_a, byte_b", [(0, 3), (1, 2), (3, 0)])
@pytest.mark.parametrize(
    "product, side",
    [(cdna4.v_mfma_scale_f32_16x16x128_f8f6f4, 16), (cdna4.v_mfma_scale_f32_32x32x64_f8f6f4, 32)],
    ids=["16", "32"],
)
def test_scaled_products(product: Any, side: int, byte_a: int, byte_b: int) -> None:
    a, b, c = random_registers(8, 1), random_registers(8, 2), np.zeros((side * side // LANES, LANES), np.float32)
    random = np.random.default_rng(5)
    scales = [random.integers(120, 135, (1, LANES, 4)).astype(np.uint8).view(np.uint32)[..., 0] for _ in range(2)]
    wanted = np.zeros((side, side))
    rows = values_of(a, side, 0), values_of(b, side, 0)
    for block in range(LANES // side):
        part = slice(32 * block, 32 * block + 32)
        factors = [
            2.0 ** ((scale[0, side * block : side * block + side] >> 8 * byte & 255).astype(int) - 127)
            for scale, byte in zip(scales, (byte_a, byte_b))
        ]
        wanted += factors[0][:, None] * factors[1] * (rows[0][:, part] @ rows[1][:, part].T)

    def emit(k: Builder, *operands: Registers, into: Registers) -> None:
        product(k, *operands, into=into, byte_a=byte_a, byte_b=byte_b)

    got = computed(emit, GFX950, a, b, c, scale_a=scales[0], scale_b=scales[1])
    assert np.allclose(got, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_a_scale_of_255_is_not_a_number() -> None:
    a, b, c = random_registers(8, 1), random_registers(8, 2), np.zeros((16, LANES), np.float32)
    scales = np.full((2, 1, LANES), 127, np.uint32)
    scales[0, 0, 3] = 255
    emit = cdna4.v_mfma_scale_f32_32x32x64_f8f6f4
    got = computed(emit, GFX950, a, b, c, scale_a=scales[0], scale_b=scales[1])
    assert np.isnan(got[3]).all() and np.isfinite(np.delete(got, 3, axis=0)).all()


def test_packed_arithmetic() -> None:
    result = np.zeros((6, LANES), np.float32)

    def body(k: Builder, result: Register) -> None:
        a, b = k.array(f32, 2), k.array(f32, 2)
        for i in range(2):
            k.set(a[i], k.convert(f32, k.lane + i))
            k.set(b[i], 0.5 + i)
        for place, operation, operands in (
            (0, common.v_pk_add_f32, (a, b)),
            (2, common.v_pk_mul_f32, (a, b)),
            (4, common.v_pk_fma_f32, (a, b, a)),
        ):
            d = k.array(f32, 2)
            operation(k, *operands, into=d)
            for i in range(2):
                k.store(k.address(result, k.lane, 4), d[i], offset=4 * LANES * (place + i))

    run(body, target=GFX942, result=result)
    lane = np.arange(LANES)
    assert (result == [lane + 0.5, lane + 2.5, lane * 0.5, (lane + 1) * 1.5, lane * 1.5, (lane + 1) * 2.5]).all()


def test_formats_of_six_bits_are_those_of_ocp() -> None:
    assert float(np.uint8(0x1F).view(ml_dtypes.float6_e2m3fn)) == 7.5
    assert float(np.uint8(0x1F).view(ml_dtypes.float6_e3m2fn)) == 28.0
