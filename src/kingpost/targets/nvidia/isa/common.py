"""Instructions of every NVIDIA target we write for (sm_90 and later), as the PTX ISA names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kingpost.emulate import GENERIC
from kingpost.formats import F16, F32, canonical_nan, converted
from kingpost.program import (
    DELETE,
    EVERY_LANE,
    Instruction,
    Operand,
    Registers,
    TensorMapType,
    f32,
    operation,
    pred,
    u32,
    u64,
)
from kingpost.program.weakening import flipped, moved, shifted
from kingpost.targets.nvidia.harmless import WARP, own_barrier
from kingpost.targets.nvidia.isa.operands import LARGEST, single, want_range
from kingpost.targets.nvidia.units.bulk_copy import BulkCopies
from kingpost.targets.nvidia.units.mbarrier import Mbarriers
from kingpost.targets.nvidia.units.planes import INITIALISED
from kingpost.targets.nvidia.units.thread_copy import ThreadCopies

MBARRIER = 8  # bytes: where an mbarrier's neighbour is
CHUNK = 16  # bytes, that asynchronous copies count in

# Threads and barriers


@operation("elect.sync _|{d}, 0xffffffff;", writes={"d": pred}, converged=True, check=single("elect.sync"))
def elect(warp: Any) -> Any:
    """True in one lane of the warp."""
    return warp.lanes == 0


@operation("bar.warp.sync 0xffffffff;", converged=True)
def warp_barrier(warp: Any) -> None:
    """Wait for all lanes of the warp; what they have read and written happens before what any of them does next."""


def _check_named_barrier(barrier: Operand, *, into: Any, threads: int) -> None:
    single("bar.sync")(barrier, into=into)
    want_range("bar.sync", "threads", threads, 32, 1024, multiple=32)
    if not isinstance(barrier, Registers):
        want_range("bar.sync", "barrier", int(barrier), 0, 15)


@operation(
    "bar.sync {barrier}, {threads};",
    reads={"barrier": u32},
    converged=True,
    check=_check_named_barrier,
    decides=(DELETE, shifted("barrier", 1, own_barrier), *moved("threads", WARP, -WARP)),
)
def named_barrier(warp: Any, barrier: Any, *, threads: int) -> Any:
    """Wait until `threads` threads of the block have come to barrier 1 to 15 (0 is the whole block's)."""
    return warp.block.barrier(warp, number_of(warp, barrier), threads // 32)


@operation("fence.proxy.async.shared::cta;", decides=(DELETE,))
def fence_proxy_async(warp: Any) -> None:
    """Make this thread's writes to shared memory visible to asynchronous copies and products."""
    warp.clock.fence()


@operation("fence.mbarrier_init.release.cluster;", decides=(DELETE,))
def fence_mbarrier_init(warp: Any) -> None:
    """Make this thread's mbarrier initialisations visible to asynchronous copies."""
    warp.clock.vouch(INITIALISED)


# mbarriers

_LARGEST_COUNT = (1 << 20) - 1  # of arrivals, and of bytes: PTX ISA, "Contents of the mbarrier object"


def _check_init(address: Operand, *, into: Any, count: int) -> None:
    single("mbarrier.init", "address")(address, into=into)
    want_range("mbarrier.init", "count", count, 1, _LARGEST_COUNT)


def _check_expect(address: Operand, *, into: Any, bytes: int) -> None:
    single("mbarrier.arrive.expect_tx", "address")(address, into=into)
    want_range("mbarrier.arrive.expect_tx", "bytes", bytes, 0, _LARGEST_COUNT)


def _check_wait(address: Operand, parity: Operand, *, into: Any) -> None:
    single("mbarrier.try_wait.parity", "address")(address, parity, into=into)
    if not isinstance(parity, Registers):
        want_range("mbarrier.try_wait.parity", "parity", int(parity), 0, 1)


@operation(
    "mbarrier.init.shared::cta.b64 [{address}], {count};",
    reads={"address": u32},
    check=_check_init,
    decides=(DELETE, EVERY_LANE, *moved("count", 1, -1), shifted("address", MBARRIER)),
)
def mbarrier_init(warp: Any, address: Any, *, count: int) -> None:
    warp.block.unit(Mbarriers).initialise(warp, address_of(warp, address), count)


@operation(
    "mbarrier.inval.shared::cta.b64 [{address}];",
    reads={"address": u32},
    check=single("mbarrier.inval", "address"),
    decides=(DELETE, EVERY_LANE, shifted("address", MBARRIER)),
)
def mbarrier_invalidate(warp: Any, address: Any) -> None:
    """Be done with an mbarrier, so that its memory may be used anew."""
    warp.block.unit(Mbarriers).invalidate(warp, address_of(warp, address))


@operation(
    "mbarrier.arrive.shared::cta.b64 _, [{address}];",
    reads={"address": u32},
    check=single("mbarrier.arrive", "address"),
    decides=(DELETE, EVERY_LANE, shifted("address", MBARRIER)),
)
def mbarrier_arrive(warp: Any, address: Any) -> None:
    """One arrival a lane."""
    warp.block.unit(Mbarriers).arrive(warp, address_of(warp, address), int(warp.active.sum()))


@operation(
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{address}], {bytes};",
    reads={"address": u32},
    check=_check_expect,
    decides=(DELETE, EVERY_LANE, *moved("bytes", CHUNK, -CHUNK), shifted("address", MBARRIER)),
)
def mbarrier_arrive_expect(warp: Any, address: Any, *, bytes: int) -> None:
    """Expect `bytes` of asynchronous copies in this phase, then arrive; each lane."""
    lanes = int(warp.active.sum())
    warp.block.unit(Mbarriers).arrive(warp, address_of(warp, address), lanes, bytes * lanes)


@operation(
    "{{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [{address}], {parity}; "
    "@done bra finished; bra again; finished: }}",
    name="mbarrier.try_wait.parity",
    reads={"address": u32, "parity": u32},
    check=_check_wait,
    decides=(DELETE, flipped("parity"), shifted("address", MBARRIER)),
)
def mbarrier_wait(warp: Any, address: Any, parity: Any) -> Any:
    """Wait until the phase of this parity has completed."""
    return warp.block.unit(Mbarriers).wait(warp, address_of(warp, address), number_of(warp, parity))


def address_of(warp: Any, address: Any) -> int:
    """A shared address that must be the same in all active lanes."""
    lanes = np.broadcast_to(address, 32)[warp.active]
    if not (lanes == lanes[0]).all():
        warp.fail("divergence", "the lanes name different barriers or shared addresses; one is wanted")
    return int(lanes[0])


def number_of(warp: Any, value: Any) -> int:
    """The value of the first active lane."""
    return int(np.broadcast_to(value, 32)[warp.active.argmax()])


# Bulk tensor copies; coordinates are elements, outermost dimension first


def uses_of_copy(instruction: Instruction) -> dict[str, float]:
    type: TensorMapType = instruction.fields["type"]
    return {"issue": 1.0, "bulk copy bytes": float(type.bytes)}


def check_bulk(name: str, dimensions: int, *addresses: str | None) -> Callable[..., None]:
    def check(*reads: Operand, into: Any, type: TensorMapType) -> None:
        single(name, *addresses)(*reads, into=into)
        if len(type.box) != dimensions:
            raise ValueError(f"{name}: type's box is {type.box}; {dimensions} dimensions are wanted")

    return check


def _check_reduce(*reads: Operand, into: Any, type: TensorMapType) -> None:
    name = "cp.reduce.async.bulk.tensor.3d"
    check_bulk(name, 3, "map", None, None, None, "source")(*reads, into=into, type=type)
    if type.format is not F32:
        raise ValueError(f"{name}: type's format is {type.format.name}; float32 is wanted")


@operation(
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[{destination}], [{map}, {{{column}, {row}}}], [{barrier}];",
    reads={"destination": u32, "map": u64, "row": u32, "column": u32, "barrier": u32},
    check=check_bulk("cp.async.bulk.tensor.2d", 2, "destination", "map", None, None, "barrier"),
    uses=uses_of_copy,
    decides=(EVERY_LANE, shifted("barrier", MBARRIER)),
)
def bulk_load_2d(
    warp: Any, destination: Any, map: Any, row: Any, column: Any, barrier: Any, *, type: TensorMapType
) -> None:
    origin = number_of(warp, row), number_of(warp, column)
    copies = warp.block.unit(BulkCopies)
    copies.load(warp, address_of(warp, destination), number_of(warp, map), origin, address_of(warp, barrier))


@operation(
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [{map}, {{{column}, {row}}}], [{source}];",
    reads={"map": u64, "row": u32, "column": u32, "source": u32},
    check=check_bulk("cp.async.bulk.tensor.2d", 2, "map", None, None, "source"),
    uses=uses_of_copy,
    decides=(EVERY_LANE,),
)
def bulk_store_2d(warp: Any, map: Any, row: Any, column: Any, source: Any, *, type: TensorMapType) -> None:
    origin = number_of(warp, row), number_of(warp, column)
    warp.block.unit(BulkCopies).store(warp, number_of(warp, map), origin, address_of(warp, source))


@operation(
    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[{destination}], [{map}, {{{column}, {row}, {plane}}}], [{barrier}];",
    reads={"destination": u32, "map": u64, "plane": u32, "row": u32, "column": u32, "barrier": u32},
    check=check_bulk("cp.async.bulk.tensor.3d", 3, "destination", "map", None, None, None, "barrier"),
    uses=uses_of_copy,
    decides=(EVERY_LANE, shifted("barrier", MBARRIER)),
)
def bulk_load_3d(
    warp: Any, destination: Any, map: Any, plane: Any, row: Any, column: Any, barrier: Any, *, type: TensorMapType
) -> None:
    origin = number_of(warp, plane), number_of(warp, row), number_of(warp, column)
    copies = warp.block.unit(BulkCopies)
    copies.load(warp, address_of(warp, destination), number_of(warp, map), origin, address_of(warp, barrier))


@operation(
    "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [{map}, {{{column}, {row}, {plane}}}], [{source}];",
    reads={"map": u64, "plane": u32, "row": u32, "column": u32, "source": u32},
    check=check_bulk("cp.async.bulk.tensor.3d", 3, "map", None, None, None, "source"),
    uses=uses_of_copy,
    decides=(EVERY_LANE,),
)
def bulk_store_3d(warp: Any, map: Any, plane: Any, row: Any, column: Any, source: Any, *, type: TensorMapType) -> None:
    origin = number_of(warp, plane), number_of(warp, row), number_of(warp, column)
    warp.block.unit(BulkCopies).store(warp, number_of(warp, map), origin, address_of(warp, source))


@operation(
    "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
    "[{map}, {{{column}, {row}, {plane}}}], [{source}];",
    reads={"map": u64, "plane": u32, "row": u32, "column": u32, "source": u32},
    check=_check_reduce,
    uses=uses_of_copy,
    decides=(EVERY_LANE,),
)
def bulk_reduce_add_3d(
    warp: Any, map: Any, plane: Any, row: Any, column: Any, source: Any, *, type: TensorMapType
) -> None:
    """Add a box to the tensor, float32, each element rounded once."""
    origin = number_of(warp, plane), number_of(warp, row), number_of(warp, column)
    warp.block.unit(BulkCopies).store(warp, number_of(warp, map), origin, address_of(warp, source), add=True)


@operation("cp.async.bulk.commit_group;", decides=(DELETE,))
def bulk_commit(warp: Any) -> None:
    warp.block.unit(BulkCopies).commit(warp)


@operation(
    "cp.async.bulk.wait_group.read {groups};",
    name="cp.async.bulk.wait_group.read",
    check=lambda into, groups: want_range("cp.async.bulk.wait_group.read", "groups", groups, 0, LARGEST),
    decides=(DELETE, *moved("groups", 1)),
)
def bulk_wait_read(warp: Any, *, groups: int) -> Any:
    """Wait until at most `groups` of this thread's groups of stores have still to read shared memory."""
    return warp.block.unit(BulkCopies).wait(warp, groups, reads_only=True)


@operation("prefetch.tensormap [{map}];", reads={"map": u64}, check=single("prefetch.tensormap", "map"))
def prefetch_tensor_map(warp: Any, map: Any) -> None:
    """Bring a tensor map near; changes nothing."""


# Copies by threads


@operation(
    "cp.async.ca.shared.global [{destination}], [{source}], 4;",
    reads={"destination": u32, "source": u64},
    check=single("cp.async", "destination", "source"),
    uses={"issue": 1.0, "global load bytes": 128.0, "shared store bytes": 128.0},
)
def copy_async_4(warp: Any, destination: Any, source: Any) -> None:
    """Copy 4 bytes a lane from global to shared memory, asynchronously."""
    lanes = warp.block.unit(ThreadCopies)
    lanes.copy(warp, warp.broadcast(destination), warp.broadcast(source), 4)


@operation(
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{address}];",
    reads={"address": u32},
    check=single("cp.async.mbarrier.arrive.noinc", "address"),
    decides=(DELETE, shifted("address", MBARRIER)),
)
def copy_async_arrive(warp: Any, address: Any) -> None:
    """Arrive once a lane at an mbarrier, when the lane's asynchronous copies so far are done."""
    warp.block.unit(ThreadCopies).arrive(warp, address_of(warp, address))


