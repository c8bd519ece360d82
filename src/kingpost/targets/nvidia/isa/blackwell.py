"""Instructions of sm_100a: tensor memory and the tcgen05 family, one CTA at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost.emulate import ASYNCHRONOUS
from kingpost.formats import BF16, E4M3, E5M2, F16, Format
from kingpost.program import DELETE, EVERY_LANE, Instruction, Operation, Registers, Type, f32, operation, u32, u64
from kingpost.program.weakening import deleted, exchanged, moved, shifted
from kingpost.targets.nvidia.harmless import nothing_taken, nothing_to_order
from kingpost.targets.nvidia.isa.common import CHUNK, MBARRIER
from kingpost.targets.nvidia.units.tcgen05 import Product, Scales, Tcgen05
from kingpost.targets.nvidia.units.tensor_memory import COLUMNS, SMALLEST_ALLOCATION, TensorMemory

FORMAT_CODES = {F16: 0, BF16: 1, E4M3: 0, E5M2: 1}  # within their kind
LOADS = (1, 2, 4, 8, 16, 32, 64, 128)  # registers
_SWIZZLE_CODES = {0: 0, 128: 2, 64: 4, 32: 6}
_VERSION = 1 << 14  # of the shared-memory descriptor, in its upper half


# Allocation of tensor memory


def _check_columns(*reads: Any, into: Any, columns: int) -> None:
    if columns & (columns - 1) or not SMALLEST_ALLOCATION <= columns <= COLUMNS:
        raise ValueError(f"columns is {columns}; a power of two from {SMALLEST_ALLOCATION} to {COLUMNS} is wanted")


@operation(
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [{slot}], {columns};",
    name="tcgen05.alloc",
    reads={"slot": u32},
    converged=True,
    check=_check_columns,
)
def tensor_allocate(warp: Any, slot: Any, *, columns: int) -> Any:
    """Wait for free columns and write their address to shared memory at `slot`; one warp."""
    return warp.block.unit(TensorMemory).allocate(warp, _same(warp, slot), columns)


@operation(
    "tcgen05.dealloc.cta_group::1.sync.aligned.b32 {address}, {columns};",
    name="tcgen05.dealloc",
    reads={"address": u32},
    converged=True,
    check=_check_columns,
    decides=(DELETE,),
)
def tensor_free(warp: Any, address: Any, *, columns: int) -> None:
    """Give columns back, once every access to them has been waited for; one warp."""
    warp.block.unit(TensorMemory).free(warp, _same(warp, address), columns)


@operation(
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
    name="tcgen05.relinquish_alloc_permit",
    converged=True,
    decides=(deleted(nothing_taken),),
)
def tensor_relinquish(warp: Any) -> None:
    """This block allocates no more."""
    warp.block.unit(TensorMemory).relinquish(warp)


# Loads and stores: 32 lanes x 32 bits, register i from column i; or 16 lanes twice, `split` columns apart


def _check_transfer(registers: Any, count: int) -> None:
    if count not in LOADS:
        raise ValueError(f"tcgen05.ld/st: count is {count}; one of {LOADS} is wanted")
    if not isinstance(registers, Registers) or len(registers) != count or len(set(registers.indices)) != count:
        raise ValueError(f"tcgen05.ld/st .x{count}: {registers!r} are not {count} different registers, which it moves")


def _transfer(instruction: Instruction, name: Any) -> tuple[str, str, str]:
    """The shape, the address and what follows it."""
    fields, address = instruction.fields, name(instruction.reads[0])
    shape = "32x32b" if fields["split"] is None else "16x32bx2"
    tail = "" if fields["split"] is None else f", {fields['split']}"
    return f"sync.aligned.{shape}.x{fields['count']}.b32", f"[{address}+{fields['column']}]", tail


def _load_text(instruction: Instruction, name: Any) -> str:
    shape, address, tail = _transfer(instruction, name)
    return f"tcgen05.ld.{shape} {name.vector(instruction.writes[0])}, {address}{tail};"


def _store_text(instruction: Instruction, name: Any) -> str:
    shape, address, tail = _transfer(instruction, name)
    return f"tcgen05.st.{shape} {address}{tail}, {name.vector(instruction.reads[1])};"


def _transferred(instruction: Instruction) -> dict[str, float]:
    return {"issue": 1.0, "tensor memory bytes": 128.0 * instruction.fields["count"]}


def _load(type: Type) -> Operation:
    @operation(
        _load_text,
        name="tcgen05.ld",
        reads={"address": u32},
        writes={"d": type},
        converged=True,
        check=lambda address, into, count, column, split: _check_transfer(into, count),
        uses=_transferred,
    )
    def tensor_load(warp: Any, address: Any, *, count: int, column: int = 0, split: int | None = None) -> Any:
        """`count` columns from `address` + `column` of this warp's 32 lanes, asynchronously (see TensorMemory.load)."""
        start = _same(warp, address) + column
        warp.block.unit(TensorMemory).load(warp, start, split, warp.instruction.writes[0])
        return ASYNCHRONOUS

    return tensor_load


