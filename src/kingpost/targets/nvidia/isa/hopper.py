"""Instructions of sm_90a: the wgmma family, once for every N, format and major."""

from __future__ import annotations

from typing import Any

from kingpost.emulate import ASYNCHRONOUS
from kingpost.formats import BF16, E4M3, E5M2, Format
from kingpost.program import Instruction, Operand, Registers, f32, operation, u32, u64
from kingpost.targets.nvidia.isa.operands import LARGEST, single, want_matrix, want_range
from kingpost.targets.nvidia.units.wgmma_queue import Product, WgmmaQueues

_SWIZZLE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}


_MAJORS = {"k": 0, "mn": 1}  # as the instruction's transpose bits


def _descriptor_text(instruction: Instruction, name: Any) -> str:
    fields = instruction.fields
    low = (fields["offset"] >> 4) + (fields["leading"] >> 4 << 16)
    high = _SWIZZLE_CODES[fields["swizzle"]] << 30 | fields["stride"] >> 4
    (address,), (d,) = instruction.reads, instruction.writes
    return (
        f"{{ .reg .b32 low; shr.u32 low, {name(address)}, 4; add.u32 low, low, {low}; "
        f"mov.b64 {name(d)}, {{low, {high:#x}}}; }}"
    )


def _check_descriptor(address: Operand, *, into: Any, offset: int, stride: int, swizzle: int, leading: int) -> None:
    single("matrix_descriptor", "address")(address, into=into)
    want_matrix("matrix_descriptor", swizzle, offset=offset, stride=stride, leading=leading)


@operation(
    _descriptor_text,
    name="matrix_descriptor",
    reads={"address": u32},
    writes={"d": u64},
    check=_check_descriptor,
    uses={"issue": 2.0},
)
def matrix_descriptor(
    warp: Any, address: Any, *, offset: int = 0, stride: int = 1024, swizzle: int = 128, leading: int = 0
) -> Any:
    """The descriptor of a matrix in shared memory at `address` + `offset`. All in bytes, multiples of 16.

    K-major, swizzled: rows of M or N, each `swizzle` bytes of K. stride: from one group of 8 rows to the next (8 *
    swizzle where they follow each other). leading: unused. The next step of K is 32 bytes on.

    MN-major, swizzled: rows of K, each `swizzle` bytes of M or N: with 128, tiles [k rows][64 bfloat16]. stride: from
    one group of 8 rows of K to the next. leading: from one tile's `swizzle` bytes of M or N to those of the next tile;
    unused where one tile holds all of M or N. The next step of K is 16 rows, two strides, on.

    Without a swizzle see `units.wgmma_queue.operand_addresses`, where the fields are.
    """
    high = _SWIZZLE_CODES[swizzle] << 62 | stride >> 4 << 32 | leading >> 4 << 16
    return warp.broadcast((address >> 4) + (offset >> 4)).astype("uint64") | u64.dtype.type(high)


@operation("wgmma.fence.sync.aligned;", converged=True)
def wgmma_fence(warp: Any) -> None:
    """Order this warpgroup's register accesses before the products that follow."""


def _check_wgmma(
    a: Any,
    b: Any,
    into: Any,
    *,
    n: int,
    accumulate: bool,
    a_format: Format,
    b_format: Format,
    a_major: str,
    b_major: str,
) -> None:
    single("wgmma", "a", "b")(a, b, into=None)
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"wgmma: n is {n}; a multiple of 8 from 8 to 256 is wanted")
    if not isinstance(into, Registers) or len(into) != n // 2 or len(set(into.indices)) != n // 2:
        raise ValueError(f"wgmma: into is {into!r}; {n // 2} float32 registers, the accumulator of n = {n}, are wanted")
    for name, format in (("a_format", a_format), ("b_format", b_format)):
        if format not in (E4M3, E5M2, BF16):
            raise ValueError(f"wgmma: {name} is {format.name}; e4m3, e5m2 or bfloat16 is wanted")
    if a_format.bits != b_format.bits:
        raise ValueError(f"wgmma: formats are {a_format.name} and {b_format.name}; two of the same width are wanted")
    for name, major in (("a_major", a_major), ("b_major", b_major)):
        allowed = ("k", "mn") if a_format is BF16 else ("k",)
        if major not in allowed:
            raise ValueError(f"wgmma: {name} is {major!r}; {' or '.join(allowed)} is wanted for {a_format.name}")


def _wgmma_text(instruction: Instruction, name: Any) -> str:
    fields, (a, b), (d,) = instruction.fields, instruction.reads, instruction.writes
    if fields["a_format"] is BF16:
        kind = f"m64n{fields['n']}k16.f32.bf16.bf16"
        majors = f", {_MAJORS[fields['a_major']]}, {_MAJORS[fields['b_major']]}"
    else:
        kind, majors = f"m64n{fields['n']}k32.f32.{fields['a_format'].name}.{fields['b_format'].name}", ""
    return (
        f"{{ .reg .pred accumulate; setp.ne.b32 accumulate, {int(fields['accumulate'])}, 0; "
        f"wgmma.mma_async.sync.aligned.{kind} {name.vector(d)}, {name(a)}, {name(b)}, accumulate, 1, 1{majors}; }}"
    )


def _wgmma_uses(instruction: Instruction) -> dict[str, float]:
    n = instruction.fields["n"]  # 64 x n x 32 products of fp8 at 4,096 a cycle, of bfloat16 half of each, by four warps
    return {"issue": 1.0, "tensor cycles": n / 2 / 4, "tensor shared bytes": (64 + n) * 32 / 4}


@operation(
    _wgmma_text,
    name="wgmma.mma_async",
    reads={"a": u64, "b": u64},
    writes={"d": f32},
    converged=True,
    check=_check_wgmma,
    uses=_wgmma_uses,
)
def wgmma(
    warp: Any,
    a: Any,
    b: Any,
    *,
    n: int,
    accumulate: bool,
    a_format: Format = E4M3,
    b_format: Format = E4M3,
    a_major: str = "k",
    b_major: str = "k",
) -> Any:
    """d[64, n] = a[64, step] b[n, step]^T, plus d if `accumulate`: one step of 32 bytes of K into float32.

    a, b: matrix descriptors. Formats: E4M3 and E5M2, any two, 32 a step, K-major; or BF16, 16 a step, each operand
    "k"- or "mn"-major. The warpgroup's registers d stay locked until `wgmma_wait`.
    Arithmetic: `kingpost.targets.nvidia.arithmetic.wgmma_f32`.
    """
    product = Product(n, _uniform(warp, a), _uniform(warp, b), accumulate, a_format, b_format, a_major, b_major)
    warp.block.unit(WgmmaQueues).issue(warp, product, warp.instruction.writes[0])
    return ASYNCHRONOUS


def _uniform(warp: Any, descriptor: Any) -> int:
    if not (descriptor == descriptor[0]).all():
        warp.fail("divergence", "wgmma with descriptors that differ between lanes")
    return int(descriptor[0])


@operation("wgmma.commit_group.sync.aligned;", converged=True)
def wgmma_commit(warp: Any) -> None:
    warp.block.unit(WgmmaQueues).commit(warp)


def _check_wait(*, into: Any, groups: int) -> None:
    want_range("wgmma.wait_group", "groups", groups, 0, LARGEST)


@operation("wgmma.wait_group.sync.aligned {groups};", name="wgmma.wait_group", converged=True, check=_check_wait)
def wgmma_wait(warp: Any, *, groups: int) -> Any:
    """Wait until at most `groups` of this warp's newest groups of products are in flight."""
    return warp.block.unit(WgmmaQueues).wait(warp, groups)
