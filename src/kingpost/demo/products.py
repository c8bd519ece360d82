"""The two ways in which the demo multiplies by a weight: float32 on numpy, and FP8 by kingpost."""

from collections.abc import Iterable, Mapping

import numpy as np

import kingpost as kp

from .bert import Array


def relative_error(x: Array, truth: Array) -> float:
    """The length of the error over the length of the truth."""
    return float(np.linalg.norm(x - truth) / np.linalg.norm(truth))


class Float32Product:
    """The product that the FP8 one is measured against."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights

    def __call__(self, name: str, x: Array) -> Array:
        return x @ self.weights[name].T


class Fp8Product:
    """FP8 operands, a scale for each 1x128 of an activation and each 128x128 of a weight.

    Weights are quantised once, here; `errors` holds each product's relative error against float32 for the same input.
    """

    def __init__(self, weights: Mapping[str, Array], names: Iterable[str], device: str) -> None:
        self.device = device
        self.float32 = Float32Product(weights)
        self.quantized = {name: kp.quantize(weights[name], "128x128") for name in names}
        self.errors: dict[str, float] = {}

    def __call__(self, name: str, x: Array) -> Array:
        y = self.on(self.device, name, x)
        self.errors[name] = relative_error(y, self.float32(name, x))
        return y

    def on(self, device: str, name: str, x: Array) -> Array:
        """The product on a device of the caller's choice, not recorded."""
        return kp.mm(kp.quantize(x, "1x128"), self.quantized[name].T, out_dtype="float32", device=device)
