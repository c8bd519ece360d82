"""Blackwell's tensor-core arithmetic: against the model in exact fractions, and mmasim where it is installed."""

from __future__ import annotations

from fractions import Fraction
from math import frexp, isfinite

import numpy as np
import pytest

from kingpost.formats import BF16, E4M3, E5M2, F16, UE8M0, Format, decode
from kingpost.targets.nvidia.blackwell_arithmetic import (
    FRACTION_BITS,
    SMALLEST_EXPONENTS,
    promoted_product,
    tcgen05_f32,
)

FORMATS = list(SMALLEST_EXPONENTS)
M, N, STEPS = 8, 4, 2


def operand(random: np.random.Generator, rows: int, format: Format, kind: str, steps: int = STEPS) -> np.ndarray:
    """Codes [rows, K]: "any" of them, NaN and infinity too; "finite"; or "small", subnormal and next to it."""
    shape = rows, steps * 32 // format.itemsize
    codes = random.integers(0, 1 << format.bits, shape).astype(f"u{format.itemsize}")
    if kind == "any":
        return codes
    if kind == "small":
        sign, fraction_bits = 1 << (format.bits - 1), {E4M3: 3, E5M2: 2, F16: 10, BF16: 7}[format]
        codes &= codes.dtype.type(sign | (4 << fraction_bits) - 1)
    return np.where(np.isfinite(decode(codes, format)), codes, 0).astype(codes.dtype)


def accumulator(random: np.random.Generator, kind: str, shape: tuple[int, int] = (M, N)) -> np.ndarray:
    match kind:
        case "zero":
            return np.zeros(shape, np.float32)
        case "any size":
            return (random.standard_normal(shape) * 2.0 ** random.integers(-60, 60, shape)).astype(np.float32)
    return random.integers(0, 1 << 32, shape).astype(np.uint32).view(np.float32)


def exponent(value: float, smallest: int) -> int:
    return max(frexp(value)[1] - 1, smallest)


def truncated(value: Fraction, unit: Fraction) -> Fraction:
    return int(value / unit) * unit  # int truncates toward zero


def exact_step(a: list[float], b: list[float], c: float, formats: tuple[Format, Format]) -> np.float32:
    """One step on finite operands by the words of the model."""
    smallest = [SMALLEST_EXPONENTS[format] for format in formats]
    addends = [(Fraction(x) * Fraction(y), exponent(x, smallest[0]) + exponent(y, smallest[1])) for x, y in zip(a, b)]
    addends.append((Fraction(c), exponent(c, -126)))
    largest = max((e for value, e in addends if value), default=-133)
    unit = Fraction(2) ** (max(largest, -133) - FRACTION_BITS)
    total = sum((truncated(value, unit) for value, _ in addends), Fraction(0))
    if not total:
        return np.float32(0)
    magnitude = exponent(float(total), -126)
    if magnitude >= 128:
        return np.float32(np.inf if total > 0 else -np.inf)
    return np.float32(float(truncated(total, Fraction(2) ** (magnitude - 23))))


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("kind", ["finite", "small"])
@pytest.mark.parametrize("start", ["zero", "any size"])
def test_the_model_in_fractions(format: Format, kind: str, start: str) -> None:
    random = np.random.default_rng(1)
    a, b, c = operand(random, M, format, kind), operand(random, N, format, kind), accumulator(random, start)
    if not np.isfinite(decode(a, format)).all():
        a &= a.dtype.type(0x3F)
    found = tcgen05_f32(a, b, c, format, format)
    step = a.shape[1] // STEPS
    x, y = decode(a, format).astype(float), decode(b, format).astype(float)
    for m in range(M):
        for n in range(N):
            total = c[m, n]
            for k in range(0, a.shape[1], step):
                if isfinite(total):
                    part = slice(k, k + step)
                    total = exact_step(list(x[m, part]), list(y[n, part]), float(total), (format, format))
            assert found[m, n].view(np.uint32) == total.view(np.uint32), (m, n, found[m, n], total)


def test_scales_count_with_the_exponents() -> None:
    """Powers of two on both operands scale the result alone, as long as nothing overflows or is subnormal."""
    random = np.random.default_rng(2)
    a, b = operand(random, M, E4M3, "finite"), operand(random, N, E5M2, "finite")
    one = [np.full((rows, STEPS), 127, np.uint8) for rows in (M, N)]
    plain = tcgen05_f32(a, b, None, E4M3, E5M2)
    np.testing.assert_array_equal(tcgen05_f32(a, b, None, E4M3, E5M2, *one), plain)
    scaled = tcgen05_f32(a, b, None, E4M3, E5M2, one[0] + np.uint8(10), one[1] - np.uint8(30))
    np.testing.assert_array_equal(scaled, plain * np.float32(2.0**-20))


def test_special_values() -> None:
    a, b = np.zeros((4, 32), np.uint8), np.full((1, 32), 0x3C, np.uint8)  # e5m2: ones
    a[0, 0], a[1, 3], a[2, 5:7] = 0x7F, 0x7C, (0x7C, 0xFC)  # NaN, infinity, both infinities
    found = tcgen05_f32(a, b, np.full((4, 1), -0.0, np.float32), E5M2, E5M2)
    assert found[:, 0].view(np.uint32).tolist() == [0x7FFFFFFF, 0x7F800000, 0x7FFFFFFF, 0]
    scales = np.full((4, 1), 127, np.uint8), np.full((1, 1), 255, np.uint8)  # a scale that is NaN
    assert (tcgen05_f32(a, b, None, E5M2, E5M2, *scales).view(np.uint32) == 0x7FFFFFFF).all()


