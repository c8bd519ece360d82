"""Small portable programs, run twice: by the emulator, and as AMDGCN text by the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kingpost import emulate
from kingpost.arrays import view
from kingpost.program import Builder, Launch, Program, Target, Type, f32, pred, s32, u32, u64
from kingpost.program.operations import PORTABLE
from kingpost.targets.amd.amdgcn import amdgcn, argument_places

from .interpreter import run

LANES = 64


def launch(
    target: Target,
    body: Callable[..., None],
    *,
    grid: int = 1,
    warps: int = 1,
    scalars: dict[str, Any] | None = None,
    **arrays: np.ndarray,
) -> Launch:
    """`body(k, ...)` with the address of each array and each scalar (numpy, of u32, u64 or f32)."""
    k = Builder(body.__name__.strip("<>"), target)
    types = {np.dtype(t.dtype): t for t in (u32, u64, f32)}
    scalars = scalars or {}
    given = {name: k.parameter(name, u64) for name in arrays}
    given |= {name: k.parameter(name, types[np.asarray(value).dtype]) for name, value in scalars.items()}
    if warps > 1:
        k.warps(warps)
    body(k, **given)
    views = {name: view(array) for name, array in arrays.items()}
    arguments: dict[str, Any] = {name: each.pointer for name, each in views.items()}
    arguments |= {name: value.item() for name, value in scalars.items()}
    return Launch(k.finish({}), grid, arguments, tuple(views.values()))


def interpret(whole: Launch, text: str | None = None) -> None:
    """A launch's text (or another) on the launch's own arrays."""
    program = whole.program
    arguments = {p.name: p.type.dtype.type(whole.arguments[p.name]) for p in program.parameters}  # type: ignore[union-attr]
    arrays = [each.numpy() for each in whole.views]
    run(text or amdgcn(program), arguments, argument_places(program), whole.grid, program.warps, arrays)


def both(target: Target, body: Callable[..., None], d: np.ndarray, **given: Any) -> tuple[np.ndarray, np.ndarray]:
    """What the emulator and what the interpreter leave in `d`."""
    emulated, interpreted = d.copy(), d.copy()
    emulate.run(launch(target, body, d=emulated, **given))
    interpret(launch(target, body, d=interpreted, **given))
    return emulated, interpreted


# Every portable operation

PURE = [operation for operation in PORTABLE.values() if operation.pure]
SPECIAL: dict[Type, list[Any]] = {
    u32: [0, 1, 2, 5, 31, 32, 33, 63, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
    u64: [0, 1, 31, 64, 2**32 - 1, 2**32, 2**63, 2**64 - 1],
    f32: [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1e-45,
        -1e-45,
        1.1754944e-38,
        3.4028235e38,
        np.inf,
        -np.inf,
        np.nan,
        -np.nan,
        0.1,
        250.0,
    ],
}


def values(type: Type, seed: int, count: int) -> np.ndarray:
    """[count] of a type: pairs of what is special, as far as they fit in half, and random bits."""
    random = np.random.default_rng(seed)
    some = random.integers(0, 2**type.bits, count, f"u{type.bits // 8}", endpoint=False).view(type.dtype)
    special = np.array(SPECIAL[type], type.dtype)
    pairs = [x.ravel() for x in np.meshgrid(special, special)][seed % 2][: count * 3 // 4]
    some[: len(pairs)] = pairs
    return some


def use(k: Builder, operation: Any, operand: Callable[[Type, int], Any]) -> Any:
    """The operation on operands of its types, as a register that can be stored."""

    def made(type: Type, i: int) -> Any:
        if type is s32:
            return k.convert(s32, operand(f32, i))
        return operand(u32, i) < 1 << 31 if type is pred else operand(type, i)

    operands = [made(operation.reads.get(name, f32), i) for i, name in enumerate(operation.operands)]
    if operation.name.startswith(("div.u", "rem")):  # by zero, chips give what they like
        operands[1] = operands[1] | 1
    fields = {"format": k.target.float8, "index": 2}
    result = operation(k, *operands, **{f: fields[f] for f in operation.fields})
    if result.type is s32:
        return k.convert(f32, result)
    return k.select(result, 1, 0, into=k.new(u32)) if result.type is pred else result


def everything(target: Target) -> Program:
    """A program that uses every portable operation on every type it exists for, and stores what each gave."""
    k = Builder("everything", target)
    at = k.parameter("at", u64)
    words = k.shared("words", (1024,), target.float8)
    place = k.fused_multiply_add(k.lane, 16, words.at(0))
    k.store(at, k.thread + k.block + k.grid)
    inputs = {type: [k.load(type, at, offset=8 * i) for i in range(4)] for type in (u32, u64, f32)}
    used = {operation for operation in PURE if k.store(at, use(k, operation, lambda t, i: inputs[t][i])) is None}
    for (name, type), operation in PORTABLE.items():
        if operation in used or name == "parameter":
            continue
        if name == "shuffle_xor":
            for mask in (5, 32):
                k.store(at, operation(k, inputs[type][0], mask=mask))
            continue
        address = at if "global" in name else place
        count = int(name[-1]) if name[-2:] in ("x2", "x4") else 1
        into = k.array(type, count)
        if name.startswith("load"):
            operation(k, address, offset=16, into=into)
            k.store(at, into[count - 1])
        else:
            k.set(into, inputs[type][1])
            operation(k, address, into, offset=16)
    k.barrier()
    return k.finish({})
