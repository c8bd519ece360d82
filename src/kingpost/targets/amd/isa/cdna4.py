"""Matrix instructions that gfx950 adds: operands of 8, 6 or 4 bits, with or without E8M0 scales for each 32 of K.

The bits of their results are not asserted: see `kingpost.targets.amd.arithmetic`.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from kingpost.program import Instruction, Operand, Operation, f32, operation, u32
from kingpost.targets.amd.arithmetic import rounded_once
from kingpost.targets.amd.isa.cdna3 import CYCLES_PER_PASS, accumulator, matrix_text, want_accumulators
from kingpost.targets.amd.isa.layouts import (
    block_scales,
    contiguous_operand,
    halved_operand,
    lane_bytes,
    result_registers,
)
from kingpost.targets.amd.isa.registers import want, want_range, want_target
from kingpost.targets.amd.units.wait_states import WaitStates

FORMATS = {  # what cbsz (for A) and blgp (for B) select: the numpy type and its bits
    0: (ml_dtypes.float8_e4m3fn, 8),
    1: (ml_dtypes.float8_e5m2, 8),
    2: (ml_dtypes.float6_e2m3fn, 6),
    3: (ml_dtypes.float6_e3m2fn, 6),
    4: (ml_dtypes.float4_e2m1fn, 4),
}
BLOCK = 32  # elements of K under one scale, and elements of an operand in a lane
_UNSCALED = np.full(64, 127, np.uint8)


def _passes(side: int, cbsz: int, blgp: int) -> int:
    wide = FORMATS[cbsz][1] == 8 or FORMATS[blgp][1] == 8
    return (8 if side == 16 else 16) // (1 if wide else 2)


def _check(name: str, side: int, operands: tuple[Operand, ...], into: Any, cbsz: int, blgp: int) -> None:
    want_target(name, operands[:2], ("gfx950",))
    for letter, field, code, operand in (("A", "cbsz", cbsz, operands[0]), ("B", "blgp", blgp, operands[1])):
        if code not in FORMATS:
            raise ValueError(f"{name}: {field} is {code}; 0 e4m3, 1 e5m2, 2 e2m3, 3 e3m2 or 4 e2m1 is wanted")
        want(f"{name}: {letter}", operand, FORMATS[code][1])  # 32 elements of n bits: n registers
    want_accumulators(name, operands[2], into, side * side // 64)


def _formats_text(instruction: Instruction) -> str:
    chosen = [f"{field}:{instruction.fields[field]}" for field in ("cbsz", "blgp") if instruction.fields[field]]
    return "".join(f" {each}" for each in chosen)


def _uses(side: int) -> Any:
    def uses(instruction: Instruction) -> dict[str, float]:
        passes = _passes(side, instruction.fields["cbsz"], instruction.fields["blgp"])
        return {"issue": 1.0, "tensor cycles": float(CYCLES_PER_PASS * passes)}

    return uses


def _elements(registers: np.ndarray, rows: int, code: int) -> np.ndarray:
    """An operand's values, float64 [rows, K], from its registers [bits, 64]."""
    dtype, bits = FORMATS[code]
    codes = lane_bytes(registers)
    if bits == 8:
        return halved_operand(codes, rows).view(dtype).astype(np.float64)
    stream = np.unpackbits(codes, axis=1, bitorder="little").reshape(64, BLOCK, bits)
    small = np.packbits(stream, axis=2, bitorder="little")[..., 0]
    return contiguous_operand(small.view(dtype), rows).astype(np.float64)


def _scaled(values: np.ndarray, codes: np.ndarray, rows: int) -> np.ndarray:
    """Values [rows, K] times 2^(code - 127) of their row's 32-block; code 255 is NaN."""
    scales = np.where(codes == 255, np.nan, np.ldexp(1.0, codes.astype(int) - 127))
    return values * np.repeat(block_scales(scales, rows), BLOCK, axis=1)


def _product(
    warp: Any,
    side: int,
    a: Any,
    b: Any,
    c: Any,
    cbsz: int,
    blgp: int,
    scale_a: Any = _UNSCALED,
    scale_b: Any = _UNSCALED,
) -> Any:
    rows_a, rows_b = _elements(a, side, cbsz), _elements(b, side, blgp)
    warp.block.unit(WaitStates).product(warp, _passes(side, cbsz, blgp))
    scaled = _scaled(rows_a, scale_a, side), _scaled(rows_b, scale_b, side)
    return result_registers(rounded_once(scaled[0], scaled[1], accumulator(c, side)))


