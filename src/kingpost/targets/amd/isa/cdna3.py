"""Matrix instructions of gfx942, which gfx950 has too: D = A B + C by one wave, float32 accumulators."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost.formats import E4M3, E4M3FNUZ
from kingpost.program import Instruction, Operand, Operation, Registers, f32, operation, u32
from kingpost.targets.amd.arithmetic import matrix_product
from kingpost.targets.amd.isa.layouts import contiguous_operand, lane_bytes, result_matrix, result_registers
from kingpost.targets.amd.isa.registers import place, want, want_target
from kingpost.targets.amd.units.wait_states import WaitStates

CYCLES_PER_PASS = 4


def matrix_text(instruction: Instruction, names: Any) -> str:
    """`name d, a, b, c`, with the inline constant 0 for an accumulator that starts there."""
    (a, b, c), (d,) = instruction.reads[:3], instruction.writes
    start = names(c) if isinstance(c, Registers) else "0"
    return f"{instruction.operation.name} {names(d)}, {names(a)}, {names(b)}, {start}"


def want_accumulators(name: str, c: Operand, into: Operand | None, count: int) -> None:
    """C and D of a matrix instruction: the same registers, or apart; of one file; or C the constant 0."""
    want(f"{name}: D", into, count)
    assert isinstance(into, Registers)
    if not isinstance(c, Registers):
        if c != 0:
            raise ValueError(f"{name}: C is {c!r}; registers or the constant 0 are wanted")
        return
    want(f"{name}: C", c, count)
    starts = [place(each) or ("v", each.indices[0]) for each in (c, into)]  # those that we place are vector registers
    if starts[0][0] != starts[1][0]:
        raise ValueError(f"{name}: C lies in file {starts[0][0]}, D in {starts[1][0]}; one file is wanted")
    one_space = c.storage is into.storage or (place(c) is not None and place(into) is not None)
    if one_space and 0 < abs(starts[0][1] - starts[1][1]) < count:
        raise ValueError(f"{name}: C is {c!r}, D {into!r}; the same registers, or none in common, are wanted")


def accumulator(c: Any, side: int) -> np.ndarray:
    """C as a matrix, from its registers or the constant 0."""
    return result_matrix(c) if np.ndim(c) else np.zeros((side, side), np.float32)


def _float8(name: str, side: int, passes: int) -> Operation:
    def check(a: Operand, b: Operand, c: Operand, *, into: Any) -> None:
        want_target(name, (a, b), ("gfx942", "gfx950"))
        want(f"{name}: A", a, 2)
        want(f"{name}: B", b, 2)
        want_accumulators(name, c, into, side * side // 64)

    @operation(
        matrix_text,
        name=name,
        reads={"a": u32, "b": u32, "c": f32},
        writes={"d": f32},
        converged=True,
        check=check,
        uses={"issue": 1.0, "tensor cycles": float(CYCLES_PER_PASS * passes)},
    )
    def product(warp: Any, a: Any, b: Any, c: Any) -> Any:
        """d[m, n] = sum of a[m, k] b[n, k] over K = 512 / side, plus c; e4m3 as the chip has it (gfx942: FNUZ)."""
        target = warp.block.program.target
        dtype = (E4M3FNUZ if target == "gfx942" else E4M3).dtype
        rows = [contiguous_operand(lane_bytes(x), side).view(dtype) for x in (a, b)]
        warp.block.unit(WaitStates).product(warp, passes)
        return result_registers(matrix_product(target, rows[0], rows[1], accumulator(c, side)))

    return product


v_mfma_f32_16x16x32_fp8_fp8 = _float8("v_mfma_f32_16x16x32_fp8_fp8", side=16, passes=4)
v_mfma_f32_32x32x16_fp8_fp8 = _float8("v_mfma_f32_32x32x16_fp8_fp8", side=32, passes=8)


def _check_half(a: Operand, b: Operand, c: Operand, *, into: Any) -> None:
    name = "v_mfma_f32_32x32x8f16"
    want_target(name, (a, b), ("gfx942", "gfx950"))
    want(f"{name}: A", a, 2)
    want(f"{name}: B", b, 2)
    want_accumulators(name, c, into, 16)


@operation(
    matrix_text,
    name="v_mfma_f32_32x32x8f16",
    reads={"a": u32, "b": u32, "c": f32},
    writes={"d": f32},
    converged=True,
    check=_check_half,
    uses={"issue": 1.0, "tensor cycles": 32.0},
)
def v_mfma_f32_32x32x8f16(warp: Any, a: Any, b: Any, c: Any) -> Any:
    """d[m, n] = sum of a[m, k] b[n, k] over 8 k, plus c: four float16 a lane of each operand."""
    rows = [contiguous_operand(lane_bytes(x).view(np.float16), 32) for x in (a, b)]
    warp.block.unit(WaitStates).product(warp, passes=8)
    return result_registers(matrix_product(warp.block.program.target, rows[0], rows[1], accumulator(c, 32)))