tensor_load, tensor_load_bits = _load(f32), _load(u32)


@operation(
    _store_text,
    name="tcgen05.st",
    reads={"address": u32},
    converged=True,
    check=lambda address, values, into, count, column, split: _check_transfer(values, count),
    uses=_transferred,
)
def tensor_store(
    warp: Any, address: Any, values: Any, *, count: int, column: int = 0, split: int | None = None
) -> None:
    """`count` registers to tensor memory, placed as `tensor_load` has them, asynchronously."""
    start = _same(warp, address) + column
    values = values.reshape(count, 32)
    warp.block.unit(TensorMemory).store(warp, start, split, warp.instruction.reads[1], values.copy())


@operation("tcgen05.wait::ld.sync.aligned;", name="tcgen05.wait::ld", converged=True, decides=(DELETE,))
def tensor_wait_load(warp: Any) -> Any:
    """Wait for all of this warp's loads."""
    return warp.block.unit(TensorMemory).wait(warp, "ld")


@operation("tcgen05.wait::st.sync.aligned;", name="tcgen05.wait::st", converged=True, decides=(DELETE,))
def tensor_wait_store(warp: Any) -> Any:
    """Wait for all of this warp's stores."""
    return warp.block.unit(TensorMemory).wait(warp, "st")


@operation(
    "tcgen05.fence::before_thread_sync;", name="tcgen05.fence::before_thread_sync", decides=(deleted(nothing_to_order),)
)
def tensor_fence_before(warp: Any) -> None:
    """Order this thread's tcgen05 instructions so far before what synchronises with other threads."""
    warp.block.unit(TensorMemory).fence_before(warp)


@operation("tcgen05.fence::after_thread_sync;", name="tcgen05.fence::after_thread_sync", decides=(DELETE,))
def tensor_fence_after(warp: Any) -> None:
    """Order this thread's tcgen05 instructions that follow after what it has synchronised with."""
    warp.block.unit(TensorMemory).fence_after(warp)


# Operands in shared memory


def _descriptor_half(stride: int, swizzle: int) -> int:
    return _SWIZZLE_CODES[swizzle] << 29 | _VERSION | stride >> 4


def _descriptor_text(instruction: Instruction, name: Any) -> str:
    fields, (address,), (d,) = instruction.fields, instruction.reads, instruction.writes
    high = _descriptor_half(fields["stride"], fields["swizzle"])
    return (
        f"{{ .reg .b32 low; shr.u32 low, {name(address)}, 4; add.u32 low, low, {fields['offset'] >> 4}; "
        f"mov.b64 {name(d)}, {{low, {high:#x}}}; }}"
    )


@operation(
    _descriptor_text,
    name="shared_descriptor",
    reads={"address": u32},
    writes={"d": u64},
    uses={"issue": 2.0},
    decides=(*moved("offset", CHUNK), *moved("stride", CHUNK), *exchanged("swizzle", _SWIZZLE_CODES)),
)
def shared_descriptor(warp: Any, address: Any, *, offset: int = 0, stride: int = 1024, swizzle: int = 128) -> Any:
    """The descriptor of a K-major matrix in shared memory at `address` + `offset` (bytes).

    stride: bytes from one group of 8 rows to the next. Fields: see `units.tcgen05.operand_addresses`.
    """
    high = _descriptor_half(stride, swizzle) << 32
    return warp.broadcast((address >> 4) + (offset >> 4)).astype("uint64") | u64.dtype.type(high)


@operation(
    "tcgen05.cp.cta_group::1.32x128b.warpx4 [{address}], {source};",
    name="tcgen05.cp",
    reads={"address": u32, "source": u64},
    uses={"issue": 1.0, "tensor shared bytes": 512.0},
    decides=(EVERY_LANE,),
)
def tensor_copy_scales(warp: Any, address: Any, source: Any) -> None:
    """512 bytes of scales to four columns: byte 16 (r mod 32) + 4 (r / 32) + i is byte i of row r's cell.

    source: a descriptor without swizzle, stride 128; one thread.
    """
    warp.block.unit(Tcgen05).copy_scales(warp, _active(warp, address), _active(warp, source))


