"""What users call."""

from kingpost.ops.einsum import einsum
from kingpost.ops.elementwise import add, cast, dequantize, relayout, silu_mul_quantize
from kingpost.ops.grouped import grouped_mm, grouped_mm_k
from kingpost.ops.mm import launch_mm, mm, tile_product

__all__ = [
    "add",
    "cast",
    "dequantize",
    "einsum",
    "grouped_mm",
    "grouped_mm_k",
    "launch_mm",
    "mm",
    "relayout",
    "silu_mul_quantize",
    "tile_product",
]
