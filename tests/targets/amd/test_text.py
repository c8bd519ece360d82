"""AMDGCN text: every portable operation assembles and does what the emulator says; control flow; waits; its look."""

from __future__ import annotations

import numpy as np
import pytest

from kingpost.assemble import AssemblerNotFound, Binary, find_clang
from kingpost.assemble.amdgcn import assemble
from kingpost.program import Target, f32, u32, u64
from kingpost.program.operations import PORTABLE
from kingpost.targets.amd.amdgcn import amdgcn
from kingpost.targets.amd.targets import GFX942, GFX950

from .programs import LANES, PURE, both, everything, use, values

TARGETS = pytest.mark.parametrize("target", [GFX942, GFX950], ids=lambda target: target.name)
ROUNDS = 4


def assembled(text: str, target: str) -> Binary:
    """What the assembler and linker make of a text without a remark; skips without them."""
    try:
        tool = find_clang()
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    return assemble(text, target, tool)


@TARGETS
def test_every_portable_operation_assembles(target: Target) -> None:
    program = everything(target)
    used = {i.operation for i in program.instructions()}
    assert {o for (name, _), o in PORTABLE.items() if name != "parameter"} <= used
    binary = assembled(amdgcn(program), target.name)
    assert binary.image[:4] == b"\x7fELF" and binary.registers < 64 and binary.shared_bytes == 1024


def differing(emulated: np.ndarray, found: np.ndarray) -> dict[str, str]:
    return {
        operation.name: f"{bad.sum()} differ: {emulated[i][bad][0]:#x} emulated, {found[i][bad][0]:#x} interpreted"
        for i, operation in enumerate(PURE)
        if (bad := emulated[i] != found[i]).any()
    }


@TARGETS
def test_operations_on_vector_registers_give_the_emulators_bits(target: Target) -> None:
    inputs = {f"{t.name}_{i}": values(t, i, ROUNDS * LANES) for t in (u32, u64, f32) for i in range(4)}

    def body(k, d, **places):
        for number, operation in enumerate(PURE):
            for part in range(ROUNDS):

                def operand(type, i, part=part):
                    at = k.address(places[f"{type.name}_{i}"], k.lane, type.bits // 8)
                    return k.load(type, at, offset=part * LANES * type.bits // 8)

                k.store(
                    k.address(d, k.lane, 8), use(k, operation, operand), offset=(number * ROUNDS + part) * 8 * LANES
                )

    d = np.zeros((len(PURE), ROUNDS, LANES), np.uint64)
    assert differing(*both(target, body, d, **inputs)) == {}


@TARGETS
@pytest.mark.parametrize("seed", range(3))
def test_operations_on_scalar_registers_give_the_emulators_bits(target: Target, seed: int) -> None:
    random = np.random.default_rng(seed)
    scalars = {f"{t.name}_{i}": random.choice(values(t, i, 256)) for t in (u32, u64, f32) for i in range(4)}

    def body(k, d, **given):
        for number, operation in enumerate(PURE):
            result = use(k, operation, lambda type, i: given[f"{type.name}_{i}"])
            k.store(k.address(d, k.lane, 8), result, offset=number * 8 * LANES)

    d = np.zeros((len(PURE), LANES), np.uint64)
    assert differing(*both(target, body, d, scalars=scalars)) == {}
