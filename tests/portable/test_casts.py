"""The other casts, on every target: by blocks, transposed and in groups, of a mixture's rows; the bits of numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kingpost import emulate
from kingpost.portable import cast, masked_silu_mul_cast, transposed_cast
from kingpost.program import Target
from kingpost.quantization import quantize
from kingpost.targets.cpu import elementwise

from .harness import TARGETS, launch, run, same_bits

ONE_OF_EACH = [target for target in TARGETS if target.name in ("sm_90a", "gfx942")]  # of 32 lanes, and of 64
IDS = [target.name for target in ONE_OF_EACH]

ROUNDINGS: tuple[dict[str, Any], ...] = (
    {},
    {"eps": 1e-4, "reciprocal_scale": True},
    {"reciprocal_maximum": True},
    {"reciprocal_maximum": True, "reciprocal_scale": True, "power_of_two": True},
    {"eps": 0.0},
)


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) * np.exp(random.standard_normal(shape) * 3)).astype(dtype)


def empty(target: Target, shape: tuple[int, ...], scales: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Results that hold what nobody writes."""
    return np.full(shape, 0x55, np.uint8).view(target.float8.dtype), np.full(scales, -7, np.float32)


def compare(
    kernel: Any, target: Target, given: list[np.ndarray], shapes: Any, order: str = "late", **options: Any
) -> None:
    got, want = empty(target, *shapes), empty(target, *shapes)
    run(kernel, target, *given, *got, order=order, **options)
    twin = getattr(elementwise, kernel.__name__.rpartition(".")[2])
    twin(*given, *want, **options)
    assert same_bits(got[0].view(np.uint8), want[0].view(np.uint8)) and same_bits(got[1], want[1])


@pytest.mark.parametrize("target", ONE_OF_EACH, ids=IDS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(130, 136), (3, 5)])
def test_blocks(target: Target, dtype: Any, shape: tuple[int, int]) -> None:
    scales = -(-shape[0] // 128), -(-shape[1] // 128)
    for rounding in ROUNDINGS if dtype is np.float32 and shape[0] < 128 else ROUNDINGS[:1]:
        compare(cast, target, [numbers(shape, dtype)], (shape, scales), scaling="128x128", **rounding)


@pytest.mark.parametrize("target", ONE_OF_EACH, ids=IDS)
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
def test_rows_as_frameworks_round_them(target: Target, rounding: dict[str, Any]) -> None:
    compare(cast, target, [numbers((3, 264), np.float32)], ((3, 264), (3, 3)), **rounding)


@pytest.mark.parametrize("target", ONE_OF_EACH, ids=IDS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(144, 66), (37, 5)])
def test_transposed(target: Target, dtype: Any, shape: tuple[int, int]) -> None:
    depth, columns = shape
    given, shapes = [numbers(shape, dtype)], ((columns, depth), (columns, -(-depth // 128)))
    for rounding in ROUNDINGS[: 3 if depth < 100 else 1]:
        compare(transposed_cast, target, given, shapes, **rounding)


@pytest.mark.parametrize("target", ONE_OF_EACH, ids=IDS)
@pytest.mark.parametrize("sizes, order", [([16, 0, 144], "random"), ([0, 0], "late")])
def test_transposed_in_groups(target: Target, sizes: list[int], order: str) -> None:
    ends = np.cumsum(sizes).astype(np.int32)
    depth = max(16, int(ends[-1])) + 16  # the last group ends before K
    slots = depth // 128 + len(sizes)
    given = [numbers((depth, 66), ml_dtypes.bfloat16), ends]
    compare(transposed_cast, target, given, ((66, depth), (66, slots)), order)


@pytest.mark.parametrize("target", ONE_OF_EACH, ids=IDS)
def test_more_groups_than_lanes(target: Target) -> None:
    """All but a few of them empty, beside the places where one lane's group follows another's."""
    sizes = np.zeros(71, np.int32)
    sizes[[0, 31, 32, 63, 64, 70]] = 16, 32, 144, 16, 48, 16
    given = [numbers((sizes.sum(), 6), np.float32), np.cumsum(sizes, dtype=np.int32)]
    compare(transposed_cast, target, given, ((6, sizes.sum()), (6, 8)))


@pytest.mark.parametrize("target", ONE_OF_EACH, ids=IDS)
def test_wrong_ends_stop_no_device(target: Target) -> None:
    """They lie on the device, where nobody looks at them first: no access is misaligned or out of bounds.

    Each block runs by itself: groups that overlap make blocks write the same places, and nobody promises whose.
    """
    x, results = numbers((160, 6), np.float32), empty(target, (6, 160), (6, 4))
    for ends in ([20, 150, 1000], [150, 20, -1]):
        made = launch(transposed_cast, target, x, np.array(ends, np.int32), *results)
        for block in range(made.grid):
            emulate.run(made, blocks=[block])


def test_a_transposed_cast_is_the_cast_of_the_transpose() -> None:
    x = numbers((272, 40), np.float32)
    data, scales = empty(TARGETS[0], (40, 272), (40, 3))
    elementwise.transposed_cast(x, data, scales)
    want = quantize(x.T, "1x128")
    assert same_bits(data, want.data) and same_bits(scales, want.scales)


@pytest.mark.parametrize("target", ONE_OF_EACH, ids=IDS)
@pytest.mark.parametrize("order, columns, dtype", [("random", 256, ml_dtypes.bfloat16), ("late", 131, np.float32)])
def test_rows_of_a_mixture(target: Target, order: str, columns: int, dtype: Any) -> None:
    blocks = -(-columns // 128)
    x, counts = numbers((4, 70, 2 * columns), dtype), np.array([3, 0, 70, 1], np.int32)
    few = [np.ascontiguousarray(x[:, :7]), np.minimum(counts, 7)]
    compare(masked_silu_mul_cast, target, few, ((4, 7, columns), (4, 7, blocks)), order)
    if target is TARGETS[0] and order == "random":  # more rows than blocks share
        compare(masked_silu_mul_cast, target, [x, counts], ((4, 70, columns), (4, 70, blocks)))


@pytest.mark.parametrize("target", ONE_OF_EACH, ids=IDS)
def test_nan_and_infinity_stay_in_their_block(target: Target) -> None:
    x = numbers((130, 264), np.float32)
    x[3, 5], x[129, 200] = np.nan, np.inf
    compare(cast, target, [x], ((130, 264), (2, 3)), scaling="128x128")
    compare(transposed_cast, target, [x], ((264, 130), (264, 2)))
