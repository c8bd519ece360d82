"""FP8 matrix products at the speed of the hardware, from Python; and for each, what holds it down."""

from kingpost.ops import einsum, grouped_mm, grouped_mm_k, mm, quantize, relayout, silu_mul_quantize
from kingpost.quantization import dequantize, validate
from kingpost.registry import devices
from kingpost.scaling import ScaledTensor

__version__ = "0.1.0"

__all__ = [
    "ScaledTensor",
    "__version__",
    "dequantize",
    "devices",
    "einsum",
    "grouped_mm",
    "grouped_mm_k",
    "mm",
    "quantize",
    "relayout",
    "silu_mul_quantize",
    "validate",
]
