"""Launches of the one-tile products of Blackwell on random operands, and what the arithmetic model gives for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kingpost.arrays import view
from kingpost.formats import BF16, E4M3, E5M2, F16, Format, decode
from kingpost.program import Launch, Program
from kingpost.targets.nvidia.blackwell_arithmetic import tcgen05_f32
from kingpost.targets.nvidia.kernels.sm100_one_tile import ROWS, sm100_f8, sm100_f16, sm100_mxf8


@dataclass(frozen=True)
class Case:
    """A kernel, one of its configurations, and the formats of its operands."""

    kernel: Any
    columns: int
    blocks: int
    a_format: Format
    b_format: Format

    @property
    def program(self) -> Program:
        one_format = self.kernel is sm100_f16
        formats = {"format": self.a_format} if one_format else {"a_format": self.a_format, "b_format": self.b_format}
        return self.kernel(columns=self.columns, blocks=self.blocks, **formats)

    def __str__(self) -> str:
        return f"{self.kernel.__name__}-{self.columns}x{self.blocks}-{self.a_format}-{self.b_format}"


CASES = [
    Case(sm100_f16, 128, 1, BF16, BF16),
    Case(sm100_f16, 32, 2, F16, F16),
    Case(sm100_f8, 128, 2, E4M3, E4M3),
    Case(sm100_f8, 16, 1, E5M2, E4M3),
    Case(sm100_mxf8, 128, 1, E4M3, E4M3),
    Case(sm100_mxf8, 48, 2, E4M3, E5M2),
]


def codes(random: np.random.Generator, rows: int, depth: int, format: Format) -> np.ndarray:
    """Any finite codes [rows, depth]."""
    found = random.integers(0, 1 << format.bits, (rows, depth)).astype(f"u{format.itemsize}")
    return np.where(np.isfinite(decode(found, format)), found, 0).astype(found.dtype)


def launch(case: Case, seed: int = 0) -> tuple[Launch, np.ndarray, np.ndarray]:
    """The launch, the array that it writes, and what must be there."""
    random = np.random.default_rng(seed)
    depth = case.blocks * 128 // case.a_format.itemsize
    a, b = codes(random, ROWS, depth, case.a_format), codes(random, case.columns, depth, case.b_format)
    d = np.full((ROWS, case.columns), np.nan, np.float32)
    views = {"a": view(a.view(case.a_format.dtype)), "b": view(b.view(case.b_format.dtype)), "d": view(d)}
    scales: list[np.ndarray] = []
    if case.kernel is sm100_mxf8:
        scales = [random.integers(100, 150, (rows, depth // 32)).astype(np.uint8) for rows in (ROWS, case.columns)]
        views |= {"scale_a": view(scales[0]), "scale_b": view(scales[1])}
    wanted = tcgen05_f32(a, b, None, case.a_format, case.b_format, *scales)
    return Launch.of(case.program, 1, **views), d, wanted
