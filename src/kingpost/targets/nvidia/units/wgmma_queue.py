"""The wgmma queue: a warpgroup's asynchronous matrix products, performed in order (PTX ISA, "wgmma")."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np

from kingpost.emulate import ASYNC, Action, Block, Wait, Warp
from kingpost.emulate.order import Knowledge
from kingpost.formats import F16, F32, Format
from kingpost.program import Registers, Source, swizzle
from kingpost.program.registers import Storage
from kingpost.targets.nvidia.arithmetic import wgmma_step

WARPS = 4  # in a warpgroup


@dataclass(frozen=True)
class Product:
    """d[64, n] = a[64, step] b[n, step]^T (+ d): shared-memory descriptors, formats and majors of a wgmma.

    a: None where each warp brings its rows in registers.
    """

    n: int
    a: int | None
    b: int
    accumulate: bool
    a_format: Format
    b_format: Format
    a_major: str = "k"
    b_major: str = "k"
    d_format: Format = F32


@dataclass(frozen=True, eq=False)
class Rows:
    """A warp's 16 rows of a: the four registers that hold them, and what they held when the product was issued."""

    registers: Registers
    values: np.ndarray  # uint32 [4, 32]


@dataclass(eq=False)
class _Entry:
    product: Product
    source: Source | None
    parts: dict[int, tuple[Warp, Registers]] = field(default_factory=dict)  # by warp of the warpgroup
    rows: dict[int, Rows] = field(default_factory=dict)
    issuers: dict[int, Knowledge] = field(default_factory=dict)  # what each warp knew when it issued its part
    done: dict[int, Knowledge] = field(default_factory=dict)  # by warp whose rows are there: what its wait teaches

    def held(self, part: int) -> list[Registers]:
        """The registers of one warp that the product reads or writes."""
        return [self.parts[part][1], *([self.rows[part].registers] if part in self.rows else [])]


@dataclass
class _Groups:
    """One warp's products: those not yet committed, and the committed groups in order."""

    open: list[_Entry] = field(default_factory=list)
    committed: list[list[_Entry]] = field(default_factory=list)


