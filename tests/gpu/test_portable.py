"""Every portable operation: what the emulator says of it, a GPU does, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from kingpost import emulate
from kingpost.arrays import view
from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.formats import E4M3
from kingpost.program import Builder, Launch, Type, f32, pred, s32, u32, u64
from kingpost.program.operations import PORTABLE
from kingpost.targets.nvidia.ptx import ptx

from .on_gpu import run

ROUNDS = 8  # of 32 lanes
OPERATIONS = [o for (_, type), o in PORTABLE.items() if o.pure]
FIELDS = {"format": E4M3, "index": 2}
SPECIAL = {
    u32: [0, 1, 2, 5, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
    u64: [0, 1, 31, 2**32 - 1, 2**32, 2**63, 2**64 - 1],
    f32: [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, np.inf, -np.inf, np.nan, -np.nan, 0.1],
}


def values(type: Type, seed: int) -> np.ndarray:
    """[ROUNDS, 32] of a type: pairs of what is special, in every combination that fits, and random bits."""
    random = np.random.default_rng(seed)
    some = random.integers(0, 2**type.bits, ROUNDS * 32, f"u{type.bits // 8}", endpoint=False).view(type.dtype)
    special = np.array(SPECIAL[type], type.dtype)
    pairs = [x.ravel() for x in np.meshgrid(special, special)][seed % 2][: ROUNDS * 32 - 64]
    some[: len(pairs)] = pairs
    return some.reshape(ROUNDS, 32)


def launch(d: np.ndarray) -> Launch:
    """Every operation on every value, into d, uint64 [operations, ROUNDS, 32]."""
    k = Builder("portable", "sm_90a")
    inputs = {(type, i): values(type, i) for type in SPECIAL for i in range(4)}
    places = {key: k.parameter(f"{key[0].name}_{key[1]}", u64) for key in inputs}
    target = k.parameter("d", u64)

    def operand(type: Type, i: int, round: int):
        if type is s32:
            return k.convert(s32, operand(f32, i, round))
        if type is pred:
            return operand(u32, i, round) < 1 << 31
        return k.load(type, k.address(places[type, i], k.lane, type.bits // 8), offset=round * 4 * type.bits)

    for number, operation in enumerate(OPERATIONS):
        for round in range(ROUNDS):
            types = [operation.reads.get(name, f32) for name in operation.operands]
            operands = [operand(type, i, round) for i, type in enumerate(types)]
            if operation.name.startswith(("div.u", "rem")):  # by zero, chips give what they like
                operands[1] = operands[1] | 1
            result = operation(k, *operands, **{f: FIELDS[f] for f in operation.fields})
            if result.type is s32:
                result = k.convert(f32, result)
            if result.type is pred:
                result = k.select(result, 1, 0, into=k.new(u32))
            k.store(k.address(target, k.lane, 8), result, offset=(number * ROUNDS + round) * 256)
    arrays = {f"{type.name}_{i}": array for (type, i), array in inputs.items()} | {"d": d}
    views = {name: view(array) for name, array in arrays.items()}
    return Launch(k.finish({}), 1, {name: each.pointer for name, each in views.items()}, tuple(views.values()))


def empty() -> np.ndarray:
    return np.zeros((len(OPERATIONS), ROUNDS, 32), np.uint64)


def test_the_program_runs_emulated_and_assembles() -> None:
    d = empty()
    whole = launch(d)
    emulate.run(whole)
    assert d.any(axis=(1, 2)).all()
    try:
        assemble(ptx(whole.program), "sm_90a", find_ptxas())
    except AssemblerNotFound as error:
        pytest.skip(str(error))


@pytest.mark.gpu
def test_every_portable_operation_gives_the_emulators_bits() -> None:
    emulated, measured = empty(), empty()
    emulate.run(launch(emulated))
    run(launch(measured))
    wrong = {
        operation.name: f"emulated {emulated[i][bad][0]:#x}, measured {measured[i][bad][0]:#x}, {bad.sum()} differ"
        for i, operation in enumerate(OPERATIONS) if (bad := emulated[i] != measured[i]).any()
    }  # fmt: skip
    assert wrong == {}
