"""Hopper's arithmetic against a slow model in integers, and against mmasim where it is installed."""

import time
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from kingpost import formats
from kingpost.formats import BF16, E4M3, E5M2, F16, F32
from kingpost.targets.nvidia import arithmetic

PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2), (BF16, BF16)]
INTO_F16 = [*PAIRS[:4], (F16, F16)]
PRODUCTS = [*((*pair, F32) for pair in [*PAIRS, (F16, F16)]), *((*pair, F16) for pair in INTO_F16)]
SMALLEST_EXPONENT = {E4M3: -6, E5M2: -14, BF16: -126, F16: -14, F32: -126}
KINDS, SIZES = ("any", "small", "large", "sparse"), ("zero", "alike", "larger", "smaller", "subnormal")


def step(format):
    return 32 // format.itemsize


def codes(rng, rows, format, kind, columns=None):
    """Random codes of one kind, NaN and infinity replaced by the largest number."""
    if format is BF16:
        return codes_bf16(rng, (rows, columns or 16), kind)
    if format is F16:
        return codes_f16(rng, (rows, columns or 16), kind)
    x = rng.integers(0, 256, (rows, columns or 32), dtype=np.uint8)
    if kind == "small":
        x &= 0x8F
    elif kind == "large":
        x |= 0x70
    elif kind == "sparse":
        x[rng.random(x.shape) < 0.95] &= 0x80
    last = 0x7E if format is E4M3 else 0x7B
    return np.where((x & 0x7F) > last, (x & 0x80) | last, x).astype(np.uint8)


def codes_bf16(rng, shape, kind):
    """ "any": exponents near 1, as products' are; "small": products subnormal in float32, and subnormal operands;
    "large": sums up to infinity; "sparse": any, mostly zeros."""
    low, high = {"small": (0, 64), "large": (180, 190), "all": (0, 255)}.get(kind, (115, 135))
    x = rng.integers(low, high, shape) << 7 | rng.integers(0, 128, shape) | rng.integers(0, 2, shape) << 15
    if kind == "sparse":
        x[rng.random(shape) < 0.9] &= 0x8000
    return x.astype(np.uint16)


def codes_f16(rng, shape, kind):
    """As codes_bf16, "all" being every number."""
    low, high = {"small": (0, 3), "large": (28, 31), "all": (0, 31)}.get(kind, (9, 19))
    x = rng.integers(low, high, shape) << 10 | rng.integers(0, 1024, shape) | rng.integers(0, 2, shape) << 15
    if kind == "sparse":
        x[rng.random(shape) < 0.9] &= 0x8000
    return x.astype(np.uint16)


def accumulators(rng, shape, kind, format=F32):
    c = rng.standard_normal(shape).astype(np.float32)
    if kind == "larger":
        c = np.ldexp(c, rng.integers(5, 31, shape))
    elif kind == "smaller":
        c = np.ldexp(c, -rng.integers(5, 31, shape))
    elif kind == "subnormal":
        c = np.ldexp(c, -rng.integers(120, 149, shape))
    c = np.zeros(shape) if kind == "zero" else c
    return c.clip(-format.maximum, format.maximum).astype(format.dtype)


def step_in_integers(a, b, c, a_format, b_format, d_format):
    """One output of one step, as the paper writes it. a, b, c: Python floats."""
    fraction_bits, mantissa_bits = (25, 23) if a_format.bits == 16 else (13, 13)

    def exponent(x, format):
        return max(int(np.frexp(x)[1]) - 1, SMALLEST_EXPONENT[format])

    def toward_zero(x, grid):
        return int(x / grid) * grid  # int() truncates

    addends = [(Fraction(c), exponent(c, d_format) if c else -133), (Fraction(0), -133 if d_format is F32 else -21)]
    for x, y in zip(a, b):
        if x and y:
            addends.append((Fraction(x) * Fraction(y), exponent(x, a_format) + exponent(y, b_format)))
    grid = Fraction(2) ** (max(e for _, e in addends) - fraction_bits)
    total = sum(toward_zero(x, grid) for x, _ in addends)
    if d_format is F16:
        unit = Fraction(2) ** (exponent(float(total), F16) - 10)
        rounded = round(total / unit) * unit  # to even
        return float(rounded) if abs(rounded) < 2**16 else np.inf if total > 0 else -np.inf
    if abs(total) >= 2**128:
        return np.inf if total > 0 else -np.inf
    return float(toward_zero(total, Fraction(2) ** (exponent(float(total), F32) - mantissa_bits)))


