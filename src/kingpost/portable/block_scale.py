"""A block's scale and the quotients by it: what `kingpost.quantize` computes, to the bit, with one division a block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kingpost.formats import Format
from kingpost.program import Builder, Register, Registers
from kingpost.quantization import SMALLEST_NORMAL

SMALLEST = 2.0**-80  # from here on, remainders are exact wherever a code is not zero


@dataclass(frozen=True)
class Rounding:
    """How blocks are scaled, apart from `eps`, the floor of their largest magnitude, which is a parameter.

    power_of_two: scales are rounded up to powers of two. small: eps allows scales below `SMALLEST`, zero included.
    reciprocal_maximum, reciprocal_scale: as for `kingpost.quantize`.
    """

    power_of_two: bool
    small: bool
    reciprocal_maximum: bool = False
    reciprocal_scale: bool = False

    @staticmethod
    def of(
        format: Format,
        eps: float = 1e-10,
        power_of_two: bool = False,
        reciprocal_maximum: bool = False,
        reciprocal_scale: bool = False,
    ) -> Rounding:
        assert format.maximum is not None
        if not 0 <= eps < float("inf"):
            raise ValueError(f"eps is {eps}; a finite number of at least 0 is wanted")
        small = bool(np.float32(eps) < SMALLEST * format.maximum)
        return Rounding(bool(power_of_two), small, bool(reciprocal_maximum), bool(reciprocal_scale))


def scale_of(k: Builder, largest: Register, eps: Register, rounding: Rounding) -> Register:
    """The scale of a block: max(largest magnitude, eps) over the largest number that the target's e4m3 holds."""
    assert k.target.float8.maximum is not None
    floored, maximum = k.maximum(largest, eps), k.target.float8.maximum
    if rounding.reciprocal_maximum:
        scale: Register = floored * float(1 / np.float32(maximum))
    else:
        scale = k.emit_portable("div", floored, maximum)
    if rounding.small:
        scale = k.select(scale == 0.0, 1.0, scale)
        if rounding.reciprocal_scale:
            scale = k.maximum(scale, float(SMALLEST_NORMAL))
    if rounding.power_of_two:
        exponent = (k.bits(scale) + 0x7FFFFF) >> 23  # rounded up
        scale = k.from_bits(k.minimum(k.maximum(exponent, 1), 254) << 23)
    return scale


class Divisor:
    """A block's scale, to divide by: each quotient is the nearest float32.

    With the reciprocal to the nearest float32, a quotient is within 1.5 units in the last place; a step with its exact
    remainder brings it within 1, and another to the nearest (Markstein, "Computation of elementary functions on the
    IBM RISC System/6000 processor", 1990). Signs are placed so that zero keeps its own.
    """

    def __init__(self, k: Builder, scale: Register, rounding: Rounding) -> None:
        self.k, self.scale, self.rounding = k, scale, rounding
        if rounding.reciprocal_scale:
            self.inverse = k.emit_portable("div", 1.0, scale)
        elif not rounding.small:
            self.inverse = k.emit_portable("div", 1.0, scale)
            self.minus_inverse = k.emit_portable("neg", self.inverse)

    def divide(self, values: Registers) -> Registers:
        k, rounding = self.k, self.rounding
        if rounding.reciprocal_scale:
            multiplied: Registers = values * self.inverse
            return multiplied
        if rounding.small:
            exact: Registers = k.emit_portable("div", values, self.scale)
            return exact
        quotient: Registers = values * self.inverse
        if not rounding.power_of_two:
            minus_values = k.emit_portable("neg", values)
            for _ in range(2):
                excess = k.fused_multiply_add(self.scale, quotient, minus_values)
                quotient = k.fused_multiply_add(excess, self.minus_inverse, quotient)
        return quotient
