"""Every target there is, launches emulated under every schedule, and the ways that matrices lie in memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from kingpost import emulate
from kingpost.arrays import view
from kingpost.program import Launch, Target

_PLACES = {"nvidia": ("SM_90A", "SM_100A"), "amd": ("GFX942", "GFX950")}
TARGETS: list[Target] = [
    getattr(module, name)
    for maker, names in _PLACES.items()
    for module in [importlib.import_module(f"kingpost.targets.{maker}.targets")]
    for name in names
    if hasattr(module, name)
]
IDS = [target.name for target in TARGETS]
ORDERS = ("late", "early", "random")


def launch(kernel: Any, target: Target, *arrays: np.ndarray, **options: Any) -> Launch:
    return kernel.launch(target, *map(view, arrays), **options)


def run(kernel: Any, target: Target, *arrays: np.ndarray, order: str = "late", **options: Any) -> None:
    emulate.run(launch(kernel, target, *arrays, **options), order, seed=1)


def inside(shape: tuple[int, int], room: tuple[int, int], dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """A matrix in the corner of a larger one that is full of 0xa5, and the larger one."""
    whole = np.full((*room, np.dtype(dtype).itemsize), 0xA5, np.uint8).view(dtype)[..., 0]
    return whole[: shape[0], : shape[1]], whole


def _turned(shape: tuple[int, int], pitch: int) -> tuple[np.ndarray, np.ndarray]:
    part, whole = inside(shape[::-1], (shape[1], pitch))
    return part.T, whole


# How scales [M, B] lie, by the names of those who want them so; each gives the scales and all the memory around them
LAYOUTS: dict[str, Callable[[tuple[int, int]], tuple[np.ndarray, np.ndarray]]] = {
    "row-major": lambda shape: inside(shape, shape),
    "column-major, (1, M)": lambda shape: _turned(shape, shape[0]),
    "deepgemm, (1, L4(M))": lambda shape: _turned(shape, -(-shape[0] // 4) * 4),
    "padded rows, (L4(B), 1)": lambda shape: inside(shape, (shape[0], -(-shape[1] // 4) * 4)),
    "padded both ways": lambda shape: inside(shape, (shape[0] + 3, shape[1] + 5)),
}


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
