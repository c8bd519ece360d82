"""The portable kernels with small operands, on any target: the bits of numpy, or of the chip's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from kingpost import formats
from kingpost.arrays import view
from kingpost.formats import BF16, F16, F32, Format
from kingpost.portable import (
    add_slices,
    cast,
    dequantise,
    masked_silu_mul_cast,
    relayout,
    silu_mul_cast,
    tile_product,
    transpose,
    transposed_cast,
    vector_add,
)
from kingpost.program import Target
from kingpost.registry import Case, Problem, Trial
from kingpost.targets.cpu import elementwise
from kingpost.targets.family import Arithmetic
from kingpost.targets.samples import difference, sample

Arrays = list[np.ndarray]
UNTOUCHED = 0x55  # in every byte of a result before the kernel runs


@dataclass(frozen=True)
class _Check:
    """A kernel that is no product. inputs, results: its operands, in order, on a target; options: of the kernel."""

    what: str
    module: ModuleType
    inputs: Callable[[Target], Arrays]
    results: Callable[[Target], Arrays]
    options: dict[str, Any] = field(default_factory=dict)
    program: str = ""  # if it is not called as its module

    @property
    def op(self) -> str:
        return self.module.__name__.rpartition(".")[2]

    def trial(self, target: Target) -> Trial:
        """The launch, and numpy's results for the same operands."""
        inputs, got, want = self.inputs(target), self.results(target), self.results(target)
        getattr(elementwise, self.op)(*inputs, *want, **self.options)
        launch = self.module.launch(target, *map(view, (*inputs, *got)), **self.options)
        return Trial(launch, lambda: next(filter(None, map(difference, got, want)), None))


def cases(target: Target, arithmetic: Arithmetic) -> list[Case]:
    """Every portable kernel on a target."""
    found = [
        Case(f"{name}, {target.name}: {check.what}", name, target.name, partial(check.trial, target))
        for check in CHECKS
        for name in [check.program or check.op]
    ]
    if target.tile_product is not None:
        for what, (m, n, k, out) in PRODUCTS.items():
            problem = Problem("mm", n, k, target.float8, target.float8, "1x128", "128x128", out)
            make = partial(_product, target, arithmetic, problem, m)
            found.append(Case(f"tile_product, {target.name}: {what}", "tile_product", target.name, make))
    return found


PRODUCTS = {  # m, n, k, out
    "one tile": (64, 64, 256, BF16),
    "cut off everywhere, float32": (13, 72, 272, F32),
}


def _product(target: Target, arithmetic: Arithmetic, problem: Problem, m: int) -> Trial:
    given = sample(problem, m)
    d, want = given.result(), given.expected(arithmetic)
    launch = tile_product.launch(target, *given.operands(d).views.values())
    return Trial(launch, lambda: difference(d, want))


# Operands


def _numbers(*shape: int, format: Format = F32) -> np.ndarray:
    """Of very unlike sizes."""
    random = np.random.default_rng([*shape])
    return formats.cast(random.standard_normal(shape) * np.exp2(random.integers(-9, 9, shape)), format)


def _codes(target: Target, *shape: int) -> np.ndarray:
    return formats.cast(np.random.default_rng([*shape]).standard_normal(shape), target.float8)


def _untouched(shape: Sequence[int], dtype: Any) -> np.ndarray:
    return np.full((*shape, np.dtype(dtype).itemsize), UNTOUCHED, np.uint8).view(dtype)[..., 0]


def _arrays(*shapes: Sequence[int], format: Format = F32) -> Callable[[Target], Arrays]:
    """Results of a format."""
    return lambda target: [_untouched(shape, format.dtype) for shape in shapes]


def _scaled(data: Sequence[int], scales: Sequence[int]) -> Callable[[Target], Arrays]:
    """Results of a cast: codes and scales."""
    return lambda target: [_untouched(data, target.float8.dtype), _untouched(scales, np.float32)]


def _drawn(*shapes: Sequence[int], format: Format = F32, index: Sequence[int] = ()) -> Callable[[Target], Arrays]:
    """Operands of a format, then ends or counts."""
    more = [np.array(index, np.int32)] if index else []
    return lambda target: [*(_numbers(*shape, format=format) for shape in shapes), *more]


CHECKS = (
    _Check("whole and ragged", vector_add, _drawn([1027], [1027]), _arrays([1027])),
    _Check("whole rows", cast, _drawn([2, 640], format=BF16), _scaled([2, 640], [2, 5])),
    _Check("ragged, powers of two", cast, _drawn([3, 131]), _scaled([3, 131], [3, 2]), {"power_of_two": True}),
    _Check("reciprocals", cast, _drawn([2, 264]), _scaled([2, 264], [2, 3]), {"eps": 1e-4, "reciprocal_scale": True}),
    _Check("whole", cast, _drawn([130, 72], format=BF16), _scaled([130, 72], [2, 1]), {"scaling": "128x128"},
           program="block_cast"),
    _Check("ragged, no floor", cast, _drawn([3, 5]), _scaled([3, 5], [1, 1]), {"scaling": "128x128", "eps": 0.0},
           program="block_cast"),
    _Check("whole", transposed_cast, _drawn([144, 34], format=BF16), _scaled([34, 144], [34, 2])),
    _Check("ragged", transposed_cast, _drawn([37, 5]), _scaled([5, 37], [5, 1]), {"reciprocal_maximum": True}),
    _Check("groups", transposed_cast, _drawn([144, 6], format=BF16, index=[16, 16, 144]),
           _scaled([6, 144], [6, 2])),
    _Check("whole rows", silu_mul_cast, _drawn([2, 512], format=BF16), _scaled([2, 256], [2, 2])),
    _Check("ragged", silu_mul_cast, _drawn([2, 262]), _scaled([2, 131], [2, 2])),
    _Check("whole rows", masked_silu_mul_cast, _drawn([3, 3, 512], format=BF16, index=[2, 0, 3]),
           _scaled([3, 3, 256], [3, 3, 2])),
    _Check("ragged", masked_silu_mul_cast, _drawn([2, 3, 10], index=[1, 3]), _scaled([2, 3, 5], [2, 3, 1])),
    _Check("to columns", relayout, _drawn([67, 11]),
           lambda target: [_untouched([11, 68], np.float32)[:, :67].T]),
    _Check("whole", transpose, lambda target: [_codes(target, 144, 20)],
           lambda target: [_untouched([20, 144], target.float8.dtype)]),
    _Check("ragged", transpose, lambda target: [_codes(target, 37, 77)],
           lambda target: [_untouched([77, 37], target.float8.dtype)]),
    _Check("whole rows", dequantise, lambda target: [_codes(target, 2, 640), _numbers(2, 5)], _arrays([2, 640])),
    _Check("ragged, bfloat16", dequantise, lambda target: [_codes(target, 3, 131), _numbers(3, 2)],
           _arrays([3, 131], format=BF16)),
    _Check("eight at once", add_slices, _drawn([11, 5, 600]), _arrays([5, 600])),
    _Check("onto c, ragged, float16", add_slices,
           lambda target: [np.clip(_numbers(3, 4, 13), -9, 9), formats.cast(np.clip(_numbers(4, 13), -9, 9), F16)],
           _arrays([4, 13], format=F16)),
)  # fmt: skip