# Between the lanes of a warp


def _check_up(a: Operand, *, into: Any, distance: int) -> None:
    single("shfl.sync.up.b32")(a, into=into)
    want_range("shfl.sync.up.b32", "distance", distance, 0, 31)


@operation(
    "shfl.sync.up.b32 {d}, {a}, {distance}, 0, 0xffffffff;",
    name="shfl.sync.up.b32",
    reads={"a": u32},
    writes={"d": u32},
    converged=True,
    check=_check_up,
)
def shuffle_up(warp: Any, a: Any, *, distance: int) -> Any:
    """What the lane `distance` below has; its own in the first `distance` lanes."""
    return warp.broadcast(a)[np.where(warp.lanes < distance, warp.lanes, warp.lanes - np.uint32(distance))]


@operation(
    "shfl.sync.idx.b32 {d}, {a}, {index}, 31, 0xffffffff;",
    name="shfl.sync.idx.b32",
    reads={"a": u32, "index": u32},
    writes={"d": u32},
    converged=True,
    check=single("shfl.sync.idx.b32"),
)
def shuffle_index(warp: Any, a: Any, index: Any) -> Any:
    """What lane `index` mod 32 has; each lane may name another."""
    return warp.broadcast(a)[warp.broadcast(index) % 32]


@operation(
    "vote.sync.ballot.b32 {d}, {a}, 0xffffffff;",
    name="vote.sync.ballot.b32",
    reads={"a": pred},
    writes={"d": u32},
    converged=True,
    check=single("vote.sync.ballot.b32"),
)
def ballot(warp: Any, a: Any) -> Any:
    """Bit i: whether `a` holds in lane i; the same in every lane."""
    return warp.broadcast((a.astype(np.uint32) << warp.lanes).sum(dtype=np.uint32))