def _plain(name: str, side: int) -> Operation:
    def check(a: Operand, b: Operand, c: Operand, *, into: Any, cbsz: int, blgp: int) -> None:
        _check(name, side, (a, b, c), into, cbsz, blgp)

    @operation(
        lambda instruction, names: matrix_text(instruction, names) + _formats_text(instruction),
        name=name,
        reads={"a": u32, "b": u32, "c": f32},
        writes={"d": f32},
        converged=True,
        check=check,
        uses=_uses(side),
    )
    def product(warp: Any, a: Any, b: Any, c: Any, *, cbsz: int = 0, blgp: int = 0) -> Any:
        return _product(warp, side, a, b, c, cbsz, blgp)

    return product


def _scaling(name: str, side: int) -> Operation:
    def check(
        a: Operand,
        b: Operand,
        c: Operand,
        scale_a: Operand,
        scale_b: Operand,
        *,
        into: Any,
        cbsz: int,
        blgp: int,
        byte_a: int,
        byte_b: int,
    ) -> None:
        _check(name, side, (a, b, c), into, cbsz, blgp)
        for letter, scale, byte in (("A", scale_a, byte_a), ("B", scale_b, byte_b)):
            # the chip reads the exponent bits, 30:23, of a constant or scalar register: LLVM refuses both
            want(f"{name}: scale of {letter}", scale, 1, files="v")
            want_range(f"{name}: scale byte of {letter}", byte, 3)

    def text(instruction: Instruction, names: Any) -> str:
        fields, (scale_a, scale_b) = instruction.fields, instruction.reads[3:]
        bytes = fields["byte_a"], fields["byte_b"]
        low, high = [byte & 1 for byte in bytes], [byte >> 1 for byte in bytes]
        # op_sel_hi defaults to ones, so it is always written
        selected = f"op_sel:[{low[0]},{low[1]},0] op_sel_hi:[{high[0]},{high[1]},0]"
        scales = f"{_vector(names(scale_a), name)}, {_vector(names(scale_b), name)}"
        return f"{matrix_text(instruction, names)}, {scales} {selected}{_formats_text(instruction)}"

    @operation(
        text,
        name=name,
        reads={"a": u32, "b": u32, "c": f32, "scale_a": u32, "scale_b": u32},
        writes={"d": f32},
        converged=True,
        check=check,
        uses=_uses(side),
    )
    def product(
        warp: Any,
        a: Any,
        b: Any,
        c: Any,
        scale_a: Any,
        scale_b: Any,
        *,
        cbsz: int = 0,
        blgp: int = 0,
        byte_a: int = 0,
        byte_b: int = 0,
    ) -> Any:
        """d = c + the sum over 32-blocks j of K of 2^(scale_a + scale_b - 254) * (the block's dot product).

        Lane l's byte `byte_a` of scale_a is the scale of row l % side of A in block l / side; B likewise.
        """
        codes = [
            (scale >> np.uint32(8 * byte)).astype(np.uint8) for scale, byte in ((scale_a, byte_a), (scale_b, byte_b))
        ]
        return _product(warp, side, a, b, c, cbsz, blgp, codes[0], codes[1])

    return product


def _vector(register: str, name: str) -> str:
    """A scale's register, once allocated."""
    if not register.startswith("v"):
        raise ValueError(f"{name}: a scale lies in {register}; a vector register is wanted")
    return register


v_mfma_f32_16x16x128_f8f6f4 = _plain("v_mfma_f32_16x16x128_f8f6f4", 16)
v_mfma_f32_32x32x64_f8f6f4 = _plain("v_mfma_f32_32x32x64_f8f6f4", 32)
v_mfma_scale_f32_16x16x128_f8f6f4 = _scaling("v_mfma_scale_f32_16x16x128_f8f6f4", 16)
v_mfma_scale_f32_32x32x64_f8f6f4 = _scaling("v_mfma_scale_f32_32x32x64_f8f6f4", 32)