@pytest.mark.parametrize("a_format, b_format, d_format", PRODUCTS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_papers(a_format, b_format, d_format, kind):
    rng = np.random.default_rng(1)
    a, b = codes(rng, 3, a_format, kind), codes(rng, 4, b_format, kind)
    for size in SIZES:
        c = accumulators(rng, (3, 4), size, d_format)
        got = arithmetic.wgmma_step(a, b, c, a_format, b_format, d_format)
        x, y = formats.decode(a, a_format, np.float64), formats.decode(b, b_format, np.float64)
        formats_ = a_format, b_format, d_format
        want = [[step_in_integers(x[i], y[j], float(c[i, j]), *formats_) for j in range(4)] for i in range(3)]
        assert got.dtype == d_format.dtype and got.tobytes() == np.array(want, d_format.dtype).tobytes()


@pytest.mark.parametrize("a_format, b_format, d_format", PRODUCTS, ids=str)
def test_a_step_is_mmasims(a_format, b_format, d_format):
    torch = pytest.importorskip("torch")
    simulator = pytest.importorskip("mmasim.nv_ptx.sim")
    k = step(a_format)
    short = {BF16: "bf16", F16: "f16", F32: "f32"}
    names = [short.get(format, format.name) for format in (d_format, a_format, b_format)]
    simulated = simulator.WGMMA("Hopper", f"m64n64k{k}.{'.'.join(names)}")
    rng = np.random.default_rng(2)
    for kind in (*KINDS, "all"):
        for size in SIZES:
            a, b = codes(rng, 24, a_format, kind), codes(rng, 32, b_format, kind)
            c = accumulators(rng, (24, 32), size, d_format)
            if kind == "any":
                a[0, 0], b[5, 7] = (0x7FC0, 0xFFFF) if a_format.bits == 16 else (0x7F, 0xFF)
                c[9, 9], c[10, 10] = np.nan, np.inf
            x, y = (
                torch.from_numpy(operand).view(getattr(torch, format.dtype.name))
                for operand, format in ((a, a_format), (b, b_format))
            )
            want = simulated(x, y.T, torch.from_numpy(c)).numpy()
            got = arithmetic.wgmma_step(a, b, c, a_format, b_format, d_format)
            unsigned = f"u{d_format.itemsize}"
            np.testing.assert_array_equal(got.view(unsigned), want.view(unsigned))


def test_zeros_nan_and_infinity():
    zero, one, nan = (np.full((1, 32), code, np.uint8) for code in (0x80, 0x38, 0x7F))
    c = np.float32([[-0.0]])
    assert arithmetic.wgmma_f32(zero, one, c).view(np.uint32)[0, 0] == 0
    assert arithmetic.wgmma_f32(zero, nan).view(np.uint32)[0, 0] == 0x7FFFFFFF
    assert arithmetic.wgmma_f32(one, one, np.float32([[np.nan]])).view(np.uint32)[0, 0] == 0x7FFFFFFF
    assert arithmetic.wgmma_f32(one, one, np.float32([[-np.inf]]))[0, 0] == -np.inf
    infinite = np.full((1, 32), 0x7C, np.uint8)
    assert arithmetic.wgmma_f32(infinite, one, None, E5M2)[0, 0] == np.inf
    assert np.isnan(arithmetic.wgmma_f32(infinite, zero, None, E5M2)[0, 0])


def test_zeros_nan_and_infinity_of_bfloat16():
    def total(*a, c=None):
        """The sum of a, by one step against ones."""
        row, ones = np.zeros((1, 16), ml_dtypes.bfloat16), np.ones((1, 16), ml_dtypes.bfloat16)
        row[0, : len(a)] = a
        return arithmetic.chain_bf16(row, ones, None if c is None else np.float32([[c]])).view(np.uint32)[0, 0]

    def bits(x):
        return np.float32(x).view(np.uint32)

    assert total(-0.0, c=-0.0) == 0
    assert total(np.nan) == total(np.inf, -np.inf) == total(1.0, c=np.nan) == total(np.inf, c=-np.inf) == 0x7FFFFFFF
    assert total(1.0, -np.inf) == total(1.0, c=-np.inf) == bits(-np.inf)
    large = 2.0**127
    assert total(large, large) == bits(np.inf) and total(-large, c=-large) == bits(-np.inf)
    assert total(large, large, -large) == bits(large)
    squares = np.full((1, 16), 2.0**100, ml_dtypes.bfloat16)
    assert arithmetic.chain_bf16(squares, -squares)[0, 0] == -np.inf
    assert total(2.0**-133, 2.0**-133) == bits(2.0**-132)  # a subnormal operand, a subnormal sum
    assert total(1.0, 2.0**-24, c=2.0**-25) == bits(1.0) and total(2.0, -(2.0**-24)) == bits(2.0 - 2.0**-23)


def test_float16_sums_are_rounded_once_and_to_even():
    def total(*a, c=0.0):
        """The sum of a, by one step against ones."""
        row, ones = np.zeros((1, 16), np.float16), np.ones((1, 16), np.float16)
        row[0, : len(a)] = a
        codes = (x.view(np.uint16) for x in (row, ones))
        return arithmetic.wgmma_step(*codes, np.float16([[c]]), F16, F16, F16).view(np.uint16)[0, 0]

    def bits(x):
        return np.float16(x).view(np.uint16)

    assert total(2048, 1) == bits(2048) and total(2048, 1, c=2) == bits(2052) and total(2048, 1, 2**-10) == bits(2050)
    assert total(65504, 15.99) == bits(65504) and total(65504, 16) == bits(np.inf) == total(np.inf, c=1)
    assert total(-0.0, c=-0.0) == 0 and total(2**-24, c=-(2**-24)) == 0 and total(2**-24, c=2**-24) == bits(2**-23)
    assert total(np.nan) == total(np.inf, -np.inf) == total(1, c=np.nan) == total(np.inf, c=-np.inf) == 0x7FFF


def test_special_values_stay_in_their_rows_and_columns():
    rng = np.random.default_rng(3)
    a, b = codes(rng, 5, E4M3, "any"), codes(rng, 6, E4M3, "any")
    c = accumulators(rng, (5, 6), "alike")
    want = arithmetic.wgmma_f32(a, b, c)
    a[2, 3] = 0x7F
    got = arithmetic.wgmma_f32(a, b, c)
    assert np.isnan(got[2]).all()
    np.testing.assert_array_equal(np.delete(got, 2, 0), np.delete(want, 2, 0))


def test_tiles_do_not_matter():
    rng = np.random.default_rng(4)
    a, b = codes(rng, 70, E4M3, "any", 128), codes(rng, 300, E4M3, "any", 128)
    whole = arithmetic.block_product(a, b)
    np.testing.assert_array_equal(whole[69:, 299:], arithmetic.block_product(a[69:], b[299:]))
    np.testing.assert_array_equal(whole[:1], arithmetic.block_product(a[:1], b))
    assert arithmetic.block_product(a[:0], b).shape == (0, 300)


def test_blocks_are_chains_of_steps_and_the_product_promotes_them():
    rng = np.random.default_rng(5)
    a, b = codes(rng, 7, E4M3, "any", 208), codes(rng, 9, E4M3, "any", 208)
    a_scales, b_scales = (rng.random((rows, 2)).astype(np.float32) for rows in (7, 9))
    total = np.zeros((7, 9), np.float32)
    for block, (start, stop) in enumerate(((0, 128), (128, 208))):
        partial = None
        for k in range(start, stop, 32):
            x, y = (np.pad(z[:, k : min(k + 32, stop)], ((0, 0), (0, max(0, k + 32 - stop)))) for z in (a, b))
            partial = arithmetic.wgmma_f32(x, y, partial)
        np.testing.assert_array_equal(partial, arithmetic.block_product(a[:, start:stop], b[:, start:stop]))
        total = formats.fma32(partial, a_scales[:, block, None] * b_scales[None, :, block], total)
    np.testing.assert_array_equal(arithmetic.promoted_product(a, a_scales, b, b_scales), total)
    a_scales[3, 1] = np.nan
    got = arithmetic.promoted_product(a, a_scales, b, b_scales)
    assert (got[3].view(np.uint32) == 0x7FFFFFFF).all()
    np.testing.assert_array_equal(np.delete(got, 3, 0), np.delete(total, 3, 0))


def test_a_chain_of_bfloat16_is_steps_from_the_accumulator_before():
    rng = np.random.default_rng(6)
    a, b = codes(rng, 70, BF16, "any", 200), codes(rng, 300, BF16, "any", 200)
    c = accumulators(rng, (70, 300), "alike")
    total = c
    for k in range(0, 200, 16):
        x, y = (np.pad(z[:, k : k + 16], ((0, 0), (0, max(0, k - 184)))) for z in (a, b))
        total = arithmetic.wgmma_f32(x, y, total, BF16, BF16)
    got = arithmetic.chain_bf16(a.view(ml_dtypes.bfloat16), b.view(ml_dtypes.bfloat16), c)
    np.testing.assert_array_equal(got.view(np.uint32), total.view(np.uint32))
    np.testing.assert_array_equal(arithmetic.chain_bf16(a[:1], b[299:], c[:1, 299:]), got[:1, 299:])
    assert (got != arithmetic.chain_bf16(a, b)).any()


def test_a_chain_of_bfloat16_is_close_and_fast():
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal((128, 512)).astype(ml_dtypes.bfloat16) for _ in "ab")
    start = time.perf_counter()
    got = arithmetic.chain_bf16(a, b)
    assert time.perf_counter() - start < 2
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert 0 < np.abs(got - exact).max() < 512 / 16 * 2.0**-23 * np.abs(exact).max() * 4


