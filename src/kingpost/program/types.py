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

    def number(self, value: int | float) -> int | float | None:
        """`value` as an immediate of this type, rounded if it is a float's; None if the type cannot hold it."""
        if not isinstance(value, (int, float)) or isinstance(value, bool) or self.dtype.kind == "b":
            return None
        try:
            if self.dtype.kind == "f":
                rounded = float(self.dtype.type(value))
                return None if np.isinf(rounded) and not np.isinf(value) else rounded
            limits = np.iinfo(self.dtype)
            return value if isinstance(value, int) and limits.min <= value <= limits.max else None
        except OverflowError:
            return None


u32 = Type("u32", 32, np.dtype(np.uint32))
s32 = Type("s32", 32, np.dtype(np.int32))
u64 = Type("u64", 64, np.dtype(np.uint64))
f32 = Type("f32", 32, np.dtype(np.float32))
pred = Type("pred", 1, np.dtype(np.bool_))
