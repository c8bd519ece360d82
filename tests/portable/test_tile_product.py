"""The tile product on every target that has one: within the proven bound of the truth, on Hopper its model's bits."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from kingpost import formats, reference
from kingpost.formats import BF16, F32, Format, converted
from kingpost.portable import tile_product
from kingpost.program import Target
from kingpost.scaling import ScaledTensor
from kingpost.targets.nvidia.arithmetic import promoted_product

from .harness import LAYOUTS, TARGETS, inside, launch, run, same_bits

OFFERING = [target for target in TARGETS if target.tile_product is not None]
ONE_OF_EACH = [target for target in OFFERING if target.name in ("sm_90a", "gfx950")]  # of 32 lanes, and of 64
one_of_each = pytest.mark.parametrize("target", ONE_OF_EACH, ids=[target.name for target in ONE_OF_EACH])
every_target = pytest.mark.parametrize("target", OFFERING, ids=[target.name for target in OFFERING])


def operands(target: Target, m: int, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    a, b = (formats.cast(2 * random.standard_normal((rows, k)), target.float8) for rows in (m, n))
    blocks = -(-k // 128)
    scale_a, scale_b = (random.uniform(0.5, 2, (rows, blocks)).astype(np.float32) for rows in (m, -(-n // 128)))
    return a, scale_a, b, scale_b


def hopper(a: np.ndarray, scale_a: np.ndarray, b: np.ndarray, scale_b: np.ndarray, out: Format) -> np.ndarray:
    """Hopper's bits."""
    columns = np.repeat(scale_b, 128, axis=0)[: len(b)]
    return converted(promoted_product(a.view(np.uint8), scale_a, b.view(np.uint8), columns), out)


@every_target
@pytest.mark.parametrize("out", [F32, BF16], ids=str)
def test_within_the_bound(target: Target, out: Format) -> None:
    for shape in ((64, 64, 128), (13, 24, 272), (70, 72, 16)):
        given = operands(target, *shape)
        d = np.zeros(shape[:2], out.dtype)
        run(tile_product, target, *given, d)
        a, b = ScaledTensor(*given[:2], "1x128"), ScaledTensor(*given[2:], "128x128").T
        error = np.abs(formats.decode(d, dtype=np.float64) - reference.truth(a, b))
        assert (error <= reference.bound(a, b, out)).all(), shape
        if target.name == "sm_90a":
            assert same_bits(d, hopper(*given, out)), shape


@cache
def product_for_layouts(target: Target) -> np.ndarray:
    d = np.zeros((20, 136), np.float32)
    run(tile_product, target, *operands(target, 20, 136, 144, seed=2), d)
    return d


@one_of_each
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scales_in_any_layout(target: Target, layout: str) -> None:
    a, scale_a, b, scale_b = operands(target, 20, 136, 144, seed=2)
    got, want = np.zeros((20, 136), np.float32), product_for_layouts(target)
    elsewhere = []
    for scales in (scale_a, scale_b):
        moved, _ = LAYOUTS[layout](scales.shape)
        moved[...] = scales
        elsewhere.append(moved)
    run(tile_product, target, a, elsewhere[0], b, elsewhere[1], got)
    assert same_bits(got, want)


@every_target
def test_nothing_beside_the_result_is_written(target: Target) -> None:
    given = operands(target, 5, 8, 128, seed=3)
    want = np.zeros((5, 8), np.float32)
    run(tile_product, target, *given, want)
    (d, memory), (expected, around) = (inside((5, 8), (70, 80)) for _ in range(2))
    expected[...] = want
    run(tile_product, target, *given, d)
    assert same_bits(memory, around)


@every_target
def test_a_nan_stays_in_its_row(target: Target) -> None:
    a, scale_a, b, scale_b = operands(target, 16, 16, 256, seed=4)
    a[3, 200] = np.float32(np.nan)
    d = np.zeros((16, 16), np.float32)
    run(tile_product, target, a, scale_a, b, scale_b, d)
    assert np.isnan(d[3]).all() and np.isnan(d).sum() == 16


@pytest.mark.parametrize("change, message", [
    ({"a": np.zeros((4, 8), OFFERING[0].float8.dtype), "b": np.zeros((4, 8), OFFERING[0].float8.dtype)},
     "a has shape [4, 8]"),
    ({"b": np.zeros((4, 128), np.uint8)}, "b is uint8; e4m3 is wanted"),
    ({"d": np.zeros((4, 5), np.float32)}, "d has shape [4, 5]; [4, 4] is wanted"),
    ({"scale_b": np.zeros((4, 1), np.float32)}, "scale_b has shape [4, 1]; [1, 1] is wanted"),
])  # fmt: skip
def test_what_is_refused(change: dict[str, np.ndarray], message: str) -> None:
    names = ("a", "scale_a", "b", "scale_b")
    arrays = dict(zip(names, operands(OFFERING[0], 4, 4, 128))) | {"d": np.zeros((4, 4), np.float32)}
    with pytest.raises((TypeError, ValueError)) as error:
        launch(tile_product, OFFERING[0], *(arrays | change).values())
    assert message in str(error.value)
