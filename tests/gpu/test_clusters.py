"""Clusters on a GPU: copies to several blocks, arrivals at each other's barriers, as the emulator has them."""

from __future__ import annotations

import numpy as np
import pytest

from ..targets.nvidia.test_clusters import Kernel, launch
from .on_gpu import run

pytestmark = pytest.mark.gpu


def test_both_blocks_read_every_row() -> None:
    for _ in range(100):
        given, source, result = launch(Kernel())
        run(given)
        assert (result == source[0].view("<u4").sum(axis=0, dtype=np.uint32)).all()
