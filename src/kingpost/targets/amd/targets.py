"""The AMD chips that programs may be for."""

from __future__ import annotations

from kingpost.formats import E4M3, E4M3FNUZ
from kingpost.program import Target
from kingpost.targets.amd.tile import WARPS, tile_product

GFX942 = Target("gfx942", lanes=64, float8=E4M3FNUZ, tile_warps=WARPS, tile_product=tile_product)
GFX950 = Target("gfx950", lanes=64, float8=E4M3, tile_warps=WARPS, tile_product=tile_product)
