"""The members of the family: for each, operands at one size, and the calls of kingpost and of DeepGEMM on them.

Both get the same memory, in the layouts that DeepGEMM wants: scales of single rows with the rows adjacent, four by
four; groups of rows padded to 128 of them. Where the two cannot share (FP8 grouped over K, which DeepGEMM takes with
each group's matrix behind the last one's), the values are the same. Sizes are those of DeepGEMM's own benchmarks.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from harness import Call
from torch import Tensor

import kingpost as kp

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
SIZE = {"fp8": 1, "bf16": 2}  # bytes of an operand's element
GROUP_ROWS = 128  # what DeepGEMM pads a group's rows to
ROOM = 4096  # rows that a group has room for, where the number in use is read on the device


@dataclass(frozen=True)
class Work:
    """One set of operands and the calls that multiply them. result: what of `out` the product must write."""

    out: Tensor
    kingpost: Call
    deepgemm: Call
    result: Callable[[], Tensor]


@dataclass(frozen=True)
class Case:
    """A member at one size. bytes: what a call has to move, scales aside. make: a new set of operands."""

    member: str
    sizes: dict[str, Any]
    flop: float
    bytes: float
    make: Callable[[Source], Work]

    def __str__(self) -> str:
        return f"{self.member:<22} " + " ".join(f"{name} {size}" for name, size in self.sizes.items())


@dataclass(frozen=True)
class Source:
    """Where operands come from: random normal ones on a device, or, where nothing is multiplied, memory as it is."""

    device: str
    random: bool = True

    def empty(self, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
        if not self.random:
            return torch.empty(shape, device=self.device, dtype=dtype)
        return torch.full(shape, float("nan"), device=self.device, dtype=dtype)

    def normal(self, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype) if self.random else self.empty(*shape, dtype=dtype)

    def scaled(self, *shape: int, scaling: str) -> kp.ScaledTensor:
        if self.random:
            t = kp.quantize(self.normal(*shape), scaling)
            return kp.ScaledTensor(t.data, rows_adjacent(t.scales), scaling) if scaling == "1x128" else t
        *batch, rows, columns = shape
        high, wide = (1, 128) if scaling == "1x128" else (128, 128)
        scales = torch.ones(*batch, -(-rows // high), -(-columns // wide), device=self.device)
        if high == 1:
            scales = rows_adjacent(scales)
        return kp.ScaledTensor(self.empty(*shape, dtype=FP8), scales, scaling)

    def integers(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self.device, dtype=torch.int32)


def rows_adjacent(scales: Tensor) -> Tensor:
    """The same scales [..., M, B], in memory [..., B, M rounded up to 4]."""
    *batch, rows, blocks = scales.shape
    pitch = -(-rows // 4) * 4
    return scales.new_empty(*batch, blocks, pitch)[..., :rows].mT.copy_(scales)


def pair(t: kp.ScaledTensor) -> tuple[Tensor, Tensor]:
    return t.data, t.scales


def deepgemm(name: str) -> Callable[..., Any]:
    """DeepGEMM's function of that name."""
    import deep_gemm

    return getattr(deep_gemm, name)


def dense_fp8(m: int, n: int, k: int) -> Case:
    """ "1x128" times "128x128", into bfloat16."""

    def make(new: Source) -> Work:
        a, w = new.scaled(m, k, scaling="1x128"), new.scaled(n, k, scaling="128x128")
        d = new.empty(m, n)
        theirs = deepgemm("fp8_gemm_nt")
        return Work(d, lambda: kp.mm(a, w.T, out=d), lambda: theirs(pair(a), pair(w), d), lambda: d)

    return Case("dense fp8", {"m": m, "n": n, "k": k}, 2.0 * m * n * k, m * k + n * k + 2 * m * n, make)


def gradient_fp8(m: int, n: int, k: int) -> Case:
    """ "1x128" times "1x128", added to float32: the gradient of a weight."""

    def make(new: Source) -> Work:
        a, b = new.scaled(m, k, scaling="1x128"), new.scaled(n, k, scaling="1x128")
        d = new.normal(m, n, dtype=F32)
        theirs = deepgemm("fp8_gemm_nt")
        return Work(
            d,
            lambda: kp.mm(a, b.T, c=d, out=d),
            lambda: theirs(pair(a), pair(b), d, c=d, recipe=(1, 1, 128)),
            lambda: d,
        )

    return Case("gradient fp8", {"m": m, "n": n, "k": k}, 2.0 * m * n * k, m * k + n * k + 8 * m * n, make)


