"""The block-scaled FP8 product, emulated: the arithmetic model's bits at shapes and in configurations of all kinds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kingpost import emulate, reference
from kingpost.formats import BF16, F32, Format

from .product import LAYOUTS, Config, Operands, launch, operands, poisoned, same_bits

SCHEDULES = ("late", "early", "random")


def run(
    config: Config, given: Operands, out: Format = BF16, schedule: str = "late", grid: int | None = None, seed: int = 0
) -> np.ndarray:
    d = poisoned(given, out)
    emulate.run(launch(config, given, d, grid), schedule, seed)
    return d


# m, n, k, (warpgroups, subtiles, columns, stages, buffers, group), blocks (None: one for each tile), out
CASES = {
    "one row": (1, 8, 16, Config(1, 1, 16, 4, 1), None, BF16),
    "one row, float32": (1, 16, 144, Config(1, 1, 16, 8, 1), None, F32),
    "exact tile": (64, 128, 128, Config(1, 1, 128, 2, 1), None, BF16),
    "ragged everywhere": (77, 136, 400, Config(2, 1, 128, 4, 1), None, BF16),
    "ragged everywhere, float32": (77, 136, 400, Config(2, 1, 128, 4, 1), None, F32),
    "two tiles of rows, two subtiles": (300, 136, 144, Config(2, 2, 128, 3, 2), 2, BF16),
    "two subtiles, one buffer": (140, 72, 272, Config(1, 2, 64, 2, 1), None, F32),
    "three subtiles, three buffers": (150, 40, 144, Config(1, 3, 64, 2, 3), None, BF16),
    "fifteen tiles, two blocks": (130, 264, 144, Config(1, 1, 64, 3, 1, group=2), 2, BF16),
    "five tiles, one block, K below a scale": (33, 520, 48, Config(1, 1, 128, 2, 1), 1, F32),
    "three warpgroups": (385, 40, 272, Config(3, 1, 32, 5, 1), 2, BF16),
    "K of nine blocks, ring of two": (5, 16, 1040, Config(1, 1, 16, 2, 1), None, BF16),
    "ring of two stages": (70, 24, 304, Config(2, 1, 32, 2, 1), None, F32),
    "more blocks than tiles": (65, 32, 256, Config(1, 1, 32, 3, 1), 5, BF16),
    "groups of one row": (200, 96, 160, Config(1, 1, 32, 4, 1, group=1), 3, BF16),
}


@pytest.mark.parametrize("number, case", list(enumerate(CASES)))
def test_the_models_bits(number: int, case: str) -> None:
    """Under one schedule each; `kingpost check all` takes the planner's configurations under all."""
    m, n, k, config, grid, out = CASES[case]
    given = operands(m, n, k, seed=m + n + k)
    assert same_bits(run(config, given, out, SCHEDULES[number % 3], grid), given.expected(out))


@pytest.mark.parametrize("case", CASES)
def test_within_the_bound_of_the_truth(case: str) -> None:
    """The model's bits, which the kernel gives in every test here, are close to the float64 product."""
    m, n, k, _, _, out = CASES[case]
    given = operands(m, n, k, seed=m + n + k)
    assert 0 < reference.check(given.expected(out), *given.scaled()) <= 1


@pytest.mark.parametrize("seed", range(1, 3))
def test_random_schedules_agree(seed: int) -> None:
    given = operands(100, 48, 656, seed=seed)
    assert same_bits(run(Config(2, 1, 32, 2, 1), given, BF16, "random", 2, seed), given.expected(BF16))


@pytest.mark.parametrize("out", [BF16, F32], ids=str)
def test_every_code_but_nan(out: Format) -> None:
    given = operands(70, 72, 272, any_code=True)
    assert same_bits(run(Config(1, 1, 64, 2, 1), given, out), given.expected(out))


