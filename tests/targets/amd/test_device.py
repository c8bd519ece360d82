"""emulated:gfx942 and emulated:gfx950 as devices; the text of portable kernels, run against the emulator."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from kingpost import emulate, formats
from kingpost.arrays import view
from kingpost.formats import BF16, E4M3FNUZ, F32
from kingpost.portable import cast, silu_mul_cast, tile_product, vector_add
from kingpost.program import Builder, Launch, u32, u64
from kingpost.scaling import ScaledTensor
from kingpost.targets.amd.device import EMULATED_AMD, EmulatedAmd
from kingpost.targets.amd.kernels.cdna3_fp8_one_wave import cdna3_fp8_one_wave

from .programs import interpret
from .test_text import assembled

DEVICES = pytest.mark.parametrize("device", EMULATED_AMD.values(), ids=lambda device: device.name)


def test_there_are_two() -> None:
    assert [(d.name, d.target.lanes, d.target.float8.name) for d in EMULATED_AMD.values()] == [
        ("emulated:gfx942", 64, "e4m3fnuz"),
        ("emulated:gfx950", 64, "e4m3"),
    ]


def scaled(device: EmulatedAmd, rows: int, depth: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    codes = formats.cast(random.standard_normal((rows, depth)).astype(np.float32), device.target.float8)
    return codes, random.random((rows, -(-depth // 128)), np.float32)


def kernels(device: EmulatedAmd) -> dict[str, Any]:
    """A launch of each kernel into a new result, and that result."""
    random = np.random.default_rng(3)
    float8 = device.target.float8.dtype
    x = formats.cast(random.standard_normal((3, 304)), BF16)
    a, sa = scaled(device, 70, 144, 1)
    b, sb = scaled(device, 80, 144, 2)
    made: dict[str, Any] = {
        "vector_add": (vector_add, [random.standard_normal(500).astype(np.float32) for _ in range(2)],
                       [np.zeros(500, np.float32)]),
        "cast": (cast, [x], [np.zeros(x.shape, float8), np.zeros((3, 3), np.float32)]),
        "silu_mul_cast": (silu_mul_cast, [x], [np.zeros((3, 152), float8), np.zeros((3, 2), np.float32)]),
        "tile_product": (tile_product, [a, sa, b, sb[:1]], [np.zeros((70, 80), np.float32)]),
    }  # fmt: skip
    return made


@DEVICES
@pytest.mark.parametrize("name", ["vector_add", "cast", "silu_mul_cast", "tile_product"])
def test_the_text_of_a_portable_kernel_does_what_the_emulator_says(device: EmulatedAmd, name: str) -> None:
    """Bit for bit, in an interpreter of AMDGCN that knows only the text; and the assembler takes it."""
    kernel, inputs, results = kernels(device)[name]
    emulated, interpreted = [each.copy() for each in results], [each.copy() for each in results]
    emulate.run(kernel.launch(device.target, *map(view, (*inputs, *emulated))))
    whole: Launch = kernel.launch(device.target, *map(view, (*inputs, *interpreted)))
    interpret(whole)
    assert any(each.view(np.uint8).any() for each in emulated)
    for ours, theirs in zip(interpreted, emulated):
        np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8))
    binary = assembled(device.text(whole.program), device.target.name)
    assert binary.spill_bytes == 0 and binary.shared_bytes == whole.program.shared_bytes


@DEVICES
@pytest.mark.parametrize("out", [F32, BF16], ids=str)
def test_the_model_is_what_the_portable_product_gives(device: EmulatedAmd, out: formats.Format) -> None:
    a, sa = scaled(device, 33, 144, 1)
    b, _ = scaled(device, 130, 144, 2)
    sb = np.random.default_rng(4).random((2, 2), np.float32)
    d = np.zeros((33, 130), out.dtype)
    device.prepare(tile_product.launch(device.target, *map(view, (a, sa, b, sb, d))))(0)
    weight = ScaledTensor(b, sb, "128x128")
    model = device.model(ScaledTensor(a, sa, "1x128"), weight.T, out)
    np.testing.assert_array_equal(d.view(np.uint8), np.ascontiguousarray(model).view(np.uint8))


@pytest.mark.parametrize("depth", [16, 48, 176])
def test_the_text_of_a_hand_written_kernel_too(depth: int) -> None:
    """Registers, waits and wait states by hand, addresses lowered."""
    random = np.random.default_rng(depth)
    a, b = (formats.cast(random.standard_normal((32, depth)).astype(np.float32), E4M3FNUZ) for _ in range(2))
    emulated, interpreted = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)
    launches = [
        Launch.of(cdna3_fp8_one_wave(), 1, a=view(a), b=view(b), c=view(c), k=depth) for c in (emulated, interpreted)
    ]
    emulate.run(launches[0])
    interpret(launches[1])
    assert emulated.any()
    np.testing.assert_array_equal(interpreted, emulated)


def test_tensor_maps_are_refused() -> None:
    device = EMULATED_AMD["gfx942"]
    k = Builder("maps", device.target)
    k.tensor_map("a", F32, (1, 4))
    with pytest.raises(ValueError, match="parameter a is a tensor map; gfx942 has none"):
        device.text(k.finish({}))


def test_programs_of_other_chips_and_blocks_too_large_are_refused() -> None:
    device = EMULATED_AMD["gfx942"]
    with pytest.raises(ValueError, match="is for sm_90a with 32 lanes; 64 lanes on one of gfx942, gfx950"):
        device.text(Builder("other", "sm_90a").finish({}))
    k = Builder("large", device.target)
    k.shared("all", (65537,), formats.U8)
    with pytest.raises(ValueError, match=re.escape("65537 bytes of LDS; at most 16 and 65536 are wanted on gfx942")):
        device.text(k.finish({}))


def test_the_text_of_a_small_kernel() -> None:
    """Stable, and readable: the Python line above what it became."""
    k = Builder("twice", EMULATED_AMD["gfx942"].target)
    x = k.parameter("x", u64)
    at = k.address(x, k.lane, 4)
    k.store(at, k.load(u32, at) * 2)
    line = test_the_text_of_a_small_kernel.__code__.co_firstlineno + 3
    text = EMULATED_AMD["gfx942"].text(k.finish({}))
    body = text[text.index("twice:\n") : text.index(".size")]
    assert (
        body
        == f"""\
twice:
  ; test_device.py:{line}
  s_load_dwordx2 s[2:3], s[0:1], 0
  ; test_device.py:{line + 1}
  v_and_b32 v1, 63, v0
  s_waitcnt lgkmcnt(0)
  v_mad_u64_u32 v[2:3], vcc, v1, 4, s[2:3]
  ; test_device.py:{line + 2}
  global_load_dword v1, v[2:3], off
  s_waitcnt vmcnt(0)
  v_lshlrev_b32 v1, 1, v1
  global_store_dword v[2:3], v1, off
  s_endpgm
"""
    )
    assert "- {.offset: 8, .size: 4, .value_kind: hidden_block_count_x}" in text
