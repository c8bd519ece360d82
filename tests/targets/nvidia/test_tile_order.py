"""Every tile of a result is some block's, exactly once."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kingpost.program import Builder, evaluate
from kingpost.targets.nvidia.parts.work import TileOrder

MOST_TILES = 40


def places(rows: int, columns: int, group: int, tiles: range) -> list[tuple[int, int]]:
    k = Builder("places", "sm_90a")
    tile = k.parameter("tile")
    order = TileOrder(k, k.parameter("rows"), k.parameter("columns"), group)
    row, column = order.place(tile)
    known = {"rows": rows, "columns": columns}
    assert evaluate(order.count, known) == rows * columns
    return [tuple(evaluate(value, known | {"tile": t}) for value in (row, column)) for t in tiles]  # type: ignore[misc]


@given(rows=st.integers(1, MOST_TILES), columns=st.integers(1, MOST_TILES), group=st.integers(1, 12))
@example(rows=17, columns=1, group=8)  # a last group of one row
@example(rows=8, columns=3, group=8)
@example(rows=1, columns=40, group=8)
@settings(max_examples=60)
def test_every_tile_exactly_once(rows: int, columns: int, group: int) -> None:
    rows = min(rows, max(1, MOST_TILES // columns))
    found = places(rows, columns, group, range(rows * columns))
    assert sorted(found) == [(row, column) for row in range(rows) for column in range(columns)]


@given(rows=st.integers(1, 20), columns=st.integers(1, 20), group=st.integers(1, 12), past=st.integers(0, 300))
@settings(max_examples=60)
def test_tiles_past_the_last_lie_outside_the_result(rows: int, columns: int, group: int, past: int) -> None:
    """A block looks one tile ahead for its scales; they are read at the last row and column then, so far is too far."""
    tile = rows * columns + past
    ((row, column),) = places(rows, columns, group, range(tile, tile + 1))
    assert row >= rows or column >= columns
    assert row < 2**16 and column < 2**16


def test_rows_of_a_group_first() -> None:
    assert places(3, 2, 2, range(6)) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
