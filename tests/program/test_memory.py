"""The swizzle, and shared arrays' addresses."""

from __future__ import annotations

import numpy as np
import pytest

from kingpost.formats import E4M3, F32
from kingpost.program import Builder, evaluate, swizzle
from kingpost.program.memory import SWIZZLES


def by_bits(address: int, span: int) -> int:
    """As the PTX ISA words it: 128 bytes: bits 6:4 ^= bits 9:7; 64: bits 5:4 ^= bits 8:7; 32: bit 4 ^= bit 7."""
    for low, high in {128: ((4, 7), (5, 8), (6, 9)), 64: ((4, 7), (5, 8)), 32: ((4, 7),), 0: ()}[span]:
        address ^= (address >> high & 1) << low
    return address


@pytest.mark.parametrize("span", SWIZZLES)
def test_the_bit_formulas(span: int) -> None:
    addresses = np.arange(1 << 12)
    expected = np.array([by_bits(int(address), span) for address in addresses])
    np.testing.assert_array_equal(swizzle(addresses, span), expected)
    assert [swizzle(int(address), span) for address in addresses[::37]] == expected[::37].tolist()


@pytest.mark.parametrize("span", SWIZZLES)
def test_a_permutation_within_its_pattern_that_undoes_itself(span: int) -> None:
    addresses = np.arange(1 << 11)
    moved = swizzle(addresses, span)
    pattern = max(8 * span, 1)
    np.testing.assert_array_equal(moved // pattern, addresses // pattern)
    np.testing.assert_array_equal(np.sort(moved), addresses)
    np.testing.assert_array_equal(swizzle(moved, span), addresses)
    np.testing.assert_array_equal(moved % 16, addresses % 16)


@pytest.mark.parametrize("span", [16, 48, 256, -128])
def test_other_spans(span: int) -> None:
    with pytest.raises(ValueError, match=rf"swizzle is {span}; one of \(0, 32, 64, 128\) is wanted"):
        swizzle(0, span)


@pytest.mark.parametrize("span", SWIZZLES)
def test_on_registers(span: int) -> None:
    k = Builder("test", "nowhere")
    result = swizzle(k.parameter("at"), span)
    assert [evaluate(result, {"at": at}) for at in (0, 17, 1000, 4095)] == [
        by_bits(at, span) for at in (0, 17, 1000, 4095)
    ]


def test_addresses_of_shared_arrays() -> None:
    k = Builder("test", "nowhere")
    k.shared("before", (100,), F32)
    tiles = k.shared("tiles", (3, 64, 128), E4M3, 128)
    base = {k.shared_base.storage: 1024, "i": 2}
    assert evaluate(tiles.at(0), base) == 1024 + tiles.offset
    assert (
        evaluate(tiles.at(2), base) == evaluate(tiles.at(k.parameter("i")), base) == 1024 + tiles.offset + 2 * 64 * 128
    )
    assert evaluate(tiles.at(1, offset=5), base) == 1024 + tiles.offset + 64 * 128 + 5
    assert repr(tiles) == f"tiles: e4m3[3, 64, 128] at {tiles.offset}, swizzle 128"
