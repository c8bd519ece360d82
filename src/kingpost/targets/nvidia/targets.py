"""The NVIDIA chips that programs may be for."""

from __future__ import annotations

from kingpost.formats import E4M3
from kingpost.program import Target
from kingpost.targets.nvidia import tile

SM_90A = Target(
    "sm_90a",
    lanes=32,
    float8=E4M3,
    tile_warps=tile.WARPS,
    tile_swizzle=tile.SWIZZLE,
    tile_product=tile.wgmma_tile,
)
