"""e^x and what is made of it, the same bits on every chip: nothing but float32 fma, mul, add, select and bits.

Every function takes `k`, a Builder and registers, or `OnArrays` and float32 arrays: one formula, two readers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost.program import Type, f32, u32
from kingpost.program.operations import portable

LOG2_E, LOG2_E_REST = 1.4426950216293335, 1.925963033500011e-08  # float32 both; their sum is log2(e) to 2^-51
ROUND = 12582912.0  # 1.5 x 2^23: adding it leaves the nearest integer in the low bits
# 2^f on [-1/2, 1/2], highest power first, relative error 2e-9 and 9e-8 (least squares, reweighted to the least maximum)
POWERS_OF_6 = (0.00015353361959569156, 0.0013398875016719103, 0.00961843691766262, 0.055503323674201965,
               0.24022647738456726, 0.6931471824645996, 1.0)  # fmt: skip
POWERS_OF_5 = (0.001326472731307149, 0.009671512991189957, 0.05550733581185341, 0.24022242426872253,
               0.6931470036506653, 1.0)  # fmt: skip
LIMIT = 87.0  # e^x and e^-x are normal numbers up to here
OVERFLOW, UNDERFLOW = 88.72283172607422, -87.33654022216797  # the last x whose e^x is finite; is a normal number
RECIPROCAL = 0x7EF311C7  # less the bits of y: the bits of 1 / y, to within 5.1 %


def exponential(k: Any, x: Any) -> Any:
    """e^x to within 2 units in the last place; 0 where that is below the smallest normal number, NaN for NaN."""
    inside = k.minimum(k.maximum(x, UNDERFLOW), OVERFLOW)
    power = _power(k, inside, (LOG2_E, LOG2_E_REST), POWERS_OF_6)
    power = k.select(x > OVERFLOW, float("inf"), k.select(x < UNDERFLOW, 0.0, power))
    return k.select(x != x, x, power)


def silu(k: Any, x: Any) -> Any:
    """x / (1 + e^-x) to 2^-21, from -16 on (less exact below, where it is small), in 16 steps: what follows is rounded
    to 4 bits. Below -87 it is what it is there, -1.4e-36; NaN for NaN."""
    x = k.select(x < -LIMIT, -LIMIT, x)
    return x * reciprocal(k, _power(k, k.minimum(x, LIMIT), (-LOG2_E,), POWERS_OF_5) + 1.0)


def reciprocal(k: Any, y: Any) -> Any:
    """1 / y for y from 1 to 2^125, to within 2 units in the last place."""
    minus = k.emit_portable("neg", y)
    inverse = k.from_bits(k.emit_portable("sub", RECIPROCAL, k.bits(y)))
    error = k.fused_multiply_add(minus, inverse, 1.0)
    inverse = k.fused_multiply_add(inverse, k.fused_multiply_add(error, error, error), inverse)  # to 1.3e-4
    error = k.fused_multiply_add(minus, inverse, 1.0)
    return k.fused_multiply_add(inverse, error, inverse)  # to 1.7e-8, and its rounding


def _power(k: Any, x: Any, factors: tuple[float, ...], powers: tuple[float, ...]) -> Any:
    """2^(x times the sum of factors), a normal number: 2^(whole + part), that of `part` by a polynomial."""
    rounded = k.fused_multiply_add(x, factors[0], ROUND)
    part = k.emit_portable("sub", ROUND, rounded)
    for factor in factors:
        part = k.fused_multiply_add(x, factor, part)
    power = k.fused_multiply_add(part, powers[0], powers[1])
    for coefficient in powers[2:]:
        power = k.fused_multiply_add(power, part, coefficient)
    return k.from_bits(k.bits(power) + (k.bits(rounded) << 23))  # the integer goes to the exponent


class OnArrays:
    """The part of a Builder that the formulas use, on float32 and uint32 arrays, by the operations' own definitions."""

    def emit_portable(self, name: str, *operands: Any) -> Any:
        type = next(_TYPES[o.dtype.name] for o in operands if isinstance(o, np.ndarray))
        numbers = [o if isinstance(o, np.ndarray) else type.number(o) for o in operands]
        return portable(name, type).does(None, *numbers)

    def fused_multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        return self.emit_portable("fma", a, b, c)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        return np.where(condition, np.float32(a), np.float32(b))

    def minimum(self, a: Any, b: Any) -> Any:
        return self.emit_portable("min", a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.emit_portable("max", a, b)

    def bits(self, x: Any) -> Any:
        return self.emit_portable("bits", x)

    def from_bits(self, x: Any) -> Any:
        return self.emit_portable("from_bits", x)


_TYPES: dict[str, Type] = {type.dtype.name: type for type in (f32, u32)}