@operation(
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{barrier}];",
    name="tcgen05.commit",
    reads={"barrier": u32},
    decides=(DELETE, EVERY_LANE, shifted("barrier", MBARRIER)),
)
def tensor_commit(warp: Any, barrier: Any) -> None:
    """Arrive once at an mbarrier when all that this thread has issued to the tensor core is done."""
    warp.block.unit(Tcgen05).commit(warp, _active(warp, barrier))


# Products


def instruction_descriptor(
    m: int, n: int, a_format: Format, b_format: Format, scale_bytes: tuple[int, int] | None = None
) -> int:
    """The 32 bits that say what an mma multiplies (PTX ISA, "tcgen05: instruction descriptor"), into float32, K-major.

    Bits 5:4 the format of d (1 = float32), 9:7 and 12:10 those of a and b, 22:17 n / 8, 28:24 m / 16; with
    `scale_bytes`, which byte of a cell of a's and of b's scales counts: 30:29 and 5:4, and 23 (1 = E8M0).
    """
    shape = FORMAT_CODES[a_format] << 7 | FORMAT_CODES[b_format] << 10 | n >> 3 << 17 | m >> 4 << 24
    if scale_bytes is None:
        return shape | 1 << 4
    return shape | scale_bytes[1] << 4 | 1 << 23 | scale_bytes[0] << 29


def _check_shape(kind: str, fields: dict[str, Any], rows: tuple[int, ...], formats: tuple[Format, ...]) -> None:
    m, n, a_format, b_format = (fields[name] for name in ("m", "n", "a_format", "b_format"))
    if m not in rows:
        raise ValueError(f"tcgen05.mma {kind}: m is {m}; {' or '.join(map(str, rows))} is wanted")
    step = 8 if m == 64 else 16
    if n % step or not step <= n <= 256:
        raise ValueError(f"tcgen05.mma {kind}: n is {n}; a multiple of {step} from {step} to 256 is wanted at m = {m}")
    for name, format in (("a_format", a_format), ("b_format", b_format)):
        if format not in formats:
            wanted = " or ".join(f.name for f in formats)
            raise ValueError(f"tcgen05.mma {kind}: {name} is {format.name}; {wanted} is wanted")


def _check_f16(*reads: Any, into: Any, **fields: Any) -> None:
    _check_shape("kind::f16", fields, (64, 128), (F16, BF16))
    if fields["a_format"] is not fields["b_format"]:
        raise ValueError("tcgen05.mma kind::f16: a_format and b_format differ; equal ones are wanted")


def _check_f16_masked(*reads: Any, into: Any, **fields: Any) -> None:
    _check_f16(into=into, **fields)
    if not isinstance(reads[4], Registers) or len(reads[4]) != 4:
        raise ValueError(
            f"tcgen05.mma: the lane mask is {reads[4]!r}; four u32, a bit for each of 128 lanes, are wanted"
        )


def _check_f8(*reads: Any, into: Any, **fields: Any) -> None:
    _check_shape("kind::f8f6f4", fields, (64, 128), (E4M3, E5M2))


def _check_mxf8(*reads: Any, into: Any, a_scale: int, b_scale: int, **fields: Any) -> None:
    _check_shape("kind::mxf8f6f4", {"m": 128, **fields}, (128,), (E4M3, E5M2))
    for name, byte in (("a_scale", a_scale), ("b_scale", b_scale)):
        if byte not in range(4):
            raise ValueError(f"tcgen05.mma kind::mxf8f6f4: {name} is {byte}; a byte, 0 to 3, is wanted")


def _mma_text(kind: str) -> Any:
    def text(instruction: Instruction, name: Any) -> str:
        fields, (d, a, b, accumulate, *others) = instruction.fields, instruction.reads
        scale_bytes = (fields["a_scale"], fields["b_scale"]) if "a_scale" in fields else None
        formats = fields["a_format"], fields["b_format"]
        shape = instruction_descriptor(fields.get("m", 128), fields["n"], *formats, scale_bytes)
        more = [f"[{name(each)}]" for each in others] if scale_bytes else [name.vector(each) for each in others]
        operands = ", ".join([f"[{name(d)}]", name(a), name(b), "shape", *more, "accumulate"])
        return (
            f"{{ .reg .pred accumulate; .reg .b32 shape; setp.ne.b32 accumulate, {name(accumulate)}, 0; "
            f"mov.b32 shape, {shape:#x}; tcgen05.mma.cta_group::1.{kind} {operands}; }}"
        )

    return text


def _mma_uses(instruction: Instruction) -> dict[str, float]:
    """32 bytes of K in n / 2 cycles, whatever m: 8,192 products of 8 bits a cycle at m = 128, half that of 16 bits."""
    n, m = instruction.fields["n"], instruction.fields.get("m", 128)
    return {"issue": 1.0, "tensor cycles": n / 2, "tensor shared bytes": 32.0 * (m + n)}


