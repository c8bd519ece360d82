"""The AMD chips that programs may be for."""

from __future__ import annotations

from kingpost.formats import E4M3, E4M3FNUZ
from kingpost.program import Target

GFX942 = Target("gfx942", lanes=64, float8=E4M3FNUZ)
GFX950 = Target("gfx950", lanes=64, float8=E4M3)
