"""Small kernels to weaken: one for Hopper, one for CDNA3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kingpost.arrays import view
from kingpost.checker.cases import Case, Trial
from kingpost.formats import E4M3FNUZ, F32
from kingpost.program import Builder, Launch, f32, u32
from kingpost.targets.amd.arithmetic import matrix_product
from kingpost.targets.amd.kernels.cdna3_fp8_one_wave import SIDE, cdna3_fp8_one_wave
from kingpost.targets.nvidia.isa.common import (
    bulk_commit,
    bulk_load_2d,
    bulk_store_2d,
    bulk_wait_read,
    elect,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
    named_barrier,
)

ROWS, COLUMNS, WARPS = 8, 32, 2
PIECES = 4  # one after another, through one buffer


def doubling(k: Builder) -> None:
    """d = 2 x, [32, 32] float32: bulk copies of 8 rows in and out of shared memory; two warps double a half each."""
    x, d = (k.tensor_map(name, F32, (ROWS, COLUMNS), swizzle=128) for name in ("x", "d"))
    buffer = k.shared("buffer", (ROWS, COLUMNS), F32, swizzle=128)
    full = k.shared_barriers("full", 2).at(0)
    k.warps(WARPS)
    with k.when(k.warp == 0), k.mask(elect(k)):
        mbarrier_init(k, full, count=1)
        fence_mbarrier_init(k)
    k.barrier()
    with k.loop(PIECES) as piece:
        with k.when(k.warp == 0), k.mask(k.lane == 0):
            mbarrier_arrive_expect(k, full, bytes=buffer.bytes)
            bulk_load_2d(k, buffer.at(0), x.register, piece * ROWS, 0, full, type=x.type)
        mbarrier_wait(k, full, piece % 2)
        for row in range(ROWS // WARPS):
            at = buffer.at(row) + k.warp * (buffer.bytes // WARPS) + k.lane * 4
            k.store(at, k.load(f32, at) * 2.0)
        fence_proxy_async(k)
        named_barrier(k, k.new(u32, 1), threads=32 * WARPS)
        with k.when(k.warp == 0), k.mask(k.lane == 0):
            bulk_store_2d(k, d.register, piece * ROWS, 0, buffer.at(0), type=d.type)
            bulk_commit(k)
            bulk_wait_read(k, groups=0)


def hopper(body: Callable[[Builder], Any] = doubling) -> Case:
    """A kernel that doubles x, written anew for each trial."""
    x = np.arange(PIECES * ROWS * COLUMNS, dtype=np.float32).reshape(-1, COLUMNS)

    def make() -> Trial:
        k, d = Builder("doubling", "sm_90a"), np.full_like(x, np.nan)
        body(k)
        launch = Launch.of(k.finish({}), 1, x=view(x), d=view(d))
        return Trial(launch, lambda: None if (d == 2 * x).all() else f"{(d != 2 * x).sum()} values are wrong")

    return Case("doubling", "doubling", "sm_90a", make)


def cdna3(depth: int = 64) -> Case:
    """The product of one wave."""
    random = np.random.default_rng(0)
    a, b = (random.integers(0, 0x78, (SIDE, depth)).astype(np.uint8).view(E4M3FNUZ.dtype) for _ in range(2))
    wanted = matrix_product("gfx942", a, b, np.zeros((SIDE, SIDE), np.float32))

    def make() -> Trial:
        c = np.full((SIDE, SIDE), np.nan, np.float32)
        launch = Launch.of(cdna3_fp8_one_wave(), 1, a=view(a), b=view(b), c=view(c), k=depth)
        return Trial(launch, lambda: None if c.tobytes() == wanted.tobytes() else "other bits")

    return Case("one wave", "cdna3_fp8_one_wave", "gfx942", make)
