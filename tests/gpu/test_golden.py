"""The wgmma family on the chip against the arithmetic model: every N of e4m3, which KINGPOST_RECORD=DIR records there,
and every pair of fp8 formats and every major of bfloat16 for a few."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kingpost import registry

from ..targets.nvidia.probe import CASES, GOLDEN, KINDS, NAMES, SIZES, Kind, cases, cases_of, launch, model, record
from .on_gpu import run

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured() -> dict[int, np.ndarray]:
    """What the chip gives for every n: float32 [cases, 2, 64, n]."""
    results = {}
    for n in SIZES:
        given = cases(n)
        results[n] = np.full((len(given.c), 2, 64, n), np.nan, np.float32)
        run(launch(given, results[n]))
    return results


@pytest.mark.parametrize("n", SIZES)
def test_model_gives_the_chips_bits(measured: dict[int, np.ndarray], n: int) -> None:
    wrong = measured[n].view(np.uint32) != model(cases(n)).view(np.uint32)
    assert dict(zip(NAMES, wrong.reshape(len(NAMES), -1).sum(axis=1).tolist())) == dict.fromkeys(NAMES, 0)


def test_two_runs_give_the_same_bits(measured: dict[int, np.ndarray]) -> None:
    d = np.zeros_like(measured[136])
    run(launch(cases(136), d))
    assert d.tobytes() == measured[136].tobytes()


@pytest.mark.parametrize("n", [8, 16, 32, 40, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_model_gives_the_chips_bits_of_every_kind(kind: Kind, n: int) -> None:
    given = cases_of(kind, n)
    d = np.full((len(CASES), 2, 64, n), np.nan, np.float32)
    run(launch(given, d, kind))
    wrong = d.view(np.uint32) != model(given, kind).view(np.uint32)
    assert dict(zip(CASES, wrong.reshape(len(CASES), -1).sum(axis=1).tolist())) == dict.fromkeys(CASES, 0)


@pytest.mark.skipif("KINGPOST_RECORD" not in os.environ, reason="KINGPOST_RECORD=DIR records golden vectors")
def test_record(measured: dict[int, np.ndarray]) -> None:
    path = Path(os.environ["KINGPOST_RECORD"], GOLDEN.name)
    record(measured.items(), path, registry.find("cuda:0").description)
    assert path.stat().st_size < 1_500_000