_MMA_OPERANDS = {"d": u32, "a": u64, "b": u64, "accumulate": u32}


@operation(
    _mma_text("kind::f16"),
    name="tcgen05.mma.kind::f16",
    reads=_MMA_OPERANDS,
    check=_check_f16,
    uses=_mma_uses,
    decides=(EVERY_LANE,),
)
def mma_f16(
    warp: Any, d: Any, a: Any, b: Any, accumulate: Any, *, m: int, n: int, a_format: Format, b_format: Format
) -> None:
    """d[m, n] = a[m, 16] b[n, 16]^T, plus d if `accumulate` is not 0, in float32; one thread.

    d: tensor-memory address; a, b: shared-memory descriptors. Arithmetic: `blackwell_arithmetic.tcgen05_f32`.
    """
    _multiply(warp, "f16", m, n, d, a, b, accumulate, a_format, b_format)


@operation(
    _mma_text("kind::f16"),
    name="tcgen05.mma.kind::f16.masked",
    reads=_MMA_OPERANDS | {"disabled": u32},
    check=_check_f16_masked,
    uses=_mma_uses,
    decides=(EVERY_LANE,),
)
def mma_f16_masked(
    warp: Any, d: Any, a: Any, b: Any, accumulate: Any, disabled: Any, *, m: int, n: int, a_format: Format,
    b_format: Format,
) -> None:  # fmt: skip
    """`mma_f16`, but lanes of d whose bit of `disabled` (four registers) is set stay as they are."""
    words = disabled[:, warp.active.argmax()].astype("<u4")
    lanes = np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)
    _multiply(warp, "f16", m, n, d, a, b, accumulate, a_format, b_format, disabled=lanes)


@operation(
    _mma_text("kind::f8f6f4"),
    name="tcgen05.mma.kind::f8f6f4",
    reads=_MMA_OPERANDS,
    check=_check_f8,
    uses=_mma_uses,
    decides=(EVERY_LANE,),
)
def mma_f8(
    warp: Any, d: Any, a: Any, b: Any, accumulate: Any, *, m: int, n: int, a_format: Format = E4M3,
    b_format: Format = E4M3,
) -> None:  # fmt: skip
    """d[m, n] = a[m, 32] b[n, 32]^T, plus d if `accumulate` is not 0, in float32; one thread."""
    _multiply(warp, "f8f6f4", m, n, d, a, b, accumulate, a_format, b_format)


@operation(
    _mma_text("kind::mxf8f6f4.block_scale"),
    name="tcgen05.mma.kind::mxf8f6f4.block_scale",
    reads=_MMA_OPERANDS | {"scales_a": u32, "scales_b": u32},
    check=_check_mxf8,
    uses=_mma_uses,
    decides=(EVERY_LANE,),
)
def mma_mxf8(
    warp: Any, d: Any, a: Any, b: Any, accumulate: Any, scales_a: Any, scales_b: Any, *, n: int, a_scale: int,
    b_scale: int, a_format: Format = E4M3, b_format: Format = E4M3,
) -> None:  # fmt: skip
    """d[128, n] = (a sa)[128, 32] (b sb)[n, 32]^T, plus d if `accumulate` is not 0, in float32; one thread.

    Row r's scale (E8M0) is byte `a_scale` of the cell in column scales_a + r / 32, lane r mod 32 of each 32; so b.
    """
    scales = (Scales(_active(warp, scales_a), a_scale), Scales(_active(warp, scales_b), b_scale))
    _multiply(warp, "mxf8f6f4", 128, n, d, a, b, accumulate, a_format, b_format, scales)


def _multiply(
    warp: Any, kind: str, m: int, n: int, d: Any, a: Any, b: Any, accumulate: Any, a_format: Format, b_format: Format,
    scales: tuple[Scales, Scales] | None = None, disabled: np.ndarray | None = None,
) -> None:  # fmt: skip
    at, first, second = (_active(warp, each) for each in (d, a, b))
    added = bool(_active(warp, accumulate))
    product = Product(kind, m, n, at, first, second, added, a_format, b_format, scales, disabled)
    warp.block.unit(Tcgen05).multiply(warp, product)


def _active(warp: Any, value: Any) -> int:
    """The value in the thread that issues."""
    return int(np.broadcast_to(value, 32)[warp.active.argmax()])


def _same(warp: Any, value: Any) -> int:
    """A value that must be the same in all lanes."""
    lanes = np.broadcast_to(value, 32)
    if not (lanes == lanes[0]).all():
        warp.fail("divergence", "the lanes name different addresses; one is wanted")
    return int(lanes[0])
