"""Instructions of sm_90a: the wgmma family, once for every N, format and major."""

from __future__ import annotations

from typing import Any

from kingpost.emulate import ASYNCHRONOUS
from kingpost.formats import BF16, E4M3, E5M2, F16, F32, Format
from kingpost.program import DELETE, Instruction, Registers, f32, operation, u32, u64
from kingpost.program.weakening import exchanged, moved
from kingpost.targets.nvidia.harmless import unused_leading
from kingpost.targets.nvidia.isa.common import CHUNK
from kingpost.targets.nvidia.units.wgmma_queue import Product, Rows, WgmmaQueues

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


@operation(
    _descriptor_text,
    name="matrix_descriptor",
    writes={"d": u64},
    uses={"issue": 2.0},
    decides=(
        *moved("offset", CHUNK),
        *moved("stride", CHUNK),
        *moved("leading", CHUNK, harmless=unused_leading),
        *exchanged("swizzle", _SWIZZLE_CODES),
    ),
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


@operation("wgmma.fence.sync.aligned;", converged=True, decides=(DELETE,))
def wgmma_fence(warp: Any) -> None:
    """Order this warpgroup's register accesses before the products that follow."""
    warp.block.unit(WgmmaQueues).fence(warp)


def _check_wgmma(a: Any, b: Any, *, into: Any, **fields: Any) -> None:
    _check_product(a, into, fields["n"] // 2, "float32", **fields)


def _check_wgmma_f16(a: Any, b: Any, *, into: Any, **fields: Any) -> None:
    if fields["a_format"] is BF16:
        raise ValueError("wgmma: a_format is bfloat16; e4m3, e5m2 or float16 is wanted for float16 accumulators")
    _check_product(a, into, fields["n"] // 4, "packed float16", **fields)


def _check_product(
    a: Any,
    into: Any,
    registers: int,
    kind: str,
    *,
    n: int,
    accumulate: bool,
    a_format: Format,
    b_format: Format,
    a_major: str,
    b_major: str,
) -> None:
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"wgmma: n is {n}; a multiple of 8 from 8 to 256 is wanted")
    if not isinstance(into, Registers) or len(into) != registers or len(set(into.indices)) != registers:
        wanted = f"{registers} {kind} registers, the accumulator of n = {n}"
        raise ValueError(f"wgmma: into is {into!r}; {wanted}, are wanted")
    for name, format in (("a_format", a_format), ("b_format", b_format)):
        if format not in (E4M3, E5M2, BF16, F16):
            raise ValueError(f"wgmma: {name} is {format.name}; e4m3, e5m2, bfloat16 or float16 is wanted")
    if a_format is not b_format and (a_format.bits, b_format.bits) != (8, 8):
        raise ValueError(f"wgmma: formats are {a_format.name} and {b_format.name}; two of fp8 or the same are wanted")
    if _in_registers(a) and (len(a) != 4 or a.type is not u32):
        raise ValueError(f"wgmma: a is {a!r}:{a.type.name}; a descriptor or four u32 registers are wanted")
    for name, major in (("a_major", a_major), ("b_major", b_major)):
        in_registers = name == "a_major" and _in_registers(a)
        allowed = ("k", "mn") if a_format.bits == 16 and not in_registers else ("k",)
        if major not in allowed:
            what = "registers" if in_registers else a_format.name
            raise ValueError(f"wgmma: {name} is {major!r}; {' or '.join(allowed)} is wanted for {what}")


def _in_registers(a: Any) -> bool:
    """Whether operand a is not a descriptor."""
    return isinstance(a, Registers) and a.type is not u64


_NAMES = {BF16: "bf16", F16: "f16", F32: "f32"}


def _wgmma_text(instruction: Instruction, name: Any) -> str:
    fields, (a, b), (d,) = instruction.fields, instruction.reads, instruction.writes
    formats = [fields["a_format"], fields["b_format"]]
    types = ".".join(_NAMES.get(format, format.name) for format in (F32 if d.type is f32 else F16, *formats))
    majors = []
    if formats[0].bits == 16:
        majors = [_MAJORS[fields[major]] for major in ("a_major", "b_major")][_in_registers(a) :]
    a_text = name.vector(a) if _in_registers(a) else name(a)
    return (
        f"{{ .reg .pred accumulate; setp.ne.b32 accumulate, {int(fields['accumulate'])}, 0; "
        f"wgmma.mma_async.sync.aligned.m64n{fields['n']}k{32 // formats[0].itemsize}.{types} "
        f"{', '.join([name.vector(d), a_text, name(b), 'accumulate', '1', '1', *map(str, majors)])}; }}"
    )


def _wgmma_uses(instruction: Instruction) -> dict[str, float]:
    n = instruction.fields["n"]  # 64 x n x 32 products of fp8 at 4,096 a cycle, of 16 bits half of each, by four warps
    rows = n if _in_registers(instruction.reads[0]) else 64 + n
    return {"issue": 1.0, "tensor cycles": n / 2 / 4, "tensor shared bytes": rows * 32 / 4}


@operation(_wgmma_text, name="wgmma.mma_async", writes={"d": f32}, converged=True, check=_check_wgmma, uses=_wgmma_uses)
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

    a, b: matrix descriptors. Formats: E4M3 and E5M2, any two, 32 a step, K-major; or BF16 or F16, both the same, 16 a
    step, each operand "k"- or "mn"-major. a may instead be four u32 registers, K-major: byte i of register r of lane t
    of warp w is row 16 w + t/4 + 8 (r mod 2), byte 16 (r/2) + 4 (t mod 4) + i of the step. The warpgroup's registers a
    and d stay locked until `wgmma_wait`; d alone may take further products before.
    Arithmetic: `kingpost.targets.nvidia.arithmetic.wgmma_step`.
    """
    _issue(warp, a, b, F32, n=n, accumulate=accumulate, a_format=a_format, b_format=b_format,
           a_major=a_major, b_major=b_major)  # fmt: skip
    return ASYNCHRONOUS


@operation(
    _wgmma_text, name="wgmma.mma_async", writes={"d": u32}, converged=True, check=_check_wgmma_f16, uses=_wgmma_uses
)
def wgmma_f16(
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
    """`wgmma` into float16, of any formats but BF16: register i of d holds what registers 2 i (in its low half) and
    2 i + 1 of a float32 accumulator would."""
    _issue(warp, a, b, F16, n=n, accumulate=accumulate, a_format=a_format, b_format=b_format,
           a_major=a_major, b_major=b_major)  # fmt: skip
    return ASYNCHRONOUS


def _issue(warp: Any, a: Any, b: Any, d_format: Format, **fields: Any) -> None:
    registers = warp.instruction.reads[0]
    rows = Rows(registers, a.copy()) if _in_registers(registers) else None
    product = Product(a=_uniform(warp, a) if rows is None else None, b=_uniform(warp, b), d_format=d_format, **fields)
    warp.block.unit(WgmmaQueues).issue(warp, product, warp.instruction.writes[0], rows)


def _uniform(warp: Any, descriptor: Any) -> int:
    if not (descriptor == descriptor[0]).all():
        warp.fail("divergence", "wgmma with descriptors that differ between lanes")
    return int(descriptor[0])


@operation("wgmma.commit_group.sync.aligned;", converged=True, decides=(DELETE,))
def wgmma_commit(warp: Any) -> None:
    warp.block.unit(WgmmaQueues).commit(warp)


@operation(
    "wgmma.wait_group.sync.aligned {groups};",
    name="wgmma.wait_group",
    converged=True,
    decides=(DELETE, *moved("groups", 1)),
)
def wgmma_wait(warp: Any, *, groups: int) -> Any:
    """Wait until at most `groups` of this warp's newest groups of products are in flight."""
    return warp.block.unit(WgmmaQueues).wait(warp, groups)
