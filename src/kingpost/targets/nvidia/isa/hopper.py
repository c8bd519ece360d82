"""Instructions of sm_90a: the wgmma family, once for every N."""

from __future__ import annotations

from typing import Any

from kingpost.emulate import ASYNCHRONOUS
from kingpost.formats import E4M3, E5M2, Format
from kingpost.program import Instruction, Registers, f32, operation, u64
from kingpost.targets.nvidia.units.wgmma_queue import Product, WgmmaQueues

_SWIZZLE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}


def _descriptor_text(instruction: Instruction, name: Any) -> str:
    fields = instruction.fields
    high = _SWIZZLE_CODES[fields["swizzle"]] << 30 | fields["stride"] >> 4
    (address,), (d,) = instruction.reads, instruction.writes
    return (
        f"{{ .reg .b32 low; shr.u32 low, {name(address)}, 4; add.u32 low, low, {fields['offset'] >> 4}; "
        f"mov.b64 {name(d)}, {{low, {high:#x}}}; }}"
    )


@operation(_descriptor_text, name="matrix_descriptor", writes={"d": u64}, uses={"issue": 2.0})
def matrix_descriptor(warp: Any, address: Any, *, offset: int = 0, stride: int = 1024, swizzle: int = 128) -> Any:
    """The descriptor of a K-major matrix in shared memory at `address` + `offset` (bytes).

    stride: bytes from one group of 8 rows to the next. Fields: see `operand_addresses`.
    """
    high = _SWIZZLE_CODES[swizzle] << 62 | stride >> 4 << 32
    return warp.broadcast((address >> 4) + (offset >> 4)).astype("uint64") | u64.dtype.type(high)


@operation("wgmma.fence.sync.aligned;", converged=True)
def wgmma_fence(warp: Any) -> None:
    """Order this warpgroup's register accesses before the products that follow."""


def _check_wgmma(a: Any, b: Any, into: Any, *, n: int, accumulate: bool, a_format: Format, b_format: Format) -> None:
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"wgmma: n is {n}; a multiple of 8 from 8 to 256 is wanted")
    if not isinstance(into, Registers) or len(into) != n // 2 or len(set(into.indices)) != n // 2:
        raise ValueError(f"wgmma: into is {into!r}; {n // 2} float32 registers, the accumulator of n = {n}, are wanted")
    for name, format in (("a_format", a_format), ("b_format", b_format)):
        if format not in (E4M3, E5M2):
            raise ValueError(f"wgmma: {name} is {format.name}; e4m3 or e5m2 is wanted")


def _wgmma_text(instruction: Instruction, name: Any) -> str:
    fields, (a, b), (d,) = instruction.fields, instruction.reads, instruction.writes
    kind = f"m64n{fields['n']}k32.f32.{fields['a_format'].name}.{fields['b_format'].name}"
    return (
        f"{{ .reg .pred accumulate; setp.ne.b32 accumulate, {int(fields['accumulate'])}, 0; "
        f"wgmma.mma_async.sync.aligned.{kind} {name.vector(d)}, {name(a)}, {name(b)}, accumulate, 1, 1; }}"
    )


def _wgmma_uses(instruction: Instruction) -> dict[str, float]:
    n = instruction.fields["n"]  # 64 x n x 32 products at 4,096 a cycle, shared by the four warps
    return {"issue": 1.0, "tensor cycles": n / 2 / 4, "tensor shared bytes": (64 + n) * 32 / 4}


@operation(_wgmma_text, name="wgmma.mma_async", writes={"d": f32}, converged=True, check=_check_wgmma, uses=_wgmma_uses)
def wgmma(
    warp: Any, a: Any, b: Any, *, n: int, accumulate: bool, a_format: Format = E4M3, b_format: Format = E4M3
) -> Any:
    """d[64, n] = a[64, 32] b[n, 32]^T, plus d if `accumulate`: one k32 step of fp8 products into float32.

    a, b: matrix descriptors, K-major. The warpgroup's registers d stay locked until `wgmma_wait`.
    Arithmetic: `kingpost.targets.nvidia.arithmetic.wgmma_f32`.
    """
    product = Product(n, _uniform(warp, a), _uniform(warp, b), accumulate, a_format, b_format)
    warp.block.unit(WgmmaQueues).issue(warp, product, warp.instruction.writes[0])
    return ASYNCHRONOUS


def _uniform(warp: Any, descriptor: Any) -> int:
    if not (descriptor == descriptor[0]).all():
        warp.fail("divergence", "wgmma with descriptors that differ between lanes")
    return int(descriptor[0])


@operation("wgmma.commit_group.sync.aligned;", converged=True)
def wgmma_commit(warp: Any) -> None:
    warp.block.unit(WgmmaQueues).commit(warp)


@operation("wgmma.wait_group.sync.aligned {groups};", name="wgmma.wait_group", converged=True)
def wgmma_wait(warp: Any, *, groups: int) -> Any:
    """Wait until at most `groups` of this warp's newest groups of products are in flight."""
    return warp.block.unit(WgmmaQueues).wait(warp, groups)