def test_refusals():
    a, scales = np.zeros((4, 32), np.uint8), np.ones((4, 1), np.float32)
    with pytest.raises(ValueError, match=r"a_codes are \(4, 16\).*wanted \[M, 32\]"):
        arithmetic.wgmma_f32(a[:, :16], a)
    with pytest.raises(ValueError, match=r"codes are float32 \(4, 32\); wanted uint8"):
        arithmetic.wgmma_f32(a.astype(np.float32), a)
    with pytest.raises(ValueError, match="a_format is e4m3fnuz; Hopper multiplies e4m3, e5m2, bfloat16 and float16"):
        arithmetic.wgmma_f32(a, a, None, formats.E4M3FNUZ)
    with pytest.raises(ValueError, match="a_format is bfloat16, b_format e4m3; two of fp8 or the same are wanted"):
        arithmetic.chain(a, a, None, BF16)
    with pytest.raises(ValueError, match="a_format is bfloat16, b_format float16; two of fp8 or the same are wanted"):
        arithmetic.chain(a, a, None, BF16, F16)
    with pytest.raises(ValueError, match="d_format is float16; float32 is wanted for bfloat16"):
        arithmetic.chain(a, a, None, BF16, BF16, F16)
    with pytest.raises(ValueError, match="d_format is bfloat16; float32 or float16 is wanted for e4m3"):
        arithmetic.chain(a, a, None, d_format=BF16)
    with pytest.raises(ValueError, match="a has K = 32, b 64; the same K is wanted"):
        arithmetic.chain(a, np.zeros((4, 64), np.uint8))
    with pytest.raises(ValueError, match=r"codes are uint8 \(4, 32\); wanted uint16"):
        arithmetic.chain(a, a, None, BF16, BF16)
    with pytest.raises(ValueError, match=r"c is \(1, 4\); wanted \(4, 4\)"):
        arithmetic.wgmma_f32(a, a, np.zeros((1, 4), np.float32))
    with pytest.raises(ValueError, match=r"b_scales is float32 \(4, 2\); wanted float32 \(4, 1\)"):
        arithmetic.promoted_product(a, scales, a, np.ones((4, 2), np.float32))
