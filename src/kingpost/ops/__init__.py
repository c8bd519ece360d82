"""What users call."""

from kingpost.ops.mm import launch_mm, mm

__all__ = ["launch_mm", "mm"]
