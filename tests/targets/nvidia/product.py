"""Block-scaled products to launch by hand: seeded operands, a configuration's launch, and what must come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from kingpost import ops
from kingpost.formats import Format, converted
from kingpost.program import Launch
from kingpost.registry import Problem
from kingpost.scaling import ScaledTensor
from kingpost.targets.nvidia.arithmetic import promoted_product
from kingpost.targets.nvidia.chip import H200
from kingpost.targets.nvidia.fp8_candidates import TimedTile, candidates
from kingpost.targets.nvidia.parts.block_tile import BlockTile

NAN_CODES = (0x7F, 0xFF)


class Config(NamedTuple):
    """A configuration of the kernel, as a device that offers no other."""

    warpgroups: int
    subtiles: int
    columns: int
    stages: int
    buffers: int
    group: int = 8
    loaded_rows: int = 0

    @property
    def name(self) -> str:
        return str(self)

    def stream(self, given: Any, torch_arrays: bool) -> int:
        return 0

    def candidates(self, problem: Problem) -> Sequence[Any]:
        timed = TimedTile(BlockTile(self.warpgroups, self.subtiles, self.columns, self.loaded_rows), 1, 1)
        any = candidates(problem, H200)[0]
        return [replace(any, timed=timed, stages=self.stages, buffers=self.buffers, group=self.group)]


@dataclass(frozen=True)
class Operands:
    """a: e4m3 [M, K], scale_a: float32 [M, blocks]; b: e4m3 [N, K], scale_b: float32 [block columns, blocks]."""

    a: np.ndarray
    scale_a: np.ndarray
    b: np.ndarray
    scale_b: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.a.shape[0], self.b.shape[0], self.a.shape[1]

    def rows(self, count: int) -> Operands:
        """The product of the first `count` rows of a."""
        return Operands(self.a[:count], self.scale_a[:count], self.b, self.scale_b)

    def scaled(self) -> tuple[ScaledTensor, ScaledTensor]:
        return ScaledTensor(self.a, self.scale_a, "1x128"), ScaledTensor(self.b, self.scale_b, "128x128").T

    def expected(self, out: Format) -> np.ndarray:
        """What the chip gives, bit for bit, by the arithmetic model."""
        columns = np.repeat(self.scale_b, 128, axis=0)[: len(self.b)]
        total = promoted_product(self.a.view(np.uint8), self.scale_a, self.b.view(np.uint8), columns)
        return converted(total, out)


def operands(m: int, n: int, k: int, seed: int = 0, any_code: bool = False) -> Operands:
    """Normally distributed codes (or, with any_code, all but NaN alike) under scales that differ everywhere."""
    random = np.random.default_rng(seed)

    def codes(rows: int) -> np.ndarray:
        if any_code:
            numbers = np.setdiff1d(np.arange(256), NAN_CODES).astype(np.uint8)
            return random.choice(numbers, (rows, k)).view(ml_dtypes.float8_e4m3fn)
        return random.standard_normal((rows, k)).astype(ml_dtypes.float8_e4m3fn)

    def scales(rows: int) -> np.ndarray:
        return random.uniform(0.5, 2, (rows, -(-k // 128))).astype(np.float32)

    return Operands(codes(m), scales(m), codes(n), scales(-(-n // 128)))


def poisoned(operands: Operands, out: Format) -> np.ndarray:
    """A result that holds nothing but NaN: what a launch leaves out shows."""
    m, n, _ = operands.shape
    return np.full((m, n), np.nan, out.dtype)


def launch(config: Config, operands: Operands, d: np.ndarray, grid: int | None = None) -> Launch:
    """The launch that writes the product of `operands` into `d`, by default with one block for each tile."""
    found = ops.launch_mm(*operands.scaled(), d, config)  # type: ignore[arg-type]
    rows, columns = 64 * config.subtiles * config.warpgroups, config.columns
    return replace(found, grid=grid or -(-d.shape[0] // rows) * -(-d.shape[1] // columns))


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "row-major": np.ascontiguousarray,
    "transposed": np.asfortranarray,
    "padded rows": lambda x: _inside(x, (len(x), x.shape[1] + 3), np.s_[:, : x.shape[1]]),
    "padded and transposed": lambda x: _inside(x.T, (x.shape[1], len(x) + 5), np.s_[:, : len(x)]).T,
    "transposed, 16 bytes at a time": lambda x: _inside(x.T, (x.shape[1], -(-len(x) // 4) * 4), np.s_[:, : len(x)]).T,
    "every third, every second": lambda x: _inside(x, (3 * len(x), 2 * x.shape[1]), np.s_[::3, ::2]),
    "one for all": lambda x: np.broadcast_to(x[:1, :1], x.shape),
}
"""Ways for the same scales to lie in memory, by name (the last makes them all alike)."""


def _inside(x: np.ndarray, shape: tuple[int, int], where: tuple[slice, slice]) -> np.ndarray:
    """x as a view of a larger array that holds NaN elsewhere."""
    larger = np.full(shape, np.nan, x.dtype)
    larger[where] = x
    return larger[where]
