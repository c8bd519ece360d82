"""The types a register can have."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Type:
    """A register type: its name, its width in bits and the numpy type that holds one lane of it."""

    name: str
    bits: int
    dtype: np.dtype = field(repr=False)


u32 = Type("u32", 32, np.dtype(np.uint32))
s32 = Type("s32", 32, np.dtype(np.int32))
u64 = Type("u64", 64, np.dtype(np.uint64))
f32 = Type("f32", 32, np.dtype(np.float32))
pred = Type("pred", 1, np.dtype(np.bool_))