@operation("popc.b32 {d}, {a};", reads={"a": u32}, writes={"d": u32}, check=single("popc.b32"))
def population_count(warp: Any, a: Any) -> Any:
    """How many bits are set."""
    return np.bitwise_count(a).astype(np.uint32)


@operation(
    "{{ .reg .b32 reversed; brev.b32 reversed, {a}; clz.b32 {d}, reversed; }}",
    name="find_first_set",
    reads={"a": u32},
    writes={"d": u32},
    check=single("find_first_set"),
    uses={"issue": 2.0},
)
def find_first_set(warp: Any, a: Any) -> Any:
    """The index of the lowest bit that is set, 32 if none is."""
    return np.bitwise_count((a & -a) - np.uint32(1)).astype(np.uint32)


# Conversion and the way out of registers


@operation(
    "cvt.rn.f16x2.f32 {d}, {high}, {low};",
    reads={"low": f32, "high": f32},
    writes={"d": u32},
    lanewise=True,
)
def pack_f16(warp: Any, low: Any, high: Any) -> Any:
    """Two float32 rounded to float16, `low` in bits 15:0; beyond its range infinity, NaN 0x7fff."""
    halves = [converted(canonical_nan(half), F16).view(np.uint16).astype(np.uint32) for half in (low, high)]
    return halves[0] | halves[1] << np.uint32(16)