def test_no_chain_is_as_wrong_as_hoppers() -> None:
    """Blackwell keeps 25 fraction bits: small addends survive beside large ones."""
    a, b = np.full((1, 32), 0x01, np.uint8), np.full((1, 32), 0x01, np.uint8)
    a[0, 0], b[0, 0] = 0x38, 0x38  # 1, beside 31 products of 2^-18
    assert tcgen05_f32(a, b)[0, 0] == np.float32(1 + 31 * 2.0**-18)


def test_promotion() -> None:
    random = np.random.default_rng(3)
    a, b = random.integers(0, 0x78, (M, 160)).astype(np.uint8), random.integers(0, 0x78, (N, 160)).astype(np.uint8)
    scales = [random.random((rows, 2), np.float32) for rows in (M, N)]
    found = promoted_product(a, scales[0], b, scales[1])
    real = [decode(codes, E4M3, np.float64) * np.repeat(s, 128, 1)[:, :160] for codes, s in zip((a, b), scales)]
    np.testing.assert_allclose(found, real[0] @ real[1].T, rtol=1e-6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((np.zeros((2, 40), np.uint8), np.zeros((2, 40), np.uint8)), "a multiple of 32, wanted"),
        ((np.zeros((2, 32), np.uint8), np.zeros((2, 64), np.uint8)), "equal K"),
        ((np.zeros((2, 32), np.uint8), np.zeros((2, 32), np.uint8), np.zeros((3, 2), np.float32)), r"c is \(3, 2\)"),
        ((np.zeros((2, 32), np.uint8),) * 2 + (None, UE8M0), "format is ue8m0"),
        ((np.zeros((2, 32), np.uint8),) * 2 + (None, E4M3, E4M3) + (np.zeros((2, 2), np.uint8),) * 2, "one for 32"),
    ],
)
def test_refusals(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tcgen05_f32(*arguments)


# mmasim 2.1.1 (arXiv 2511.10909), an independent implementation on torch


NAMES = {  # as PTX and torch have them
    E4M3: ("e4m3", "float8_e4m3fn"),
    E5M2: ("e5m2", "float8_e5m2"),
    F16: ("f16", "float16"),
    BF16: ("bf16", "bfloat16"),
}


def tensor(codes: np.ndarray, dtype: str):  # type: ignore[no-untyped-def]
    torch = pytest.importorskip("torch")
    return torch.from_numpy(codes.view(f"i{codes.itemsize}" if codes.itemsize > 1 else np.uint8)).view(
        getattr(torch, dtype)
    )


def same_bits(found: np.ndarray, theirs) -> None:  # type: ignore[no-untyped-def]
    np.testing.assert_array_equal(found.view(np.uint32), theirs.numpy().view(np.uint32))


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("kind", ["any", "finite", "small"])
@pytest.mark.parametrize("start", ["zero", "any size", "any bits"])
def test_mmasim(format: Format, kind: str, start: str) -> None:
    torch = pytest.importorskip("torch")
    sim = pytest.importorskip("mmasim.nv_ptx.sim")
    random, (name, dtype), n = np.random.default_rng(4), NAMES[format], 64
    step = 32 // format.itemsize
    family = "kind::f16" if format.itemsize == 2 else "kind::f8f6f4"
    multiply = sim.TCGen05MMA("Blackwell", f"m128n{n}k{step}.{family}.f32.{name}.{name}")
    a, b = operand(random, 128, format, kind, 1), operand(random, n, format, kind, 1)
    c = accumulator(random, start, (128, n))
    found = tcgen05_f32(a, b, c, format, format)
    same_bits(found, multiply(tensor(a, dtype), tensor(b, dtype).T, torch.from_numpy(c)))


@pytest.mark.parametrize("a_format", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("b_format", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("scale_codes", [(110, 140), (0, 255), (0, 256)])
@pytest.mark.parametrize("start", ["zero", "any size"])
def test_mmasim_block_scaled(a_format: Format, b_format: Format, scale_codes: tuple[int, int], start: str) -> None:
    torch = pytest.importorskip("torch")
    sim = pytest.importorskip("mmasim.nv_ptx.sim")
    random, n = np.random.default_rng(5), 64
    (a_name, a_dtype), (b_name, b_dtype) = NAMES[a_format], NAMES[b_format]
    shape = f"m128n{n}k32.kind::mxf8f6f4.block32.f32.{a_name}.{b_name}.ue8m0"
    a, b = operand(random, 128, a_format, "finite", 1), operand(random, n, b_format, "finite", 1)
    scales = [random.integers(*scale_codes, (rows, 1)).astype(np.uint8) for rows in (128, n)]
    c = accumulator(random, start, (128, n))
    theirs = sim.TCGen05MMABlockScale("Blackwell", shape)(
        tensor(a, a_dtype), tensor(b, b_dtype).T, torch.from_numpy(c),
        tensor(scales[0], "float8_e8m0fnu"), tensor(scales[1], "float8_e8m0fnu").T,
    )  # fmt: skip
    same_bits(tcgen05_f32(a, b, c, a_format, b_format, *scales), theirs)