@pytest.mark.parametrize("out", [BF16, F32], ids=str)
def test_nan_stays_in_its_row_and_column(out: Format) -> None:
    given = operands(70, 72, 272)
    given.a[3, 200] = given.b[5, 0] = np.nan
    d = poisoned(given, out)
    made = launch(Config(1, 1, 64, 2, 1), given, d)
    given.scale_a[66, 1] = np.nan  # which the call would refuse
    emulate.run(made)
    nan = np.zeros(d.shape, bool)
    nan[[3, 66]] = nan[:, 5] = True
    np.testing.assert_array_equal(np.isnan(d.astype(np.float32)), nan)
    assert same_bits(d, given.expected(out))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scales_are_read_by_their_strides(layout: str) -> None:
    plain = operands(70, 136, 400)
    given = Operands(plain.a, LAYOUTS[layout](plain.scale_a), plain.b, LAYOUTS[layout](plain.scale_b))
    assert same_bits(run(Config(1, 1, 64, 2, 1), given, BF16, grid=4), given.expected(BF16))
    if layout != "one for all":
        assert same_bits(given.expected(BF16), plain.expected(BF16))


def test_operands_with_gaps_between_rows() -> None:
    plain = operands(70, 40, 144)
    wide = {name: np.zeros((len(x), 192), x.dtype) for name, x in (("a", plain.a), ("b", plain.b))}
    for name, array in wide.items():
        array.view(np.uint8)[...] = 0x7F  # NaN wherever a copy should not look
        array[:, :144] = getattr(plain, name)
    given = Operands(wide["a"][:, :144], plain.scale_a, wide["b"][:, :144], plain.scale_b)
    whole = np.full((70, 64), np.nan, ml_dtypes.bfloat16)
    d = whole[:, :40]
    emulate.run(launch(Config(1, 1, 32, 2, 1), given, d))
    assert same_bits(np.ascontiguousarray(d), plain.expected(BF16))
    assert np.isnan(whole[:, 40:].astype(np.float32)).all()


def test_bits_of_a_row_do_not_depend_on_m() -> None:
    given = operands(300, 136, 272, seed=5)
    alone = run(Config(1, 1, 16, 4, 1), given.rows(1), grid=2)
    among_7 = run(Config(1, 1, 64, 3, 1), given.rows(7))
    among_300 = run(Config(2, 2, 128, 3, 2), given)
    assert same_bits(alone[0], among_7[0])
    assert same_bits(among_7, among_300[:7])


def test_what_a_run_reports() -> None:
    given = operands(65, 32, 144)
    d = poisoned(given, BF16)
    report = emulate.run(launch(Config(1, 1, 32, 2, 1), given, d))
    products = {i: count for i, count in report.executed.items() if i.operation.name == "wgmma.mma_async"}
    assert report.blocks == 2 and report.schedule == "late"
    assert sum(products.values()) == 2 * 2 * 4 * 4  # tiles, K blocks, steps of a block, warps
    assert report.uses["bulk copy bytes"] == 2 * 2 * (64 + 32) * 128 + 2 * 64 * 32 * 2
    assert report.uses["tensor cycles"] == 2 * 2 * 4 * 32 / 2


def test_blocks_may_be_run_one_at_a_time() -> None:
    given = operands(150, 32, 144)
    d = poisoned(given, BF16)
    emulate.run(launch(Config(1, 1, 32, 2, 1), given, d), blocks=[1])
    expected = given.expected(BF16)
    assert same_bits(d[64:128], expected[64:128])
    assert np.isnan(d[:64].astype(np.float32)).all() and np.isnan(d[128:].astype(np.float32)).all()


@pytest.mark.parametrize("columns", [48, 96, 192, 256])
def test_a_tile_has_one_scale_of_b(columns: int) -> None:
    given = operands(64, 264, 128)
    with pytest.raises(ValueError, match=f"columns is {columns}; a divisor of 128 is wanted"):
        launch(Config(1, 1, columns, 2, 1), given, poisoned(given, BF16))


@pytest.mark.parametrize(("subtiles", "stages", "buffers"), [(1, 1, 1), (2, 1, 2), (3, 2, 2), (1, 4, 2)])
def test_stages_and_buffers_that_would_stick_or_overwrite(subtiles: int, stages: int, buffers: int) -> None:
    given = operands(64, 264, 128)
    with pytest.raises(ValueError, match=f"stages is {stages}, buffers {buffers}; 2 or more and a divisor"):
        launch(Config(1, subtiles, 64, stages, buffers), given, poisoned(given, BF16))
