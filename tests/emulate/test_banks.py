"""Bank conflicts, counted from addresses."""

from __future__ import annotations

import numpy as np
import pytest

from kingpost.emulate.banks import conflicts

LANES = np.arange(32)


@pytest.mark.parametrize(
    ("addresses", "size", "extra"),
    [
        (LANES * 4, 4, 0),
        (LANES * 4 + 4 * 1000, 4, 0),
        (LANES * 0, 4, 0),  # one word for all
        (LANES * 8, 4, 1),
        (LANES * 128, 4, 31),
        (LANES * 132, 4, 0),
        (LANES * 2, 2, 0),  # two lanes share a word
        (LANES * 8, 8, 0),  # 16 lanes a pass
        (LANES * 16, 16, 0),  # 8 lanes a pass
        (LANES * 128, 16, 4 * 7),
        (LANES * 144, 16, 0),
        (LANES[:0], 4, 0),
    ],
)
def test_passes_beyond_the_first(addresses: np.ndarray, size: int, extra: int) -> None:
    assert conflicts(addresses, size) == extra


def test_the_order_of_lanes_within_a_pass_does_not_matter() -> None:
    random = np.random.default_rng(0)
    addresses = random.integers(0, 4096, 32) * 4
    assert conflicts(addresses, 4) == conflicts(random.permutation(addresses), 4)
    words = np.unique(addresses // 4)
    assert conflicts(addresses, 4) == max(int((words % 32 == bank).sum()) for bank in range(32)) - 1
