"""The portable tile product on CDNA: each of four waves multiplies one 32 x 32 quarter of every 64 x 64 of the tile."""

from __future__ import annotations

from kingpost.program import Builder, Fragment, Register, Registers, SharedArray, f32, u32
from kingpost.targets.amd.isa.cdna3 import v_mfma_f32_32x32x16_fp8_fp8
from kingpost.targets.amd.isa.cdna4 import v_mfma_f32_32x32x64_f8f6f4
from kingpost.targets.amd.isa.common import ds_read_b64, ds_read_b128, s_waitcnt
from kingpost.targets.amd.isa.layouts import result_places

WARPS = 4
DEPTH, SIDE = 128, 32  # of K, and rows of one instruction's operands
SQUARE = 2 * SIDE  # what the four waves cover together
RESULT = SIDE * SIDE // 64  # registers of one instruction's result


def tile_product(k: Builder, a: SharedArray, b: SharedArray) -> Fragment:
    """See `kingpost.program.Target`. Rows and columns are multiples of 64; K is added in ascending order."""
    for name, array in (("a", a), ("b", b)):
        if len(array.shape) != 2 or array.shape[0] % SQUARE or array.shape[1] != DEPTH or array.swizzle:
            raise ValueError(
                f"{name} is {array!r}; [rows, {DEPTH}] without a swizzle, rows a multiple of {SQUARE}, is wanted"
            )
    k.barrier()  # portable writes are waited for before it

    row, half = k.lane % SIDE, k.lane // SIDE
    warp_row, warp_column = k.warp // 2 * SIDE, k.warp % 2 * SIDE
    operands_a = [_read(k, a, warp_row + row, half, start) for start in range(0, a.shape[0], SQUARE)]
    operands_b = [_read(k, b, warp_column + row, half, start) for start in range(0, b.shape[0], SQUARE)]
    s_waitcnt(k, lgkmcnt=0)
    k.barrier()

    values = k.array(f32, RESULT * len(operands_a) * len(operands_b), "product")
    places: list[tuple[int, int]] = []
    for i, operand_a in enumerate(operands_a):
        for j, operand_b in enumerate(operands_b):
            _multiply(k, operand_a, operand_b, values[len(places) : len(places) + RESULT])
            places += [(SQUARE * i + below, SQUARE * j + beside) for below, beside in result_places(SIDE)]
    return Fragment(values, warp_row + half * 4, warp_column + row, tuple(places))


def _read(k: Builder, array: SharedArray, row: Register, half: Register, start: int) -> list[Registers]:
    """A lane's share of 32 rows of an operand, from row `start` + `row`: the registers of each instruction along K."""
    widest = 8 if k.target.name == "gfx942" else 16  # bytes that lie together, of each half of the lanes
    at = k.fused_multiply_add(row, DEPTH, array.at(start)) + half * widest
    operands = []
    for step in range(0, DEPTH, 16 if widest == 8 else 64):
        operand = k.array(u32, widest // 4 if widest == 8 else 8, array.name)
        if widest == 8:
            ds_read_b64(k, at, into=operand, offset=step)
        else:
            ds_read_b128(k, at, into=operand[0:4], offset=step)
            ds_read_b128(k, at, into=operand[4:8], offset=step + 32)
        operands.append(operand)
    return operands


def _multiply(k: Builder, a: list[Registers], b: list[Registers], into: Registers) -> None:
    product = v_mfma_f32_32x32x16_fp8_fp8 if k.target.name == "gfx942" else v_mfma_f32_32x32x64_f8f6f4
    for step, (operand_a, operand_b) in enumerate(zip(a, b)):
        product(k, operand_a, operand_b, into if step else 0, into=into)