class WgmmaQueues:
    """The wgmma queues of a block's warpgroups."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.entries: dict[int, list[_Entry]] = {}  # issued by some of a warpgroup's warps, not by all
        self.groups: dict[int, _Groups] = {}
        self.fences: dict[int, int] = {}  # the number of each warp's last wgmma.fence among its instructions

    def issue(self, warp: Warp, product: Product, accumulator: Registers, rows: Rows | None = None) -> None:
        """One warp's part of a product, its 16 rows: it starts when all four warps of the warpgroup have issued it, and
        ends on its own, so that a warp's wait tells nothing of what the other three still read."""
        group = warp.index // WARPS
        waiting = self.entries.setdefault(group, [])
        part = warp.index % WARPS
        entry = next((e for e in waiting if part not in e.parts), None)
        if entry is None:
            entry = _Entry(product, warp.source)
            waiting.append(entry)
        if entry.product != product:
            warp.fail("wgmma", f"issues {product} where another warp of its warpgroup issued {entry.product}")
        if not self._chained(warp, accumulator):
            self._refuse_unfenced(warp, accumulator, warp.touched)
            if product.accumulate:
                warp.read(accumulator)  # the products start from registers that must hold something
        entry.parts[part] = (warp, accumulator)
        if rows is not None:
            self._refuse_unfenced(warp, rows.registers, warp.written)
            entry.rows[part] = rows
        for registers in entry.held(part):
            warp.lock(registers, "a wgmma in flight")
        entry.issuers[part] = warp.clock.release()
        if self.block.recorder:
            self.block.recorder.start_part(warp, entry)
        self.groups.setdefault(warp.index, _Groups()).open.append(entry)
        if len(entry.parts) == WARPS:
            waiting.remove(entry)
            for part, (each, _) in sorted(entry.parts.items()):
                self.block.submit(
                    f"wgmma of warp {each.index}",
                    ("wgmma", each.index),
                    entry.source,
                    partial(self._perform, entry=entry, part=part),
                    issuer=entry.issuers[part],
                )

    def _chained(self, warp: Warp, accumulator: Registers) -> bool:
        """Whether products in flight already hold these registers: products on one accumulator chain in order."""
        return set(accumulator.indices) <= set(warp.locked.get(accumulator.storage, ()))

    def fence(self, warp: Warp) -> None:
        """wgmma.fence: the warp's accesses to registers so far come before the products that follow."""
        self.fences[warp.index] = warp.issued

    def _refuse_unfenced(self, warp: Warp, registers: Registers, used: dict[Storage, int]) -> None:
        """used: the number of the instruction that last did to registers what must not follow the last fence."""
        if used.get(registers.storage, 0) >= self.fences.get(warp.index, 0):
            warp.fail("wgmma", f"multiplies with {registers!r}, which other instructions have used since the last "
                      "wgmma.fence")  # fmt: skip

    def commit(self, warp: Warp) -> None:
        groups = self.groups.setdefault(warp.index, _Groups())
        groups.committed.append(groups.open)
        groups.open = []

    def wait(self, warp: Warp, left: int) -> Wait:
        """Until at most `left` of this warp's newest groups are pending."""
        groups = self.groups.setdefault(warp.index, _Groups())
        cut = len(groups.committed) - left
        waited = [entry for group in groups.committed[: max(cut, 0)] for entry in group]
        own = warp.index % WARPS
        if self.block.recorder:
            self.block.recorder.await_parts(warp, waited, WARPS)

        def passed() -> None:
            self._release(warp, groups, waited)
            for entry in waited:
                warp.clock.acquire(entry.done[own])

        return Wait(
            lambda: all(own in entry.done for entry in waited),
            lambda: f"{sum(own not in e.done for e in waited)} wgmma in flight",
            passed,
        )

    def _release(self, warp: Warp, groups: _Groups, waited: list[_Entry]) -> None:
        """Give this warp its accumulators back, unless a later product holds them too."""
        groups.committed = [g for g in groups.committed if not all(e in waited for e in g)]
        held = [e for g in [*groups.committed, groups.open] for e in g]
        own = warp.index % WARPS
        still = {(id(r.storage), index) for e in held for r in e.held(own) for index in r.indices}
        for registers in (r for entry in waited for r in entry.held(own)):
            storage, indices = registers.storage, registers.indices
            warp.unlock(Registers(storage, tuple(i for i in indices if (id(storage), i) not in still)))

    def _perform(self, action: Action, entry: _Entry, part: int) -> None:
        product, (warp, accumulator) = entry.product, entry.parts[part]
        if product.a is None:
            a = _row_bytes(entry.rows[part].values)
        else:
            rows = operand_addresses(product.a, 64, product.a_major)[16 * part : 16 * part + 16]
            a = self.block.shared.read(rows, action, ASYNC)
        b = self.block.shared.read(operand_addresses(product.b, product.n, product.b_major), action, ASYNC)
        a, b = (x.view(f"u{product.a_format.itemsize}") for x in (a, b))
        held = warp.values[accumulator.storage][list(accumulator.indices)] if product.accumulate else None
        c = None if held is None else _matrix(_unpacked(held, product.d_format))
        d = wgmma_step(a, b, c, product.a_format, product.b_format, product.d_format)
        warp.deliver(accumulator, _packed(_fragment(d), product.d_format), np.ones(32, bool))
        entry.done[part] = action.clock.release()


