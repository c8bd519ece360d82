"""The CPU's product of two operands, as tests ask for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost import formats, scaling
from kingpost.arrays import view
from kingpost.registry import Problem, product_operands
from kingpost.targets import family
from kingpost.targets.cpu.arithmetic import Exact


def product(a, a_scales, a_scaling, b, b_scales, b_scaling, out_format: Any = "bfloat16") -> np.ndarray:  # type: ignore[no-untyped-def]
    """a @ b.T with scales, by the CPU's arithmetic."""
    out, names = formats.named(out_format), [str(scaling.named(name)) for name in (a_scaling, b_scaling)]
    d = np.empty((a.shape[0], b.shape[0]), out.dtype)
    problem = Problem("mm", *b.shape, formats.of(a.dtype), formats.of(b.dtype), *names, out)
    family.solve(problem, product_operands(*map(view, (a, a_scales, b, b_scales, d))), Exact())
    return d