def dense_bf16(layout: str, m: int, n: int, k: int, dtype: torch.dtype = BF16, add: bool = False) -> Case:
    """layout: "nt", "nn" or "tn", a and then b as BLAS names them: kept as [M, K] or, "t", [K, M]; [K, N] or [N, K]."""

    def make(new: Source) -> Work:
        a = new.normal(m, k) if layout[0] == "n" else new.normal(k, m)
        b = new.normal(k, n) if layout[1] == "n" else new.normal(n, k)
        d = new.normal(m, n, dtype=dtype) if add else new.empty(m, n, dtype=dtype)
        c = d if add else None
        ours = a if layout[0] == "n" else a.T, b if layout[1] == "n" else b.T
        theirs = deepgemm(f"bf16_gemm_{layout}")
        return Work(d, lambda: kp.mm(*ours, c=c, out=d), lambda: theirs(a, b, d, c=c), lambda: d)

    sizes = {"m": m, "n": n, "k": k, "into": ("bf16" if dtype is BF16 else "f32") + " added" * add}
    moved = 2 * (m * k + n * k) + (1 + add) * dtype.itemsize * m * n
    return Case(f"dense bf16 {layout}", sizes, 2.0 * m * n * k, moved, make)


def group_sizes(groups: int, expected: int) -> list[int]:
    """0.7 to 1.3 of what is expected of each, the same every time."""
    draw = random.Random(f"{groups} {expected}")
    return [int(expected * draw.uniform(0.7, 1.3)) for _ in range(groups)]


