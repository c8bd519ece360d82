"""The portable tile product on sm_90a: one warpgroup, wgmma on 128-byte-swizzled shared memory."""

from __future__ import annotations

from kingpost.program import Builder, Fragment, SharedArray, f32
from kingpost.targets.nvidia.isa.common import fence_proxy_async
from kingpost.targets.nvidia.isa.hopper import matrix_descriptor, wgmma, wgmma_commit, wgmma_fence, wgmma_wait

WARPS, SWIZZLE, ROWS, STEP = 4, 128, 64, 32  # STEP: elements of K that one wgmma takes


def wgmma_tile(k: Builder, a: SharedArray, b: SharedArray) -> Fragment:
    """a [64, 128] b [columns, 128]^T, e4m3, from zero, columns a multiple of 8 up to 256, in four steps of K.

    Value i of lane t of warp w is row 16 w + t/4 + 8 (i/2 mod 2), column 8 (i/4) + 2 (t mod 4) + i mod 2
    (PTX ISA, "wgmma.mma_async: register fragments").
    """
    (rows, depth), columns = a.shape, b.shape[0]
    if rows != ROWS:
        raise ValueError(f"tile {a.name} has {rows} rows; {ROWS} are wanted")
    fence_proxy_async(k)  # what this thread wrote, the tensor core is to see
    k.barrier()
    values = k.array(f32, columns // 2, "product")
    wgmma_fence(k)
    for step in range(0, depth, STEP):
        a_part, b_part = (matrix_descriptor(k, tile.at(0), offset=step) for tile in (a, b))
        wgmma(k, a_part, b_part, into=values, n=columns, accumulate=step > 0)
    wgmma_commit(k)
    wgmma_wait(k, groups=0)
    k.barrier()
    places = tuple((8 * (i // 2 % 2), 8 * (i // 4) + i % 2) for i in range(len(values)))
    return Fragment(values, k.warp * 16 + k.lane // 4, k.lane % 4 * 2, places)
