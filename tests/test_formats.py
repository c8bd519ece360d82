"""Formats against the specifications' own tables and against exact rational arithmetic."""

import copy
import pickle
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kingpost import formats
from kingpost.formats import BF16, E2M1, E4M3, E4M3FNUZ, E5M2, F16, F32, I32, UE8M0

SMALL = [E4M3, E4M3FNUZ, E5M2, E2M1, UE8M0]


@pytest.mark.parametrize(
    "format, maximum, smallest",
    [(E4M3, 448, 2**-9), (E4M3FNUZ, 240, 2**-10), (E5M2, 57344, 2**-16), (E2M1, 6, 0.5), (UE8M0, 2.0**127, 2.0**-127)],
)
def test_limits_are_the_specified_ones(format, maximum, smallest):
    values = formats.decode(np.arange(1 << format.bits, dtype=np.uint8), format)
    assert format.maximum == maximum == values[np.isfinite(values)].max()
    assert values[values > 0].min() == smallest


def test_names():
    assert formats.named("e4m3") is formats.named("float8_e4m3fn") is formats.named(ml_dtypes.float8_e4m3fn) is E4M3
    assert formats.named(E5M2) is E5M2
    assert formats.of(np.dtype("float32")) is F32
    with pytest.raises(ValueError, match=r"'fp8'; wanted one of e4m3, e4m3fnuz"):
        formats.named("fp8")
    with pytest.raises(ValueError, match="wanted one of"):
        formats.of(">f4")


def test_names_of_torch():
    torch = pytest.importorskip("torch")
    assert formats.named(torch.float8_e4m3fn) is E4M3
    assert formats.named(torch.bfloat16) is BF16


