"""wgmma on the chip against the arithmetic model, bit by bit: what bench/bits.py does at length, at least 500 tiles of
each kind of product and family of operands."""

from __future__ import annotations

import pytest

from ..targets.nvidia.wgmma_bits import FAMILIES, KINDS, Kind, Tally, batch, sizes
from .on_gpu import run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_model_gives_the_chips_bits(kind: Kind, family: str) -> None:
    tally = Tally()
    for n in sizes(kind):
        tally.add(batch(kind, family, n, 0, 256 if n == 8 else 64), run)
    assert tally.tiles[8] == 640
    assert tally.differing == 0, tally.examples