def padded(size: int) -> int:
    return -(-size // GROUP_ROWS) * GROUP_ROWS


def group_operands(
    new: Source, format: str, a_shape: tuple[int, ...], groups: int, n: int, k: int, layout: str
) -> tuple[Any, Any, Any, Any]:
    """a and b [G, K, N] as kingpost takes them, and both as DeepGEMM does."""
    if format == "fp8":
        a, w = new.scaled(*a_shape, scaling="1x128"), new.scaled(groups, n, k, scaling="128x128")
        return a, w.mT, pair(a), pair(w)
    a, w = new.normal(*a_shape), new.normal(groups, *((n, k) if layout == "nt" else (k, n)))
    return a, w.mT if layout == "nt" else w, a, w


def grouped(format: str, by: str, groups: int, expected: int, n: int, k: int, layout: str = "nt") -> Case:
    """by: "rows", an index for each row, or "ends" of the groups, both on the device. layout: of b, as dense_bf16's."""
    sizes = group_sizes(groups, expected)
    rooms = [padded(size) for size in sizes]
    if by == "ends":
        sizes = rooms
    m = sum(rooms)

    def make(new: Source) -> Work:
        a, b, their_a, their_b = group_operands(new, format, (m, k), groups, n, k, layout)
        d = new.empty(m, n)
        theirs = deepgemm(f"m_grouped_{format}_gemm_{layout}_contiguous")
        if by == "ends":
            ends = new.integers(list(itertools.accumulate(sizes)))
            return Work(
                d,
                lambda: kp.grouped_mm(a, b, ends=ends, out=d),
                lambda: theirs(their_a, their_b, d, ends, use_psum_layout=True),
                lambda: d,
            )
        rows = new.integers([g if i < size else -1 for g, size in enumerate(sizes) for i in range(rooms[g])])
        return Work(
            d,
            lambda: kp.grouped_mm(a, b, rows=rows, out=d),
            lambda: theirs(their_a, their_b, d, rows),
            lambda: d[rows >= 0],
        )

    return Case(
        f"grouped {by} {format}" + " nn" * (layout == "nn"),
        {"groups": groups, "expected": expected, "m": sum(sizes), "n": n, "k": k},
        2.0 * sum(sizes) * n * k,
        SIZE[format] * (sum(sizes) * k + groups * n * k) + 2 * sum(sizes) * n,
        make,
    )


def grouped_counts(format: str, groups: int, expected: int, n: int, k: int) -> Case:
    """The first counts[g] of each group's rows, counts on the device."""
    counts = group_sizes(groups, expected)
    hint = int(1.2 * expected) if format == "fp8" else expected  # as DeepGEMM's own benchmarks hint

    def make(new: Source) -> Work:
        a, b, their_a, their_b = group_operands(new, format, (groups, ROOM, k), groups, n, k, "nt")
        on_device, d = new.integers(counts), new.empty(groups, ROOM, n)
        theirs = deepgemm(f"m_grouped_{format}_gemm_nt_masked")
        return Work(
            d,
            lambda: kp.grouped_mm(a, b, counts=on_device, expected=hint, out=d),
            lambda: theirs(their_a, their_b, d, on_device, hint),
            lambda: torch.cat([d[g, :count] for g, count in enumerate(counts)]),
        )

    m = sum(counts)
    return Case(
        f"grouped counts {format}",
        {"groups": groups, "expected": expected, "m": m, "n": n, "k": k},
        2.0 * m * n * k,
        SIZE[format] * (m * k + groups * n * k) + 2 * m * n,
        make,
    )


def grouped_k(format: str, groups: int, m: int, n: int, expected: int) -> Case:
    """Added to float32: the gradients of the groups' weights."""
    sizes = [padded(size) for size in group_sizes(groups, expected)]
    ends, k = list(itertools.accumulate(sizes)), sum(sizes)

    def make(new: Source) -> Work:
        d = new.normal(groups, m, n, dtype=F32)
        our_ends, their_sizes = new.integers(ends), new.integers(sizes)
        if format == "fp8":
            plain = (new.scaled(rows, k, scaling="1x128") for rows in (m, n))
            a, b = (kp.ScaledTensor(t.data, t.scales, "1x128", our_ends) for t in plain)
            flat = [
                (torch.cat([t.data[:, end - size : end].flatten() for size, end in zip(sizes, ends)]), t.scales)
                for t in (a, b)
            ]
            name, ours, theirs = "k_grouped_fp8_gemm_nt_contiguous", (a, b.T), flat
        else:
            rows_of_k = new.normal(k, m), new.normal(k, n)
            name, ours, theirs = "k_grouped_bf16_gemm_tn_contiguous", (rows_of_k[0].T, rows_of_k[1]), rows_of_k
        call = deepgemm(name)
        return Work(
            d,
            lambda: kp.grouped_mm_k(*ours, ends=our_ends, c=d, out=d),
            lambda: call(*theirs, d, sizes, their_sizes, d),
            lambda: d,
        )

    return Case(
        f"grouped k {format}",
        {"groups": groups, "m": m, "n": n, "k": k},
        2.0 * m * n * k,
        SIZE[format] * (m * k + n * k) + 8 * groups * m * n,
        make,
    )


def heads_out(format: str, b: int, h: int, r: int, d: int) -> Case:
    """ "bhr,hdr->bhd"."""

    def make(new: Source) -> Work:
        z = new.empty(b, h, d)
        expression = "bhr,hdr->bhd"
        if format == "bf16":
            x, y = new.normal(b, h, r), new.normal(h, d, r + 128)[:, :, :r]
            theirs = deepgemm("einsum")
            return Work(
                z,
                lambda: kp.einsum(expression, x, y, out=z),
                lambda: theirs(expression, x, y, z),
                lambda: z,
            )
        by_head = new.scaled(h, b, r, scaling="1x128")  # for each head its rows are adjacent in the scales
        q = kp.ScaledTensor(by_head.data.transpose(0, 1).contiguous(), by_head.scales.transpose(0, 1), "1x128")
        w = new.scaled(h, d, r, scaling="128x128")
        theirs = deepgemm("fp8_einsum")
        return Work(
            z,
            lambda: kp.einsum(expression, q, w, out=z),
            lambda: theirs(expression, pair(q), pair(w), z),
            lambda: z,
        )

    moved = SIZE[format] * (b * h * r + h * d * r) + 2 * b * h * d
    return Case(f"bhr,hdr->bhd {format}", {"b": b, "h": h, "r": r, "d": d}, 2.0 * b * h * r * d, moved, make)


def heads_in(b: int, h: int, r: int, d: int) -> Case:
    """ "bhd,hdr->bhr"."""

    def make(new: Source) -> Work:
        x, y = new.normal(b, h, d), new.normal(h, d, r + 128)[:, :, :r]
        z = new.empty(b, h, r)
        expression, theirs = "bhd,hdr->bhr", deepgemm("einsum")
        return Work(
            z,
            lambda: kp.einsum(expression, x, y, out=z),
            lambda: theirs(expression, x, y, z),
            lambda: z,
        )

    moved = 2 * (b * h * d + h * d * r + b * h * r)
    return Case("bhd,hdr->bhr bf16", {"b": b, "h": h, "r": r, "d": d}, 2.0 * b * h * r * d, moved, make)


def summed(b: int, m: int, n: int, k: int, dtype: torch.dtype) -> Case:
    """ "bmk,bnk->mn", added to float32, or into bfloat16."""

    def make(new: Source) -> Work:
        x, y = new.normal(b, m, k), new.normal(b, n, k)
        z = new.normal(m, n, dtype=dtype)
        c = z if dtype is F32 else None
        expression, theirs = "bmk,bnk->mn", deepgemm("einsum")
        return Work(
            z,
            lambda: kp.einsum(expression, x, y, c=c, out=z),
            lambda: theirs(expression, x, y, z, c=c),
            lambda: z,
        )

    sizes = {"b": b, "m": m, "n": n, "k": k, "into": "bf16" if dtype is BF16 else "f32 added"}
    return Case("bmk,bnk->mn bf16", sizes, 2.0 * b * m * n * k, 2 * b * (m * k + n * k), make)


NK = ((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
GROUPED_NK = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
DENSE = (
    *((1, *NK[i]) for i in (0, 4, 5)),
    *((16, *NK[i]) for i in (1, 2)),
    *((64, *NK[i]) for i in (3, 5, 6)),
    *((128, *NK[i]) for i in (0, 4)),
    *((512, *NK[i]) for i in (2, 5)),
    *((4096, *NK[i]) for i in (1, 3, 4, 5)),
)
LISTS: tuple[list[Case], ...] = (
    [dense_fp8(*each) for each in DENSE],
    [gradient_fp8(n, 4096, k) for n, k in NK],
    [dense_bf16("nt", *each) for each in ((1, *NK[5]), (64, *NK[4]), (128, *NK[0]), (4096, *NK[5]), (4096, *NK[4]))],
    [dense_bf16("nt", 128, 256, 7168, F32), dense_bf16("nt", 4096, *NK[6], add=True)],
    [dense_bf16("nn", 4096, k, n) for n, k in (NK[1], NK[5], NK[6])],
    [dense_bf16("tn", n, 4096, k, F32, add=True) for n, k in (NK[0], NK[5], NK[6])],
    [grouped("fp8", "rows", *g, *nk) for g, nk in zip(((4, 8192), (8, 4096)) * 2, GROUPED_NK)],
    [grouped("fp8", "ends", *g, *nk) for g, nk in zip(((8, 4096), (4, 8192)) * 2, GROUPED_NK)],
    [grouped("bf16", "rows", *g, *nk) for g, nk in zip(((4, 8192), (8, 4096)), GROUPED_NK[::3])],
    [grouped("bf16", "ends", 8, 4096, *GROUPED_NK[1]), grouped("bf16", "rows", 8, 4096, *GROUPED_NK[2], "nn")],
    [grouped_counts("fp8", *g, *nk) for nk in GROUPED_NK for g in ((32, 192), (6, 1024), (32, 20), (6, 20))],
    [grouped_counts("bf16", *g, *nk) for nk in GROUPED_NK[::2] for g in ((32, 192), (6, 1024), (32, 20), (6, 20))],
    [grouped_k("fp8", *each) for each in ((4, 4096, 7168, 8192), (8, 7168, 2048, 4096), (16, 4096, 7168, 2048))],
    [grouped_k("bf16", *each) for each in ((4, 7168, 2048, 8192), (8, 4096, 7168, 4096))],
    [heads_out("fp8", b, 8, 4096, 1024) for b in (4, 128, 4096)],
    [heads_out("bf16", b, *hrd) for b, hrd in zip((32, 128, 4096), ((128, 512, 128), (8, 4096, 1024)) * 2)],
    [heads_in(b, *hrd) for b, hrd in zip((32, 128, 4096), ((8, 4096, 1024), (128, 512, 128)) * 2)],
    [summed(129, 128, 384, 128, F32), summed(4096, 256, 256, 256, F32), summed(8192, 384, 128, 384, BF16)],
)
# The first size of every member, then the second of each: what a short run leaves out are sizes, not members.
CASES = [case for cases in itertools.zip_longest(*LISTS) for case in cases if case is not None]
