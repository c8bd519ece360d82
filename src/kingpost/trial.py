"""One product on random operands, tried out: timed, or assembled."""

from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np

import kingpost as kp
from kingpost import assemble, ops, reference, registry

Array = np.ndarray[Any, Any]
OUT_DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}


@dataclass(frozen=True)
class Run:
    """A product computed twice: the wall time of each call, and the largest error as a share of its bound."""

    first_seconds: float
    seconds: float
    error: float


@dataclass(frozen=True)
class Assembled:
    """The program that is chosen for a product: its text, its shared memory in bytes, and its binary."""

    text: str
    shared_bytes: int
    binary: assemble.Binary


class Trial:
    """A product [m, k] @ [k, n] of random operands, scaled "1x128" and "128x128"."""

    def __init__(
        self, m: int, n: int, k: int, out_dtype: str = "bfloat16", seed: int = 0, target: str = "sm_90a"
    ) -> None:
        random = np.random.default_rng(seed)
        a, weight = (random.standard_normal((rows, k), dtype=np.float32) for rows in (m, n))
        # Rows of unlike size, so that a scale taken from the wrong row shows.
        a *= np.exp2(random.integers(-8, 9, (m, 1))).astype(np.float32)
        self.out_dtype, self.seed, self.target = out_dtype, seed, target
        float8 = self.emulator.target.float8
        self.a, self.b = kp.quantize(a, "1x128", format=float8), kp.quantize(weight, "128x128", format=float8).T

    def run(self, device: str) -> Run:
        """Multiply on a device; twice, since the first call may assemble."""
        seconds = []
        for _ in range(2):
            start = perf_counter()
            result = kp.mm(self.a, self.b, out_dtype=self.out_dtype, device=device)
            seconds.append(perf_counter() - start)
        return Run(first_seconds=seconds[0], seconds=seconds[1], error=self.error(result))

    def assemble(self) -> Assembled:
        """Write the target's program for this product as text, and assemble it or find it in the cache."""
        program = ops.launch_mm(self.a, self.b, self.unwritten(), self.emulator).program
        text = self.emulator.text(program)
        return Assembled(text, program.shared_bytes, assemble.build(text, self.target))

    def unwritten(self) -> Array:
        """Memory for the result, all NaN, so that a value that is never stored cannot pass for one."""
        return np.full((self.a.shape[0], self.b.shape[1]), np.nan, OUT_DTYPES[self.out_dtype])

    def error(self, result: Array) -> float:
        """The largest error over what is allowed there; above 1, the result is wrong."""
        error = np.abs(result.astype(np.float64) - self.truth)
        # Where nothing is allowed, no error is a share of 0; a NaN counts as wrong.
        share = np.divide(error, self.bound, out=np.zeros_like(error), where=error != 0)
        return float(np.nan_to_num(share, nan=np.inf).max(initial=0.0))

    @cached_property
    def truth(self) -> Array:
        """The product in float64."""
        return reference.truth(self.a, self.b)

    @cached_property
    def bound(self) -> Array:
        """How far from the truth each value may be."""
        return reference.bound(self.a, self.b, self.out_dtype)

    @cached_property
    def emulator(self) -> registry.EmulatedDevice:
        """The target on a CPU."""
        return registry.emulator(self.target)
