"""wgmma on the chip against the arithmetic model, bit by bit: what bench/bits.py does at length, at least 500 tiles of
each kind of product and family of operands; KINGPOST_RECORD=DIR records digests of what the chip gives."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kingpost import registry

from ..targets.nvidia.wgmma_bits import (
    FAMILIES,
    GOLDEN,
    KINDS,
    Kind,
    Tally,
    batch,
    digests,
    golden_batch,
    outputs,
    sizes,
)
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


@pytest.mark.skipif("KINGPOST_RECORD" not in os.environ, reason="KINGPOST_RECORD=DIR records digests")
def test_record() -> None:
    found = {}
    for kind in KINDS:
        for family in FAMILIES:
            each = golden_batch(kind, family)
            found[f"{kind}, {family}"] = digests(each.operands, outputs(each, run))
    whole = {"device": registry.find("cuda:0").description, "digests": found}
    Path(os.environ["KINGPOST_RECORD"], GOLDEN.name).write_text(json.dumps(whole, indent=1) + "\n")
