"""Random operands of a product on a GPU, in several copies, and the implementations that multiply them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from harness import copies

import kingpost as kp


@dataclass(frozen=True)
class Product:
    """One product [m, k] @ [k, n]: for each set, a quantised "1x128", a weight quantised "128x128", and a result."""

    m: int
    n: int
    k: int
    sets: tuple[tuple[kp.ScaledTensor, kp.ScaledTensor, Any], ...]

    @property
    def flop(self) -> float:
        return 2.0 * self.m * self.n * self.k


def product(m: int, n: int, k: int, seed: int = 0) -> Product:
    """Random normal operands; scales of `a` with rows adjacent in memory, as serving frameworks write them."""
    torch.manual_seed(seed)
    sets = []
    for _ in range(copies(m * k + n * k + 2 * m * n)):
        a = kp.quantize(torch.randn(m, k, device="cuda", dtype=torch.bfloat16), "1x128")
        pitch = -(-m // 4) * 4
        scales = torch.empty(a.scales.shape[1], pitch, device="cuda").T[:m]
        scales.copy_(a.scales)
        w = kp.quantize(torch.randn(n, k, device="cuda", dtype=torch.bfloat16), "128x128")
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        sets.append((kp.ScaledTensor(a.data, scales, "1x128"), w, out))
    return Product(m, n, k, tuple(sets))


def kingpost_calls(p: Product) -> list[Callable[[], Any]]:
    return [lambda a=a, w=w, out=out: kp.mm(a, w.T, out=out) for a, w, out in p.sets]


def torch_tensorwise_calls(p: Product) -> list[Callable[[], Any]]:
    """torch._scaled_mm, one scale a tensor, fast accumulation: coarser scales, no promotion."""
    one = torch.ones((), device="cuda")
    return [
        lambda a=a, w=w: torch._scaled_mm(
            a.data, w.data.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        for a, w, _ in p.sets
    ]


def worst_error(p: Product) -> float:
    """The largest relative error of a set's result against float32, in the norm."""
    worst = 0.0
    for a, w, out in p.sets[:2]:
        out.fill_(float("nan"))
        kp.mm(a, w.T, out=out)
        truth = kp.dequantize(a) @ kp.dequantize(w).T
        worst = max(worst, ((out.float() - truth).norm() / truth.norm()).item())
    return worst
