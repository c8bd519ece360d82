"""A kernel that shows what wgmma computes, the operands to show it on, and the golden vectors that a chip gave.

One block is one case: A [64, K] and B [n, K], K being 128 bytes, through shared memory, swizzled, and four chained
steps of one kind of wgmma, once from an accumulator C [64, n] and once from zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kingpost.arrays import view
from kingpost.formats import BF16, E4M3, E5M2, Format, decode
from kingpost.program import Builder, Launch, Registers, TensorMap, TensorMapType, f32, kernel, u32, u64
from kingpost.program.memory import SharedArray
from kingpost.targets.nvidia.arithmetic import wgmma_f32
from kingpost.targets.nvidia.isa.common import (
    bulk_load_2d,
    elect,
    fence_mbarrier_init,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
)
from kingpost.targets.nvidia.isa.hopper import matrix_descriptor, wgmma, wgmma_commit, wgmma_fence, wgmma_wait

SIZES = range(8, 257, 8)  # every N of the family
ROWS, DEPTH, STEPS = 64, 128, 4  # DEPTH: bytes of K
GOLDEN = Path(__file__).parents[2] / "golden" / "wgmma_e4m3.npz"


class Kind(NamedTuple):
    """What is multiplied, and which dimension of each operand is contiguous in memory."""

    a_format: Format = E4M3
    b_format: Format = E4M3
    a_major: str = "k"
    b_major: str = "k"

    @property
    def depth(self) -> int:
        return DEPTH // self.a_format.itemsize

    @property
    def step(self) -> int:
        return self.depth // STEPS

    def __str__(self) -> str:
        return f"{self.a_format} {self.a_major}, {self.b_format} {self.b_major}"


E4M3_KIND = Kind()
KINDS = [Kind(a, b) for a in (E4M3, E5M2) for b in (E4M3, E5M2)] + [
    Kind(BF16, BF16, a, b) for a in ("k", "mn") for b in ("k", "mn")
]


@kernel(target="sm_90a")
def wgmma_probe(k: Builder, *, n: int, kind: Kind = E4M3_KIND) -> None:
    """d[0] = c + a b^T and d[1] = a b^T for each block's case: d is [cases, 2, 64, n], c [cases, 64, n]."""
    a, b = _Tile(k, "a", ROWS, kind.a_format, kind.a_major), _Tile(k, "b", n, kind.b_format, kind.b_major)
    c_address, d_address = k.parameter("c", u64), k.parameter("d", u64)
    arrived = k.shared_barriers("arrived", 1).at(0)

    with k.role("probe", warps=4) as warp:
        with k.when(warp == 0), k.mask(elect(k)):
            mbarrier_init(k, arrived, count=1)
            fence_mbarrier_init(k)
            mbarrier_arrive_expect(k, arrived, bytes=a.array.bytes + b.array.bytes)
            a.load(arrived)
            b.load(arrived)
        k.barrier()
        mbarrier_wait(k, arrived, 0)

        matrix_bytes = ROWS * n * 4
        first = ((warp * 16 + k.lane // 4) * n + k.lane % 4 * 2) * 4  # byte of this lane's register 0
        c_own = k.address(c_address, k.block * matrix_bytes + first)
        d_own = k.address(d_address, k.block * (2 * matrix_bytes) + first)
        total = k.array(f32, n // 2, "total")
        for i in range(n // 2):
            k.load(f32, c_own, offset=offset(i, n), into=total[i])
        _multiply(k, a, b, total, n, kind, from_zero=False)
        for i in range(n // 2):
            k.store(d_own, total[i], offset=offset(i, n))
        _multiply(k, a, b, total, n, kind, from_zero=True)
        for i in range(n // 2):
            k.store(d_own, total[i], offset=matrix_bytes + offset(i, n))


class _Tile:
    """An operand of `rows` rows: K-major as one box, MN-major as boxes of as many columns as the swizzle takes."""

    def __init__(self, k: Builder, name: str, rows: int, format: Format, major: str) -> None:
        self.k, self.major, self.rows = k, major, rows
        depth, size = DEPTH // format.itemsize, format.itemsize
        wide = major == "k" or rows * size not in (32, 64)  # then in memory the rest of a line is filled with zeros
        self.span = 128 if wide else rows * size
        box = (rows, depth) if major == "k" else (depth, self.span // size)
        count = 1 if major == "k" else -(-rows // box[1])
        self.map = k.tensor_map(name, format, box, self.span)
        self.array: SharedArray = k.shared(f"{name}_tile", (count, *box), format, self.span)

    def load(self, barrier: Registers) -> None:
        """The block's own case of [cases * rows, K] or [cases * K, rows]."""
        k, type = self.k, self.map.type
        assert isinstance(type, TensorMapType)
        for i in range(self.array.shape[0]):
            column = k.new(u32, i * type.box[1])
            row = k.block * type.box[0]
            bulk_load_2d(k, self.array.at(i), self.map.register, row, column, barrier, type=type)

    def descriptor(self, step: int) -> Registers:
        span = self.span
        offset = 32 * step if self.major == "k" else span * (self.array.shape[1] // STEPS) * step
        leading = 0 if self.major == "k" else self.array.stride
        place = self.array.at(0)
        return matrix_descriptor(self.k, place, offset=offset, stride=8 * span, swizzle=span, leading=leading)


def offset(i: int, n: int) -> int:
    """Bytes from a lane's register 0 to its register i in a float32 matrix of n columns."""
    return (i // 2 % 2 * 8 * n + i // 4 * 8 + i % 2) * 4


def _multiply(k: Builder, a: _Tile, b: _Tile, total: Registers, n: int, kind: Kind, from_zero: bool) -> None:
    wgmma_fence(k)
    for step in range(STEPS):
        accumulate = step > 0 or not from_zero
        wgmma(k, a.descriptor(step), b.descriptor(step), into=total, n=n, accumulate=accumulate, **kind._asdict())
    wgmma_commit(k)
    wgmma_wait(k, groups=0)


class Cases(NamedTuple):
    """a: codes [cases, 64, K]; b: [cases, n, K]; c: float32 [cases, 64, n]."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray

    def take(self, count: int) -> Cases:
        return Cases(*(x[:count] for x in self))


OPERANDS = ("any byte", "subnormal and small", "largest exponents", "normal")
ACCUMULATORS = ("zero", "of the product's size", "larger", "smaller")
NAMES = ("everything mixed", *(f"{o}, {c}" for o in OPERANDS for c in ACCUMULATORS), "NaN, infinity and zero")


class _Random:
    """Integers from a generator's raw output, which numpy promises not to change."""

    def __init__(self, *seed: int) -> None:
        self.bits = np.random.PCG64(seed)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        return low + (self.bits.random_raw(shape) >> np.uint64(11)).astype(np.int64) % (high - low)


def cases(n: int) -> Cases:
    """The same operands on every machine: case 0 mixes all kinds, then each kind alone, then NaN, infinity and zero."""
    random = _Random(n, 0xE4)
    made = [_mixed(random, n)]
    made += [
        (_codes(random, ROWS, o), _codes(random, n, o), _accumulators(random, n, o, c))
        for o in OPERANDS for c in ACCUMULATORS
    ]  # fmt: skip
    made.append(_special(random, n))
    return Cases(*map(np.stack, zip(*made)))


def _codes(random: _Random, rows: int, kind: str) -> np.ndarray:
    """e4m3 codes [rows, 128] without NaN."""
    shape = (rows, DEPTH)
    sign = random.integers(0, 2, shape) << 7
    match kind:
        case "any byte":
            low = random.integers(0, 0x7F, shape)
        case "subnormal and small":
            low = random.integers(0, 3 << 3, shape)
        case "largest exponents":
            low = random.integers(13 << 3, 0x7F, shape)
        case _:  # 2^-4 to 2^1, each exponent half as often as the next
            exponent = 2 + np.frexp(random.integers(1, 64, shape))[1]
            low = exponent << 3 | random.integers(0, 8, shape)
    return (sign | low).astype(np.uint8)


def _accumulators(random: _Random, n: int, operands: str, kind: str) -> np.ndarray:
    """float32 [64, n], all 24 bits of the significand in use."""
    shape = (ROWS, n)
    size = {"any byte": 14, "subnormal and small": -7, "largest exponents": 19, "normal": 4}[operands]  # of the product
    match kind:
        case "zero":
            return np.zeros(shape, np.float32)
        case "of the product's size":
            shift = random.integers(-3, 4, shape)
        case "larger":
            shift = random.integers(5, 31, shape)
        case _:
            shift = -random.integers(5, 31, shape)
    sign, fraction = random.integers(0, 2, shape), random.integers(0, 1 << 23, shape)
    return (sign << 31 | 127 + size + shift << 23 | fraction).astype(np.uint32).view(np.float32)


def _mixed(random: _Random, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a, columns of b and elements of c of every kind, each against each."""
    a, b = np.empty((ROWS, DEPTH), np.uint8), np.empty((n, DEPTH), np.uint8)
    for i, kind in enumerate(OPERANDS):
        a[i::4], b[i::4] = _codes(random, len(a[i::4]), kind), _codes(random, len(b[i::4]), kind)
    kinds = [_accumulators(random, n, "any byte", kind) for kind in ACCUMULATORS]
    return a, b, np.choose(random.integers(0, 4, (ROWS, n)), kinds)


def _special(random: _Random, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NaN and infinities among the rest; rows of zeros, under accumulators of every size and sign."""
    a, b, c = _mixed(random, n)
    a[5, 7] = b[3, 100] = 0x7F
    a[40, 127] = 0xFF
    c[9, 2], c[10, 1], c[11, 4] = np.inf, -np.inf, np.nan
    a[12], a[13], a[14] = 0x00, 0x80, 0x00
    a[14, 50] = 0x01  # the smallest product there is, once b has such a code too
    c[12:15, 0], c[12:15, 1], c[12:15, 2] = -0.0, 1e-40, -1e-40
    c[12:15, 4], c[12:15, 5], c[12:15, 6] = 3.4e38, -3.4e38, 1e-30
    return a, b, c


# The other kinds: each case mixes accumulators of every size


_FIELDS = {E4M3: (3, 7, 0x7F), E5M2: (2, 15, 0x7C), BF16: (7, 127, 0x7F80)}  # fraction bits, bias, the first no number
CASES = ("near one", "every number", "subnormal", "small products", "largest", "cancelling", "NaN and infinity")


def cases_of(kind: Kind, n: int) -> Cases:
    """Operands of any kind: as CASES names them."""
    random = np.random.default_rng([n, *map(ord, str(kind))])
    return Cases(*map(np.stack, zip(*(_case(random, kind, n, name) for name in CASES))))


def _case(random: np.random.Generator, kind: Kind, n: int, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    a, b = (
        _numbers(random, (rows, kind.depth), format, name, operand)
        for operand, (rows, format) in enumerate(((ROWS, kind.a_format), (n, kind.b_format)))
    )
    if name == "cancelling":  # pairs of products that differ in b's last bit, or not at all
        sign = 1 << 8 * kind.a_format.itemsize - 1
        a[:, 1::2] = a[:, ::2] ^ sign
        b[:, 1::2] = b[:, ::2] ^ random.integers(0, 2, b[:, ::2].shape, dtype=b.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = decode(a, kind.a_format, np.float64) @ decode(b, kind.b_format, np.float64).T
        c = np.ldexp(random.standard_normal(exact.shape), random.integers(-30, 31, exact.shape))
        c = (c * np.median(np.abs(exact))).astype(np.float32)
    c[random.random(c.shape) < 0.3] = 0
    if name == "NaN and infinity":
        no_number = _FIELDS[kind.a_format][2]
        a[5, 7] = b[3, -1] = no_number  # infinity, or e4m3's NaN
        a[40, 3] = no_number + 1 if kind.a_format is not E4M3 else 0xFF
        c[9, 2], c[10, 1], c[11, 4] = np.inf, -np.inf, np.nan
        a[12] = 0
        c[12, :4] = -0.0, 1e-40, -1e-40, 3.4e38
    return a, b, c


def _numbers(
    random: np.random.Generator, shape: tuple[int, int], format: Format, name: str, operand: int
) -> np.ndarray:
    bits, bias, limit = _FIELDS[format]
    small = {BF16: 50}.get(format, 1)  # the product of two of these is subnormal in float32, if it can be
    low, high = {
        "every number": (0, limit),
        "subnormal": ((0, 2 << bits), (limit - (4 << bits), limit))[operand],
        "small products": (small << bits, small + 9 << bits),
        "largest": (limit - (3 << bits), limit),
    }.get(name, (bias - 4 << bits, bias + 4 << bits))
    sign = random.integers(0, 2, shape) << format.bits - 1
    return (sign | random.integers(low, min(high, limit), shape)).astype(f"u{format.itemsize}")


def launch(given: Cases, d: np.ndarray, kind: Kind = E4M3_KIND) -> Launch:
    """The probe on these cases, into d, float32 [cases, 2, 64, n]."""
    count, n, _ = given.b.shape
    program = wgmma_probe(n=n, kind=kind)
    c, result = view(given.c), view(d)
    arguments: dict[str, Any] = {"c": c.pointer, "d": result.pointer}
    for name, x, format, major in (("a", given.a, kind.a_format, kind.a_major), ("b", given.b, *kind[1::2])):
        lines = x if major == "k" else np.ascontiguousarray(x.transpose(0, 2, 1))
        type = next(parameter.type for parameter in program.parameters if parameter.name == name)
        assert isinstance(type, TensorMapType)
        arguments[name] = TensorMap(type, view(lines.reshape(-1, lines.shape[2]).view(format.dtype)))
    return Launch(program, count, arguments, (c, result))


def model(given: Cases, kind: Kind = E4M3_KIND) -> np.ndarray:
    """What the probe must give, by the arithmetic model: float32 [cases, 2, 64, n]."""
    results, formats = [], (kind.a_format, kind.b_format)
    for a, b, c in zip(*given):
        for total in (c, np.zeros_like(c)):
            for k in range(0, kind.depth, kind.step):
                total = wgmma_f32(a[:, k : k + kind.step], b[:, k : k + kind.step], total, *formats)
            results.append(total)
    count, rows, n = given.c.shape
    return np.stack(results).reshape(count, 2, rows, n)


# Golden vectors: for every n, the bits of case 0 from its accumulator, and a digest of each result


def digests(d: np.ndarray) -> np.ndarray:
    """SHA-256 of every matrix's bits, little-endian: uint8 [cases, 2, 32]."""
    sums = [hashlib.sha256(np.ascontiguousarray(x, "<f4").tobytes()).digest() for x in d.reshape(-1, *d.shape[2:])]
    return np.frombuffer(b"".join(sums), np.uint8).reshape(*d.shape[:2], 32)


def record(results: Iterable[tuple[int, np.ndarray]], path: Path, device: str) -> None:
    """Write golden vectors: `results` are n and the d that a chip gave for `cases(n)`."""
    arrays: dict[str, np.ndarray] = {"device": np.array(device)}
    for n, d in results:
        planes = (
            np.ascontiguousarray(d[0, 0], "<f4").view(np.uint8).reshape(-1, 4).T
        )  # compresses better by significance
        arrays[f"bits_{n}"], arrays[f"digests_{n}"] = planes, digests(d)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def recorded(n: int, path: Path = GOLDEN) -> tuple[np.ndarray, np.ndarray]:
    """The float32 [64, n] of case 0 from its accumulator, and the digests of all results, that a chip gave."""
    with np.load(path) as golden:
        planes, sums = golden[f"bits_{n}"], golden[f"digests_{n}"]
    return np.ascontiguousarray(planes.T).view("<f4").reshape(ROWS, n), sums
