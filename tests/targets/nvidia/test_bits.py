"""The comparison of bits that runs on a GPU, as far as it goes without: the emulator stands in for the chip, and there
are digests of what a chip gave."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kingpost import emulate
from kingpost.formats import BF16, E4M3, E5M2, F16, F32, decode
from kingpost.program import Launch

from .wgmma_bits import FAMILIES, GOLDEN, KINDS, STEPS, Kind, Tally, batch, digests, golden_batch, operands, sizes

EMULATED = [
    Kind(E5M2, E4M3, F32, True),
    Kind(BF16, BF16, F32, True),
    Kind(E4M3, E5M2, F16),
    Kind(F16, F16, F32),
    Kind(F16, F16, F16, True),
]


def emulated(launch: Launch) -> None:
    emulate.run(launch)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", EMULATED, ids=str)
def test_emulated_kernel_gives_the_models_bits(kind: Kind, family: str) -> None:
    tally = Tally()
    tally.add(batch(kind, family, 128, 1, 64), emulated)
    assert (tally.tiles, tally.outputs, tally.differing, tally.examples) == ({128: 10}, 5 * 64 * 256, 0, [])


def test_a_difference_is_counted_and_shown() -> None:
    kind = Kind(E4M3, E4M3)
    each = batch(kind, "cut", 256, 1, 64)
    expected = each.expected.copy()
    expected.view(np.uint32)[2, 7, 11] ^= 1
    tally = Tally()
    tally.add(each._replace(expected=expected), emulated)
    assert tally.differing == 1
    (example,) = tally.examples
    assert (example["result"], example["row"], example["column"], example["n"]) == ("step 2", 7, 11, 256)
    assert bytes.fromhex(example["a"]) == each.operands.a[7, 64:96].tobytes()
    assert int(example["chip"], 16) ^ int(example["model"], 16) == 1


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_families_are_what_they_are_called(kind: Kind) -> None:
    given = {family: operands(kind, family, 64, 8, np.random.default_rng(5)) for family in FAMILIES}

    def finite(x: np.ndarray) -> float:
        return float(np.isfinite(x.astype(np.float32)).mean())

    for family in ("ordinary", "cut"):
        a, b, c = given[family]
        codes = decode(a, kind.a_format), decode(b, kind.b_format), c
        assert [finite(x) for x in codes] == [1, 1, 1]
    a, b, c = given["special"]
    assert 0.99 < finite(decode(a, kind.a_format)) < 1 and 0.9 < finite(c) < 1
    assert np.isnan(c).any() and (np.isinf(c).any(axis=(1, 2))).all()
    ordinary = np.abs(decode(given["ordinary"].a, kind.a_format))
    assert (ordinary == 0).any() and ordinary.max() > 2.0 ** (7 if kind.a_format is E4M3 else 14)

    # around the cut: sums of what is cut off matter, in one direction as in the other
    each = batch(kind, "cut", 8, 1, 64)
    a, b, c = each.operands
    step = slice(0, kind.step)
    exact = decode(a[:, step], kind.a_format, np.float64) @ decode(b[:, step], kind.b_format, np.float64).T + c[0]
    got = each.expected[0].astype(np.float64)
    with np.errstate(invalid="ignore"):
        assert min((got > exact).mean(), (got < exact).mean()) > 0.2
    assert len(each.expected) == STEPS + 1


def test_every_n_of_the_kernels_is_compared() -> None:
    assert sizes(Kind(E4M3, E5M2)) == [8, 16, 32, 64, 128, 144, 160]
    assert sizes(Kind(BF16, BF16)) == [8, 32, 64, 128, 192, 256]
    assert all(sizes(kind)[0] == 8 and 256 in sizes(kind) for kind in KINDS[5:])


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN.name} is not there: tests/gpu/test_bits.py records it")
def test_model_gives_the_bits_that_a_chip_gave() -> None:
    wanted = json.loads(GOLDEN.read_text())["digests"]
    assert set(wanted) == {f"{kind}, {family}" for kind in KINDS for family in FAMILIES}
    for kind in KINDS:
        for family in FAMILIES:
            each = golden_batch(kind, family)
            drawn, given = digests(each.operands, each.expected)
            if drawn != wanted[f"{kind}, {family}"][0]:
                pytest.skip("this numpy draws other operands than those of which digests were recorded")
            assert given == wanted[f"{kind}, {family}"][1], f"{kind}, {family}"
