"""Which products of the family each device offers: asked of the devices, for the docs and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kingpost.formats import BF16, E4M3, E4M3FNUZ, E5M2, U8, Format
from kingpost.registry import Device, Elementwise, Problem

N, K = 128, 256  # of the problems asked about; any others that are multiples of 8 and 16 are alike
TRANSPOSE = Elementwise("transpose", (("source", U8), ("destination", U8)))
YES, COPIED, K_ONLY, NO = "any", "copied", "K", "–"


@dataclass(frozen=True)
class Member:
    """A product as users call it, and as a problem: its op, and by what groups are told apart."""

    call: str
    op: str
    by: str | None = None


@dataclass(frozen=True)
class Kind:
    """What is multiplied: formats, "e4m3" standing for the device's own, and scalings of a and of b as [N, K]."""

    a_format: Format
    b_format: Format
    scalings: tuple[str, str] | tuple[None, None] = (None, None)

    def __str__(self) -> str:
        a, b = self.scalings
        if a is None:
            return self.a_format.name
        formats = self.a_format.name if self.a_format is self.b_format else f"{self.a_format} by {self.b_format}"
        return f'{formats}, "{a}" by "{b}"'


MEMBERS = (
    Member("mm(a, b)", "mm"),
    Member("grouped_mm(a, b, rows=)", "grouped_mm", "rows"),
    Member("grouped_mm(a, b, ends=)", "grouped_mm", "ends"),
    Member("grouped_mm(a, b, counts=)", "grouped_mm", "counts"),
    Member("grouped_mm_k(a, b, ends=)", "grouped_mm_k"),
    Member('einsum("bhr,hdr->bhd"), ("bhd,hdr->bhr")', "batched_mm"),
    Member('einsum("bmk,bnk->mn")', "summed_mm"),
)
KINDS = (
    Kind(E4M3, E4M3, ("1x128", "128x128")),
    Kind(E4M3, E4M3, ("1x128", "1x128")),
    Kind(E4M3, E4M3, ("row", "row")),
    Kind(E4M3, E4M3, ("tensor", "tensor")),
    Kind(E4M3, E4M3, ("1x32:ue8m0", "1x32:ue8m0")),
    Kind(E5M2, E5M2, ("1x128", "1x128")),
    Kind(E5M2, E4M3, ("1x128", "128x128")),
    Kind(BF16, BF16),
)


def problem(member: Member, kind: Kind, fnuz: bool = False, majors: tuple[str, str] = ("k", "k")) -> Problem:
    """One of the member's problems. fnuz: e4m3 is e4m3fnuz."""
    a, b = (E4M3FNUZ if fnuz and format is E4M3 else format for format in (kind.a_format, kind.b_format))
    groups = 1 if member.op == "mm" else 2
    (a_scaling, b_scaling), (a_major, b_major) = kind.scalings, majors
    asked = Problem(member.op, N, K, a, b, a_scaling, b_scaling, BF16, by=member.by, groups=groups)
    return replace(asked, a_major=a_major, b_major=b_major)


def offered(device: Device, member: Member, kind: Kind) -> str:
    """YES, with either dimension contiguous; COPIED, those without K contiguous are copied first; K_ONLY; or NO."""
    if member.op == "batched_mm" and "tensor" in kind.scalings:
        return NO  # a scale for several heads lies across planes
    for fnuz in (False, True):
        if not device.candidates(problem(member, kind, fnuz)):
            continue
        scaled = kind.scalings[0] is not None
        if not scaled and device.candidates(problem(member, kind, fnuz, ("mn", "mn"))):
            return YES
        return COPIED if scaled and device.candidates(TRANSPOSE) else K_ONLY
    return NO


def rows(devices: Sequence[Device]) -> list[tuple[str, str, list[str]]]:
    """A member's call, a kind, and what each device offers of it; those that none offers are left out."""
    found = []
    for member in MEMBERS:
        for kind in KINDS:
            cells = [offered(device, member, kind) for device in devices]
            if set(cells) != {NO}:
                found.append((member.call, str(kind), cells))
    return found


def markdown(devices: Sequence[Device]) -> str:
    """The table, as the docs have it."""
    head = ["product", "of", *(device.name for device in devices)]
    lines = [head, ["---"] * len(head), *([f"`{call}`", kind, *cells] for call, kind, cells in rows(devices))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
