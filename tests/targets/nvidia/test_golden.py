"""The wgmma family against what a chip computed: the arithmetic model for every N, the emulated kernel for a few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kingpost import emulate

from .probe import (
    CASES,
    E4M3_KIND,
    GOLDEN,
    KINDS,
    NAMES,
    ROWS,
    SIZES,
    Cases,
    Kind,
    cases,
    cases_of,
    digests,
    launch,
    model,
    record,
    recorded,
)

needs_golden = pytest.mark.skipif(
    not GOLDEN.exists(), reason=f"{GOLDEN.name} is not there: KINGPOST_RECORD=DIR pytest -m gpu tests/gpu records it"
)


def emulated(given: Cases, schedule: str = "late", kind: Kind = E4M3_KIND) -> np.ndarray:
    d = np.full((len(given.c), 2, *given.c.shape[1:]), np.nan, np.float32)
    emulate.run(launch(given, d, kind), schedule)
    return d


def differing(d: np.ndarray, wanted: np.ndarray) -> list[str]:
    """The names of the cases whose digests differ."""
    return [name for name, same in zip(NAMES, (digests(d) == wanted).all(axis=(1, 2))) if not same]


@needs_golden
@pytest.mark.parametrize("n", SIZES)
def test_model_gives_the_chips_bits(n: int) -> None:
    bits, sums = recorded(n)
    d = model(cases(n))
    assert d.shape == (len(NAMES), 2, ROWS, n) and sums.shape[0] == len(NAMES)
    assert int(np.count_nonzero(d[0, 0].view(np.uint32) != bits.view(np.uint32))) == 0
    assert differing(d, sums) == []


@needs_golden
@pytest.mark.parametrize("n", [8, 24, 136, 256])
def test_emulated_kernel_gives_the_chips_bits(n: int) -> None:
    bits, sums = recorded(n)
    given = cases(n)
    chosen = [0, 7, len(NAMES) - 1]
    d = emulated(Cases(*(x[chosen] for x in given)))
    assert int(np.count_nonzero(d[0, 0].view(np.uint32) != bits.view(np.uint32))) == 0
    np.testing.assert_array_equal(digests(d), sums[chosen])


@pytest.mark.parametrize("schedule", ["late", "early", "random"])
def test_emulated_kernel_gives_the_models_bits(schedule: str) -> None:
    given = Cases(*(x[-3:] for x in cases(72)))
    assert emulated(given, schedule).tobytes() == model(given).tobytes()


@pytest.mark.parametrize("n", [8, 16, 32, 80])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_emulated_kernels_of_every_kind_give_the_models_bits(kind: Kind, n: int) -> None:
    given = cases_of(kind, n)
    assert emulated(given, kind=kind).tobytes() == model(given, kind).tobytes()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_cases_of_every_kind_show_what_they_should(kind: Kind) -> None:
    d = dict(zip(CASES, model(cases_of(kind, 64), kind)))
    finite = {name: np.isfinite(x).mean() for name, x in d.items()}
    assert [finite[name] for name in ("near one", "subnormal", "small products", "cancelling")] == [1] * 4
    assert 0.9 < finite["NaN and infinity"] < 1 and np.isnan(d["NaN and infinity"]).any()
    subnormal = (d["small products"] != 0) & (np.abs(d["small products"]) < 2.0**-126)
    if kind.a_format.bits == 16:
        assert subnormal[1].mean() > 0.1 and np.isinf(d["largest"]).any()
    else:
        assert not subnormal[1].any()
    assert (d["cancelling"][1] == 0).mean() < 0.5 < (d["cancelling"][1] != d["near one"][1]).mean()


def test_cases_are_what_they_are_called() -> None:
    a, b, c = cases(16)
    assert a.shape == (len(NAMES), 64, 128) and b.shape == (len(NAMES), 16, 128) and c.shape == (len(NAMES), 64, 16)
    ordinary = np.concatenate([a[:-1].ravel(), b[:-1].ravel()])
    assert not np.isin(ordinary, (0x7F, 0xFF)).any() and np.isfinite(c[:-1]).all()
    assert set(np.unique(a[1])) == set(range(256)) - {0x7F, 0xFF}  # "any byte"
    low = a & 0x7F
    for index, name in enumerate(NAMES):
        if name.startswith("subnormal"):
            assert (low[index] < 0x18).all() and (low[index] < 0x08).any()
        if name.startswith("largest"):
            assert (low[index] >= 0x68).all()
    sizes = np.abs(model(Cases(a, b, c))[:, 1])
    for index, name in enumerate(NAMES):
        ratio = np.median(np.abs(c[index])) / np.median(sizes[index])
        if name.endswith(", zero"):
            assert ratio == 0
        if name.endswith("of the product's size"):
            assert 1 / 8 < ratio < 8
        if name.endswith("larger"):
            assert ratio > 32
        if name.endswith("smaller"):
            assert ratio < 1 / 32


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "golden.npz"
    results = {n: model(cases(n)) for n in (8, 40)}
    record(results.items(), path, "no chip at all")
    for n, d in results.items():
        bits, sums = recorded(n, path)
        assert bits.tobytes() == d[0, 0].tobytes()
        assert differing(d, sums) == []
        d[3, 1, 17, 5] += 1
        assert differing(d, sums) == [NAMES[3]]