@lru_cache(maxsize=4096)
def operand_addresses(descriptor: int, rows: int, major: str = "k") -> np.ndarray:
    """Shared addresses [rows, 32] of the bytes of an operand of one step: 32 bytes of K for each row of M or N.

    Descriptor fields (PTX ISA, "Matrix Descriptor Format"): bits 13:0 start address / 16, 29:16 leading byte offset
    / 16, 45:32 stride byte offset / 16, 51:49 base offset, 63:62 swizzle (0 none, 1 128, 2 64, 3 32 bytes).

    major: "k", or, for elements of 16 bits, "mn" (PTX ISA, "Strides"; the canonical layouts of CUTLASS's
    make_gmma_desc). A line is what the major dimension's neighbours fill: a row of M or N in "k", one of K in "mn".
    Chunk i, of 16 bytes, of line l lies, from the start, at

             no swizzle                                swizzle of `span` bytes, w = span/16
    "k"      l/8 * stride + l%8 * 16 + i * leading     l/8 * stride + l%8 * span + i * 16
    "mn"     l/8 * leading + l%8 * 16 + i * stride     l/8 * stride + l%8 * span + i/w * leading + i%w * 16
    """
    start = (descriptor & 0x3FFF) << 4
    leading = (descriptor >> 16 & 0x3FFF) << 4
    stride = (descriptor >> 32 & 0x3FFF) << 4
    span = (0, 128, 64, 32)[descriptor >> 62]
    line, along = np.arange(rows)[:, None], np.arange(32)[None, :]
    if major == "mn":
        line, along = along // 2, line * 2 + along % 2
    chunk = along // 16
    if span == 0:
        outer, inner = (stride, leading) if major == "k" else (leading, stride)
        return start + line // 8 * outer + line % 8 * 16 + chunk * inner + along % 16
    if major == "k":
        return swizzle(start + line // 8 * stride + line % 8 * span + along, span)
    return swizzle(start + line // 8 * stride + line % 8 * span + along // span * leading + along % span, span)


def _row_bytes(fragment: np.ndarray) -> np.ndarray:
    """A warp's 16 rows of a, bytes [16, 32], from its registers, uint32 [4, 32].

    Byte i of register r of lane t is row t/4 + 8 (r mod 2), byte 16 (r/2) + 4 (t mod 4) + i of K, for elements of 8 and
    of 16 bits alike (PTX ISA, "wgmma.mma_async: register fragments").
    """
    parts = np.ascontiguousarray(fragment).view(np.uint8).reshape(2, 2, 8, 4, 4)  # r / 2, r % 2, lane / 4, lane % 4, i
    return parts.transpose(1, 2, 0, 3, 4).reshape(16, 32)


def _unpacked(registers: np.ndarray, d_format: Format) -> np.ndarray:
    """Accumulators [n/2, 32] from registers: a float32 each, or two float16, the first in the low half."""
    if d_format is not F16:
        return registers
    return np.stack([registers & 0xFFFF, registers >> 16], axis=1).astype(np.uint16).view(np.float16).reshape(-1, 32)


def _packed(fragment: np.ndarray, d_format: Format) -> np.ndarray:
    """Registers from accumulators [n/2, 32]."""
    if d_format is not F16:
        return fragment
    halves = fragment.view(np.uint16).astype(np.uint32)
    return halves[::2] | halves[1::2] << np.uint32(16)


def _fragment(rows: np.ndarray) -> np.ndarray:
    """A warp's accumulators [n/2, 32] from its 16 rows [16, n].

    Accumulator i of lane t is row t/4 + 8 (i/2 mod 2), column 8 (i/4) + 2 (t mod 4) + i mod 2
    (PTX ISA, "wgmma.mma_async: register fragments").
    """
    n = rows.shape[1]
    halves = rows.reshape(2, 8, n // 8, 4, 2)  # half, lane / 4, i / 4, lane % 4, i % 2
    return halves.transpose(2, 0, 4, 1, 3).reshape(n // 2, 32)


def _matrix(fragment: np.ndarray) -> np.ndarray:
    """A warp's 16 rows [16, n] from its accumulators [n/2, 32]."""
    n = fragment.shape[0] * 2
    return fragment.reshape(n // 8, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(16, n)
