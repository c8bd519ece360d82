"""The wgmma queue: a warpgroup's asynchronous matrix products, performed in order (PTX ISA, "wgmma")."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np

from kingpost.emulate import ASYNC, Action, Block, Wait, Warp
from kingpost.emulate.order import Knowledge
from kingpost.formats import Format
from kingpost.program import Registers, Source, swizzle
from kingpost.targets.nvidia.arithmetic import wgmma_f32

WARPS = 4  # in a warpgroup


@dataclass(frozen=True)
class Product:
    """d[64, n] = a[64, step] b[n, step]^T (+ d): shared-memory descriptors, formats and majors of a wgmma."""

    n: int
    a: int
    b: int
    accumulate: bool
    a_format: Format
    b_format: Format
    a_major: str = "k"
    b_major: str = "k"


@dataclass(eq=False)
class _Entry:
    product: Product
    source: Source | None
    parts: dict[int, tuple[Warp, Registers]] = field(default_factory=dict)  # by warp of the warpgroup
    issuers: dict[int, Knowledge] = field(default_factory=dict)  # what each warp knew when it issued its part
    done: dict[int, Knowledge] = field(default_factory=dict)  # by warp whose rows are there: what its wait teaches


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

    def issue(self, warp: Warp, product: Product, accumulator: Registers) -> None:
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
            self._refuse_unfenced(warp, accumulator)
            if product.accumulate:
                warp.read(accumulator)  # the products start from registers that must hold something
        warp.lock(accumulator, "a wgmma in flight")
        entry.parts[part] = (warp, accumulator)
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

    def _refuse_unfenced(self, warp: Warp, accumulator: Registers) -> None:
        fenced, touched = self.fences.get(warp.index, 0), warp.touched.get(accumulator.storage, 0)
        if touched >= fenced:
            warp.fail("wgmma", f"multiplies into {accumulator!r}, which other instructions have used since the last "
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
        still = {(id(e.parts[own][1].storage), index) for e in held for index in e.parts[own][1].indices}
        for entry in waited:
            storage, indices = entry.parts[own][1].storage, entry.parts[own][1].indices
            warp.unlock(Registers(storage, tuple(i for i in indices if (id(storage), i) not in still)))

    def _perform(self, action: Action, entry: _Entry, part: int) -> None:
        product, (warp, accumulator) = entry.product, entry.parts[part]
        rows = operand_addresses(product.a, 64, product.a_major)[16 * part : 16 * part + 16]
        a, b = (
            self.block.shared.read(addresses, action, ASYNC).view(f"u{product.a_format.itemsize}")
            for addresses in (rows, operand_addresses(product.b, product.n, product.b_major))
        )
        held = warp.values[accumulator.storage][list(accumulator.indices)] if product.accumulate else None
        d = wgmma_f32(a, b, None if held is None else _matrix(held), product.a_format, product.b_format)
        warp.deliver(accumulator, _fragment(d), np.ones(32, bool))
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


def _fragment(rows: np.ndarray) -> np.ndarray:
    """A warp's accumulator registers [n/2, 32] from its 16 rows [16, n].

    Register i of lane t holds row t/4 + 8 (i/2 mod 2), column 8 (i/4) + 2 (t mod 4) + i mod 2
    (PTX ISA, "wgmma.mma_async: register fragments").
    """
    n = rows.shape[1]
    halves = rows.reshape(2, 8, n // 8, 4, 2)  # half, lane / 4, i / 4, lane % 4, i % 2
    return halves.transpose(2, 0, 4, 1, 3).reshape(n // 2, 32)


def _matrix(fragment: np.ndarray) -> np.ndarray:
    """A warp's 16 rows [16, n] from its registers [n/2, 32]."""
    n = fragment.shape[0] * 2
    return fragment.reshape(n // 8, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(16, n)
