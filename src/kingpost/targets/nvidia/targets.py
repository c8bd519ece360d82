"""The NVIDIA chips that programs may be for."""

from __future__ import annotations

from kingpost.formats import E4M3
from kingpost.program import Target
from kingpost.targets.nvidia import blackwell_tile, tile

SM_90A = Target(
    "sm_90a",
    lanes=32,
    float8=E4M3,
    tile_warps=tile.WARPS,
    tile_swizzle=tile.SWIZZLE,
    tile_product=tile.wgmma_tile,
)
SM_100A = Target(
    "sm_100a",
    lanes=32,
    float8=E4M3,
    tile_warps=4,
    tile_swizzle=128,
    tile_product=blackwell_tile.tile_product,
)