@pytest.mark.parametrize("format", [E4M3, E4M3FNUZ, E5M2, E2M1, BF16, F16])
def test_cast_rounds_to_nearest_even_around_every_midpoint(format):
    codes = np.arange(1 << format.bits, dtype=np.uint16 if format.itemsize == 2 else np.uint8)
    values = formats.decode(codes, format, np.float64)
    positive = np.isfinite(values) & (codes < len(codes) // 2)
    codes, values = codes[positive], values[positive]
    middle = (values[:-1] + values[1:]) / 2
    even = np.where(codes[:-1] % 2 == 0, codes[:-1], codes[1:])
    for dtype in (np.float32, np.float64):
        tie = middle.astype(dtype)
        exact = tie == middle  # the smallest float32 subnormals have no midpoints
        for x, want in (
            (tie, even),
            (np.nextafter(tie, dtype(np.inf)), codes[1:]),
            (np.nextafter(tie, dtype(0)), codes[:-1]),
        ):
            got = formats.cast(x, format)
            np.testing.assert_array_equal(got.view(codes.dtype)[exact], want[exact])
            np.testing.assert_array_equal(formats.cast(-x, format).astype(dtype), -got.astype(dtype))


def test_cast_does_not_round_twice():
    just_above_tie = 1 + 2.0**-4 + 2.0**-40  # float32 would make it the tie, which goes down to 1
    assert formats.cast(just_above_tie, E4M3) == 1.125
    assert formats.cast(np.int64(2**24 + 2**16 + 1), BF16) == 2**24 + 2**17


def test_cast_saturates_on_request_and_keeps_nan():
    x = np.array([1e9, -np.inf, np.nan, 464.1], np.float32)
    np.testing.assert_array_equal(formats.cast(x, E4M3).astype(np.float32), [448, -448, np.nan, 448])
    assert np.isnan(formats.cast(x, E4M3, saturate=False).astype(np.float32)).all()
    np.testing.assert_array_equal(
        formats.cast(x, E5M2, saturate=False).astype(np.float32), [np.inf, -np.inf, np.nan, 448]
    )
    np.testing.assert_array_equal(formats.cast([1e39, 1.0], BF16).astype(np.float32), [np.inf, 1])
    assert formats.cast(np.zeros((0, 3), np.float32), E4M3).shape == (0, 3)
    with pytest.raises(ValueError, match="x holds NaN"):
        formats.cast(x, E2M1)
    with pytest.raises(ValueError, match="int32; wanted a floating-point format"):
        formats.cast(x, I32)


def test_powers_of_two_go_to_the_nearest():
    largest, smallest = 2.0**127, 2.0**-127
    x = [3.0, 2.9, largest * 1.4, 1e39, smallest, smallest * 1.5, smallest * 1.4, smallest / 8]
    want = [4, 2, largest, largest, smallest, smallest * 2, smallest, smallest]
    np.testing.assert_array_equal(formats.cast(x, UE8M0).astype(np.float64), want)
    x = np.float32([0, -0.0, -1, np.nan, -np.inf])
    assert (formats.cast(x, UE8M0).view(np.uint8) == 255).all()
    assert formats.cast([np.inf, 1.6 * largest], UE8M0, saturate=False).view(np.uint8).tolist() == [255, 255]


@pytest.mark.parametrize("format", SMALL)
def test_decode_and_cast_are_inverse(format):
    codes = np.arange(1 << format.bits, dtype=np.uint8)
    values = formats.decode(codes, format)
    kept = ~np.isnan(values)
    np.testing.assert_array_equal(formats.cast(values[kept], format, saturate=False).view(np.uint8), codes[kept])
    np.testing.assert_array_equal(formats.decode(codes.view(format.dtype), dtype=np.float64), values)


def test_decode_refuses_bytes_without_a_format():
    with pytest.raises(ValueError, match="format= to say"):
        formats.decode(np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="wanted 1 bytes each for e4m3"):
        formats.decode(np.zeros(3, np.uint16), E4M3)


def test_fnuz_conversions_keep_values():
    codes = np.arange(256, dtype=np.uint8)
    ocp, fnuz = formats.decode(codes, E4M3), formats.decode(codes, E4M3FNUZ)
    np.testing.assert_array_equal(formats.decode(formats.ocp_to_fnuz(codes), E4M3FNUZ) * 2, ocp)
    back = formats.decode(formats.fnuz_to_ocp(codes), E4M3) / 2
    beyond = np.abs(fnuz) == 240
    np.testing.assert_array_equal(back[~beyond], fnuz[~beyond])
    np.testing.assert_array_equal(back[beyond], np.copysign(224, fnuz[beyond]))


# fma32


def round_float32(x: Fraction) -> np.float32:
    """The float32 nearest to `x`, ties to even, by integers alone."""
    if x == 0:
        return np.float32(0)
    magnitude, exponent = abs(x), -149
    while magnitude >= Fraction(2) ** (exponent + 24):
        exponent += 1
    quotient, rest = divmod(magnitude, Fraction(2) ** exponent)
    half = Fraction(2) ** exponent / 2
    quotient += rest > half or (rest == half and quotient % 2)
    value = float(quotient * Fraction(2) ** exponent)
    return np.float32((1 if x > 0 else -1) * (np.inf if value >= 2.0**128 else value))


def assert_fma(a, b, c):
    got = formats.fma32(np.array([a]), np.array([b]), np.array([c]))
    assert got.dtype == np.float32
    want = round_float32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))
    assert got[0] == want, (a, b, c)


finite = st.floats(width=32, allow_nan=False, allow_infinity=False).map(np.float32)


@settings(max_examples=300)
@given(finite, finite, finite)
def test_fma_of_anything(a, b, c):
    assert_fma(a, b, c)


@settings(max_examples=500)
@given(
    st.integers(-(2**24), 2**24),
    st.integers(-(2**24), 2**24),
    st.integers(-(2**24), 2**24),
    st.integers(-80, 80),
    st.integers(-160, 80),
)
def test_fma_of_neighbouring_sizes(a, b, c, shift, c_shift):
    a, b = np.float32(a), np.ldexp(np.float32(b), shift)
    assert_fma(a, b, np.ldexp(np.float32(c), max(c_shift, -149)))


