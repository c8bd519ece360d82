"""What users call."""

from kingpost.ops.einsum import einsum
from kingpost.ops.elementwise import add, dequantize, relayout
from kingpost.ops.grouped import grouped_mm, grouped_mm_k
from kingpost.ops.mm import launch_mm, mm, tile_product
from kingpost.ops.quantize import cast, quantize, silu_mul_quantize

__all__ = [
    "add",
    "cast",
    "dequantize",
    "einsum",
    "grouped_mm",
    "grouped_mm_k",
    "launch_mm",
    "mm",
    "quantize",
    "relayout",
    "silu_mul_quantize",
    "tile_product",
]
