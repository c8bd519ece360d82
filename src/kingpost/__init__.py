"""FP8 matrix products at the speed of the hardware, from Python; and for each, what holds it down."""

from typing import TYPE_CHECKING, Any

from kingpost.ops import einsum, grouped_mm, grouped_mm_k, mm, quantize, relayout, silu_mul_quantize
from kingpost.quantization import dequantize, validate
from kingpost.registry import devices
from kingpost.scaling import ScaledTensor

if TYPE_CHECKING:
    from kingpost.checker import check

__version__ = "0.1.0"

__all__ = [
    "ScaledTensor",
    "__version__",
    "check",
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


def __getattr__(name: str) -> Any:
    """`kp.check`, which brings the emulator along, when it is first asked for."""
    if name == "check":
        from kingpost.checker import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
