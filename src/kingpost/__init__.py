"""FP8 matrix products, and what holds each one down."""

__version__ = "0.1.0"