@settings(max_examples=300)
@given(st.integers(2**23, 2**24 - 1), st.integers(12, 23), st.sampled_from([-1, 1]), st.integers(-160, 60))
def test_fma_where_rounding_twice_is_wrong(c, small, sign, scale):
    """c plus nearly half its last bit: the sum in float64 may look like a tie, which goes to even."""
    above, below = np.float32(1 + 2.0**-small), np.float32(1 - 2.0**-small)  # their product is 1 - 4^-small
    assert_fma(above / 2, np.ldexp(sign * below, max(scale, -125)), np.ldexp(np.float32(c), scale))


def test_fma_traps():
    tiny, one = np.float32(2.0**-149), np.float32(1)
    assert_fma(np.float32(2.0**-75), np.float32(2.0**-75), np.float32(0))  # half the smallest: a tie, to zero
    assert_fma(np.float32(2.0**-75), np.float32(2.0**-75) * (1 + np.float32(2.0**-23)), np.float32(0))
    assert_fma(np.float32(2.0**-75), np.float32(2.0**-75), tiny)
    above = np.float32(2.0**-60)
    assert_fma(above, above, np.float32(1 + 2.0**-23))
    for c in (one, np.float32(1 + 2.0**-23), -one):
        assert_fma(np.float32(2.0**-12), np.float32(2.0**-12), c)  # a tie: exactly
        assert_fma(np.float32(2.0**-12), np.float32(2.0**-12 + 2.0**-35), c)
        assert_fma(np.float32(2.0**-12 + 2.0**-34), np.float32(2.0**-12 - 2.0**-34), c)  # below a tie by 2^-68
    largest = np.float32(formats.F32.maximum)
    assert_fma(largest, one, np.float32(2.0**102))
    assert_fma(largest, one, np.float32(2.0**103))


def test_fma_follows_ieee_beyond_numbers_and_broadcasts():
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    got = formats.fma32(
        np.float32([inf, inf, 0, nan, 1, 1]), np.float32([1, 1, inf, 1, 1, -1]), np.float32([1, -inf, 1, 1, inf, 1])
    )
    np.testing.assert_array_equal(got, np.float32([inf, nan, nan, nan, inf, 0]))
    assert formats.fma32(np.zeros((3, 1), np.float32), np.float32(1), np.zeros(4, np.float32)).shape == (3, 4)
    assert formats.fma32(np.float32(2), np.float32(3), np.float32(1)) == 7


def test_sums_are_rounded_once():
    """2^24 + 1 lies between two numbers of float32: what float64 cannot hold decides; and below 2^-126 too."""
    tie, half = 2.0**24 + 1, 2.0**-150
    x, y = np.array([tie, tie, tie, half, half, np.inf, 1.0]), np.array([0, 2.0**-60, -(2.0**-60), 2.0**-210, 0, 1, -1])
    want = np.array([2.0**24, 2.0**24 + 2, 2.0**24, 2.0**-149, 0, np.inf, 0], np.float32)
    np.testing.assert_array_equal(formats.sum32(x, y), want)
    total, lost = formats.two_sum(np.array([1.0, 2.0**60]), np.array([2.0**-60, -1.0]))
    assert total.tolist() == [1, 2.0**60] and lost.tolist() == [2.0**-60, -1]


def test_nan_as_kernels_store_it():
    x = np.array([0xFFC00001, 0x7F800001, 0x3F800000], np.uint32).view(np.float32)
    wanted = {"float32": (0x7FFFFFFF, 0x3F800000), "bfloat16": (0x7FFF, 0x3F80), "float16": (0x7FFF, 0x3C00)}
    for name, (nan, one) in wanted.items():
        result = formats.converted(x, formats.named(name))
        assert result.view(f"u{result.itemsize}").tolist() == [nan, nan, one]


def test_a_format_that_is_pickled_is_the_same() -> None:
    assert all(pickle.loads(pickle.dumps(each)) is each and copy.deepcopy(each) is each for each in formats.ALL)
