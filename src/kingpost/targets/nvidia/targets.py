"""The NVIDIA chips that programs may be for."""

from __future__ import annotations

from kingpost.formats import E4M3
from kingpost.program import Target

SM_90A = Target("sm_90a", lanes=32, float8=E4M3)
