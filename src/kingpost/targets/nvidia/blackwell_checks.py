"""Blackwell's kernels with small operands: the one-tile products, to the bits of the tensor core's arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kingpost.arrays import view
from kingpost.formats import BF16, E4M3, E5M2, F16, Format, decode
from kingpost.program import Launch, Program
from kingpost.registry import Case, Trial
from kingpost.targets.nvidia.blackwell_arithmetic import tcgen05_f32
from kingpost.targets.nvidia.kernels.sm100_one_tile import ROWS, sm100_f8, sm100_f16, sm100_mxf8
from kingpost.targets.samples import difference


@dataclass(frozen=True)
class OneTile:
    """A kernel, one of its configurations, and the formats of its operands."""

    kernel: Callable[..., Program]
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
        return f"{self.a_format} by {self.b_format}, {self.columns} columns, {self.blocks} blocks"

    def trial(self) -> Trial:
        launch, d, wanted = self.launch()
        return Trial(launch, lambda: difference(d, wanted))

    def launch(self, seed: int = 0) -> tuple[Launch, np.ndarray, np.ndarray]:
        """A launch on random codes and scales, the array that it writes, and what must be there."""
        random = np.random.default_rng(seed)
        depth = self.blocks * 128 // self.a_format.itemsize
        a, b = codes(random, ROWS, depth, self.a_format), codes(random, self.columns, depth, self.b_format)
        d = np.full((ROWS, self.columns), np.nan, np.float32)
        views = {"a": view(a.view(self.a_format.dtype)), "b": view(b.view(self.b_format.dtype)), "d": view(d)}
        scales: list[np.ndarray] = []
        if self.kernel is sm100_mxf8:
            scales = [random.integers(100, 150, (rows, depth // 32)).astype(np.uint8) for rows in (ROWS, self.columns)]
            views |= {"scale_a": view(scales[0]), "scale_b": view(scales[1])}
        wanted = tcgen05_f32(a, b, None, self.a_format, self.b_format, *scales)
        return Launch.of(self.program, 1, **views), d, wanted


ONE_TILE = (
    OneTile(sm100_f16, 128, 1, BF16, BF16),
    OneTile(sm100_f16, 32, 2, F16, F16),
    OneTile(sm100_f8, 128, 2, E4M3, E4M3),
    OneTile(sm100_f8, 16, 1, E5M2, E4M3),
    OneTile(sm100_mxf8, 128, 1, E4M3, E4M3),
    OneTile(sm100_mxf8, 48, 2, E4M3, E5M2),
)


def cases() -> list[Case]:
    """The kernels made for sm_100a."""
    return [Case(f"{each.kernel.__name__}: {each}", each.kernel.__name__, "sm_100a", each.trial) for each in ONE_TILE]


def codes(random: np.random.Generator, rows: int, depth: int, format: Format) -> np.ndarray:
    """Any finite codes [rows, depth]."""
    found = random.integers(0, 1 << format.bits, (rows, depth)).astype(f"u{format.itemsize}")
    return np.where(np.isfinite(decode(found, format)), found, 0).astype(found.dtype)
