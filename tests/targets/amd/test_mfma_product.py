"""Products by hand and by tile: the bits of the arithmetic model, the real assembler, and every wait taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kingpost import emulate
from kingpost.arrays import view
from kingpost.assemble import AssemblerNotFound
from kingpost.assemble.amdgcn import assemble
from kingpost.assemble.tools import find_clang
from kingpost.emulate import EmulationError
from kingpost.formats import E4M3FNUZ
from kingpost.program import Builder, Instruction, Launch, Node, Program, Target, u32, u64
from kingpost.targets.amd.amdgcn import amdgcn
from kingpost.targets.amd.arithmetic import matrix_product
from kingpost.targets.amd.kernels.cdna3_fp8_one_wave import SIDE, cdna3_fp8_one_wave
from kingpost.targets.amd.targets import GFX942, GFX950
from kingpost.targets.amd.tile import DEPTH, tile_product

from .wave import SCHEDULES

Change = Callable[[Instruction], "Instruction | None"]  # what stands there instead
TARGETS = {"gfx942": GFX942, "gfx950": GFX950}


def assembled(program: Program) -> int:
    """The size of the program's code object."""
    try:
        find_clang()
    except AssemblerNotFound:
        pytest.skip("no assembler for AMDGCN")
    return len(assemble(amdgcn(program), program.target).image)


def random_codes(rows: int, k: int, dtype: Any, seed: int) -> np.ndarray:
    """Any finite bytes, subnormals and the extremes among them."""
    codes = np.random.default_rng(seed).integers(0, 256, (rows, k)).astype(np.uint8)
    values = codes.view(dtype)
    values[~np.isfinite(values.astype(np.float32))] = 0
    return values


def multiplied(program: Program, a: np.ndarray, b: np.ndarray, order: str, seed: int = 0, **scalars: int) -> np.ndarray:
    c = np.full((len(a), len(b)), np.nan, np.float32)
    views = {name: view(array) for name, array in (("a", a), ("b", b), ("c", c))}
    emulate.run(Launch.of(program, 1, **views, **scalars), order, seed)
    return c


def expected(target: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The chain of instructions that take 64 of K; on gfx942 they take 16, as the model does by itself."""
    c = np.zeros((len(a), len(b)), np.float32)
    for start in range(0, a.shape[1], 64):
        c = matrix_product(target, a[:, start : start + 64], b[:, start : start + 64], c)
    return c


# By hand


@pytest.mark.parametrize("k", [16, 32, 48, 176])
def test_the_bits_of_the_model(k: int) -> None:
    a, b = (random_codes(SIDE, k, E4M3FNUZ.dtype, seed) for seed in (1, 2))
    c = multiplied(cdna3_fp8_one_wave(), a, b, "late", k=k)
    assert c.tobytes() == expected("gfx942", a, b).tobytes()
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    assert (np.abs(c - exact) <= 2.0**-22 * k / 16 * size).all()


def test_it_assembles() -> None:
    assert assembled(cdna3_fp8_one_wave()) > 1000


def changed(program: Program, number: int, change: Change) -> Program:
    """The program with `change` made to its wait number `number`: an s_waitcnt or an s_nop."""
    seen = 0

    def nodes(body: Any) -> Iterator[Node]:
        nonlocal seen
        for node in body:
            if not isinstance(node, Instruction):
                yield replace(node, body=list(nodes(node.body)))
            elif is_wait(node):
                instead = change(node) if seen == number else node
                seen += 1
                if instead is not None:
                    yield instead
            else:
                yield node

    return replace(program, body=tuple(nodes(program.body)))


def is_wait(instruction: Instruction) -> bool:
    return instruction.operation.name in ("s_waitcnt", "s_nop")


def weaker(instruction: Instruction) -> Instruction:
    """One operation more in flight, or one wait state less."""
    fields = dict(instruction.fields)
    if "count" in fields:
        fields["count"] -= 1
    else:
        fields = {name: left if left is None else left + 1 for name, left in fields.items()}
    return replace(instruction, fields=fields)


HAND_WAITS = ["s_waitcnt", "s_waitcnt", "s_nop"]


def test_these_are_all_waits() -> None:
    waits = [i.operation.name for i in cdna3_fp8_one_wave().instructions() if is_wait(i)]
    assert waits == HAND_WAITS


@pytest.mark.parametrize("order", SCHEDULES)
@pytest.mark.parametrize("change", [lambda instruction: None, weaker], ids=["without", "weaker"])
@pytest.mark.parametrize("number", range(len(HAND_WAITS)), ids=["even", "odd", "result"])
def test_no_wait_can_go(number: int, change: Change, order: str) -> None:
    a, b = (random_codes(SIDE, 64, E4M3FNUZ.dtype, seed) for seed in (1, 2))
    with pytest.raises(EmulationError) as info:
        multiplied(changed(cdna3_fp8_one_wave(), number, change), a, b, order, k=64)
    kind, words = {
        "s_waitcnt": ("register in flight", "global_load_dwordx2 that no s_waitcnt vmcnt has waited for"),
        "s_nop": ("wait states", "11 are wanted: s_nop"),
    }[HAND_WAITS[number]]
    assert info.value.finding.kind == kind and words in str(info.value)
    assert "cdna3_fp8_one_wave.py:" in str(info.value)


# By tile, among portable operations


def tile_program(target: Target, rows: int, columns: int) -> Program:
    k = Builder("tile", target)
    k.warps(target.tile_warps)
    addresses = {name: k.parameter(name, u64) for name in "abc"}
    tiles = {"a": k.tile("a_tile", rows), "b": k.tile("b_tile", columns)}
    for name, tile in tiles.items():
        threads = target.tile_warps * k.lanes
        for first in range(0, tile.bytes // 4, threads):
            index = k.thread + first
            k.store(tile.at(0) + index * 4, k.load(u32, k.address(addresses[name], index, 4)))
    product = k.tile_product(tiles["a"], tiles["b"])
    base = k.address(addresses["c"], product.row * columns + product.column, 4)
    for value, (row, column) in zip(product.values, product.places):
        k.store(base, value, offset=4 * (row * columns + column))
    return k.finish({})


@pytest.mark.parametrize("order", SCHEDULES)
@pytest.mark.parametrize("rows, columns", [(64, 64), (64, 128)])
@pytest.mark.parametrize("target", TARGETS)
def test_a_tile(target: str, rows: int, columns: int, order: str) -> None:
    dtype = TARGETS[target].float8.dtype
    a, b = random_codes(rows, DEPTH, dtype, 1), random_codes(columns, DEPTH, dtype, 2)
    c = multiplied(tile_program(TARGETS[target], rows, columns), a, b, order, seed=5)
    assert c.tobytes() == expected(target, a, b).tobytes()


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_assembles(target: str) -> None:
    assert assembled(tile_program(TARGETS[target], 64, 64)) > 1000


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_without_its_waits(target: str) -> None:
    program = tile_program(TARGETS[target], 64, 64)
    a = b = np.zeros((64, DEPTH), TARGETS[target].float8.dtype)
    for number in reversed([n for n, _ in enumerate(filter(is_wait, program.instructions()))]):
        program = changed(program, number, lambda instruction: None)
    with pytest.raises(EmulationError, match="no s_waitcnt lgkmcnt"):
        multiplied(program, a, b, "early")


def test_a_tile_that_does_not_fit_is_refused() -> None:
    k = Builder("tile", GFX942)
    with pytest.raises(ValueError, match=r"a is small.*rows a multiple of 64"):
        tile_product(k, k.tile("small", 32), k.tile("b", 64))
