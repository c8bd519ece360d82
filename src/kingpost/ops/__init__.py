"""What users call."""

from kingpost.ops.elementwise import add, cast, dequantize, relayout, silu_mul_quantize
from kingpost.ops.mm import launch_mm, mm, tile_product

__all__ = ["add", "cast", "dequantize", "launch_mm", "mm", "relayout", "silu_mul_quantize", "tile_product"]
