"""C[32, 32] = A[32, K] B[32, K]^T in FNUZ e4m3 by one wave of gfx942: registers, waits and wait states by hand.

A and B are row-major, K a multiple of 16 and at least 16; C is float32, row-major. Every lane holds 8 bytes of a row of
each operand for a product of 16 of K, straight from global memory. There are two such sets of registers: while one is
multiplied, the other is on its way. K is added in ascending order, 16 at a time, as the arithmetic model says.
"""

from __future__ import annotations

from kingpost.program import Builder, Register, Registers, f32, kernel, u32, u64
from kingpost.targets.amd.isa.cdna3 import v_mfma_f32_32x32x16_fp8_fp8
from kingpost.targets.amd.isa.common import global_load_dwordx2, global_store_dword, s_nop, s_setprio, s_waitcnt
from kingpost.targets.amd.isa.layouts import result_places
from kingpost.targets.amd.targets import GFX942

SIDE, STEP = 32, 16  # rows of either operand, and what one product takes of K
LOADS = 2  # of one step: A and B
RESULT_WAIT_STATES = 11  # from the last product (8 passes) to the first use of what it gives


class _Operands:
    """One step's A and B in registers."""

    def __init__(self, k: Builder, a: str, b: str) -> None:
        self.a, self.b = k.array(u32, 2, "a", place=a), k.array(u32, 2, "b", place=b)

    def load(self, rows_a: Register, rows_b: Register, step: Register, at_a: Registers, at_b: Registers) -> None:
        k = self.a.builder
        k.emit_portable("mad_wide", step, STEP, rows_a, into=at_a)
        k.emit_portable("mad_wide", step, STEP, rows_b, into=at_b)
        global_load_dwordx2(k, at_a, into=self.a)
        global_load_dwordx2(k, at_b, into=self.b)

    def multiply(self, total: Registers) -> None:
        v_mfma_f32_32x32x16_fp8_fp8(self.a.builder, self.a, self.b, total, into=total)


@kernel(target=GFX942)
def cdna3_fp8_one_wave(k: Builder) -> None:
    a, b, c, depth = k.parameter("a", u64), k.parameter("b", u64), k.parameter("c", u64), k.parameter("k")

    total = k.array(f32, 16, "total", place="v[32:47]")
    even, odd = _Operands(k, "v[16:17]", "v[18:19]"), _Operands(k, "v[20:21]", "v[22:23]")
    at_a, at_b = (k.array(u64, 1, name, place=place) for name, place in (("at_a", "v[24:25]"), ("at_b", "v[26:27]")))
    row, half = k.lane % SIDE, k.lane // SIDE
    own = k.fused_multiply_add(row, depth, half * 8)  # a lane's bytes: its row, its half of the 16 of K
    rows_a, rows_b = k.address(a, own), k.address(b, own)

    results = k.address(c, half * (4 * SIDE) + row, 4)
    steps = depth // STEP
    last = steps - 1
    k.set(total, 0.0)
    even.load(rows_a, rows_b, k.new(u32, 0), at_a, at_b)
    s_setprio(k, priority=1)
    with k.loop(steps, step=2) as step:
        # past the end the last step is loaded once more, so that every wait counts the same loads
        following = step + 1
        odd.load(rows_a, rows_b, k.minimum(following, last), at_a, at_b)
        s_waitcnt(k, vmcnt=LOADS)
        even.multiply(total)
        even.load(rows_a, rows_b, k.minimum(step + 2, last), at_a, at_b)
        s_waitcnt(k, vmcnt=LOADS)
        with k.when(following < steps):
            odd.multiply(total)
    s_setprio(k, priority=0)
    s_nop(k, count=RESULT_WAIT_STATES - 2)  # s_setprio is one wait state, s_nop one more than its count
    for register, (below, beside) in zip(total, result_places(SIDE)):
        global_store_dword(k, results, register, offset=4 * (SIDE * below + beside))