def _unpack_f16_text(instruction: Instruction, name: Any) -> str:
    (pair,), (d,) = instruction.reads, instruction.writes
    half = ("low", "high")[instruction.fields["half"]]
    return f"{{ .reg .b16 low, high; mov.b32 {{low, high}}, {name(pair)}; cvt.f32.f16 {name(d)}, {half}; }}"


def _check_unpack(pair: Operand, *, into: Any, half: int) -> None:
    single("cvt.f32.f16")(pair, into=into)
    want_range("cvt.f32.f16", "half", half, 0, 1)


@operation(_unpack_f16_text, name="cvt.f32.f16", reads={"pair": u32}, writes={"d": f32}, check=_check_unpack)
def unpack_f16(warp: Any, pair: Any, *, half: int) -> Any:
    """The float32 of the float16 in bits 15:0 (half 0) or 31:16 (half 1)."""
    return canonical_nan((pair >> np.uint32(16 * half)).astype(np.uint16).view(np.float16).astype(np.float32))


def _check_stmatrix(address: Any, values: Any, into: Any, offset: int, transposed: bool) -> None:
    if not isinstance(values, Registers) or len(values) not in (1, 2, 4):
        raise ValueError(f"stmatrix stores {_told(values)}; 1, 2 or 4 are wanted")
    single("stmatrix", "address")(address, into=into)
    want_range("stmatrix", "offset", offset, 0, LARGEST)


