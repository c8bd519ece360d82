"""Bulk copies of planes on the chip: maps of three dimensions over views of every kind that the driver must take.

Not at places below zero: (0, -2, 0) ended in an illegal instruction on an H200, driver 580.159.04, which left nothing
for the tests after it; whether it is the load's or the store's is not known yet. No kernel here does that.
"""

from __future__ import annotations

import numpy as np
import pytest

from ..emulate.harness import build
from ..targets.nvidia.test_bulk_copy import PLACES_3D, VIEWS, moved_box, planes_at
from .on_gpu import run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("source", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("place", [place for place in PLACES_3D if min(place) >= 0], ids=str)
def test_planes(source: np.ndarray, place: tuple[int, int, int]) -> None:
    d = np.zeros_like(source)
    run(build(moved_box(place), maps={"source": (source, (1, 8, 32), 32), "d": (d, (1, 8, 32), 32)}))
    np.testing.assert_array_equal(d, planes_at(source, place)[1])