def _told(values: Operand) -> str:
    return f"{len(values)} registers" if isinstance(values, Registers) else f"the number {values!r}, no register"


def _stmatrix_text(instruction: Instruction, name: Any) -> str:
    address, values = instruction.reads
    place = f"[{name(address)}+{instruction.fields['offset']}]"
    kind = f"x{_count(values)}" + (".trans" if instruction.fields["transposed"] else "")
    return f"stmatrix.sync.aligned.m8n8.{kind}.shared.b16 {place}, {name.vector(values)};"


def _count(values: Operand) -> int:
    return len(values) if isinstance(values, Registers) else 1


@operation(
    _stmatrix_text,
    name="stmatrix",
    reads={"address": u32, "values": u32},
    converged=True,
    check=_check_stmatrix,
    uses=lambda i: {"issue": 1.0, "shared store bytes": 128.0 * _count(i.reads[1])},
)
def stmatrix(warp: Any, address: Any, values: Any, *, offset: int = 0, transposed: bool = False) -> None:
    """Store 8x8 matrices of 16-bit elements: lane 8 i + r gives the address of row r of matrix i, register i of lane
    4 r + c its elements 2 c and 2 c + 1. transposed: what lanes hold as rows is stored as columns, register i of lane
    4 r + c being element r of rows 2 c and 2 c + 1 (PTX ISA, "stmatrix")."""
    matrices = values.reshape(-1, 32)
    if transposed:
        elements = np.ascontiguousarray(matrices).view(np.uint16).reshape(-1, 8, 8)
        matrices = np.ascontiguousarray(elements.transpose(0, 2, 1)).view(np.uint32).reshape(-1, 32)
    rows = np.asarray(address)[: 8 * len(matrices)].astype(np.int64) + offset
    if (rows % 16).any():
        warp.fail("misaligned", "stmatrix to a row address that is no multiple of 16")
    bytes = np.ascontiguousarray(matrices).view(np.uint8).reshape(len(rows), 16)
    warp.block.shared.count_conflicts(warp, rows, 16)
    warp.block.shared.write(rows[:, None] + np.arange(16), bytes, warp, GENERIC)


def _check_pair(address: Operand, low: Operand, high: Operand, *, into: Any, offset: int) -> None:
    single("st.shared.v2.f32", "address")(address, low, high, into=into)
    want_range("st.shared.v2.f32", "offset", offset, 0, LARGEST)


@operation(
    "st.shared.v2.f32 [{address}+{offset}], {{{low}, {high}}};",
    name="st.shared.v2.f32",
    reads={"address": u32, "low": f32, "high": f32},
    check=_check_pair,
    uses={"issue": 1.0, "shared store bytes": 256.0},
)
def store_shared_pair(warp: Any, address: Any, low: Any, high: Any, *, offset: int = 0) -> None:
    """Two neighbouring float32 a lane."""
    pair = np.stack([low, high], axis=-1).astype(f32.dtype)
    warp.block.shared.store(warp, np.asarray(address) + u32.dtype.type(offset), pair.view(np.uint64)[:, 0])
