"""A kernel that shows what wgmma computes, the operands to show it on, and the golden vectors that a chip gave.

One block is one case: A [64, 128] and B [n, 128] through shared memory, swizzled, and four chained steps of
`wgmma.m64nNk32.f32.e4m3.e4m3`, once from an accumulator C [64, n] and once from zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from kingpost.arrays import view
from kingpost.formats import E4M3
from kingpost.program import Builder, Launch, Register, Registers, TensorMap, f32, kernel, u64
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
ROWS, DEPTH, STEP = 64, 128, 32
GOLDEN = Path(__file__).parents[2] / "golden" / "wgmma_e4m3.npz"


@kernel(target="sm_90a")
def wgmma_probe(k: Builder, *, n: int) -> None:
    """d[0] = c + a b^T and d[1] = a b^T for each block's case: d is [cases, 2, 64, n], c [cases, 64, n]."""
    a_map = k.tensor_map("a", E4M3, (ROWS, DEPTH), swizzle=128)
    b_map = k.tensor_map("b", E4M3, (n, DEPTH), swizzle=128)
    c_address, d_address = k.parameter("c", u64), k.parameter("d", u64)
    a = k.shared("a_tile", (ROWS, DEPTH), E4M3, swizzle=128)
    b = k.shared("b_tile", (n, DEPTH), E4M3, swizzle=128)
    arrived = k.shared_barriers("arrived", 1).at(0)

    with k.role("probe", warps=4) as warp:
        with k.when(warp == 0), k.mask(elect(k)):
            mbarrier_init(k, arrived, count=1)
            fence_mbarrier_init(k)
            mbarrier_arrive_expect(k, arrived, bytes=a.bytes + b.bytes)
            bulk_load_2d(k, a.at(0), a_map.register, k.block * ROWS, 0, arrived, type=a_map.type)
            bulk_load_2d(k, b.at(0), b_map.register, k.block * n, 0, arrived, type=b_map.type)
        k.barrier()
        mbarrier_wait(k, arrived, 0)

        matrix_bytes = ROWS * n * 4
        first = ((warp * 16 + k.lane // 4) * n + k.lane % 4 * 2) * 4  # byte of this lane's register 0
        c_own = k.address(c_address, k.block * matrix_bytes + first)
        d_own = k.address(d_address, k.block * (2 * matrix_bytes) + first)
        total = k.array(f32, n // 2, "total")
        for i in range(n // 2):
            k.load(f32, c_own, offset=offset(i, n), into=total[i])
        _multiply(k, a.at(0), b.at(0), total, n, from_zero=False)
        for i in range(n // 2):
            k.store(d_own, total[i], offset=offset(i, n))
        _multiply(k, a.at(0), b.at(0), total, n, from_zero=True)
        for i in range(n // 2):
            k.store(d_own, total[i], offset=matrix_bytes + offset(i, n))


def offset(i: int, n: int) -> int:
    """Bytes from a lane's register 0 to its register i in a float32 matrix of n columns."""
    return (i // 2 % 2 * 8 * n + i // 4 * 8 + i % 2) * 4


def _multiply(k: Builder, a: Register, b: Register, total: Registers, n: int, from_zero: bool) -> None:
    wgmma_fence(k)
    for step in range(0, DEPTH, STEP):
        wgmma(k, matrix_descriptor(k, a, offset=step), matrix_descriptor(k, b, offset=step), into=total, n=n,
              accumulate=step > 0 or not from_zero)  # fmt: skip
    wgmma_commit(k)
    wgmma_wait(k, groups=0)


class Cases(NamedTuple):
    """a: e4m3 codes [cases, 64, 128]; b: [cases, n, 128]; c: float32 [cases, 64, n]."""

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


def launch(given: Cases, d: np.ndarray) -> Launch:
    """The probe on these cases, into d, float32 [cases, 2, 64, n]."""
    count, n, _ = given.b.shape
    program = wgmma_probe(n=n)
    types = {parameter.name: parameter.type for parameter in program.parameters}
    a, b = (view(x.reshape(-1, DEPTH).view(ml_dtypes.float8_e4m3fn)) for x in (given.a, given.b))
    c, result = view(given.c), view(d)
    arguments = {"a": TensorMap(types["a"], a), "b": TensorMap(types["b"], b), "c": c.pointer, "d": result.pointer}
    return Launch(program, count, arguments, (c, result))


def model(given: Cases) -> np.ndarray:
    """What the probe must give, by the arithmetic model: float32 [cases, 2, 64, n]."""
    results = []
    for a, b, c in zip(*given):
        for total in (c, np.zeros_like(c)):
            for step in range(0, DEPTH, STEP):
                total = wgmma_f32(a[:, step : step + STEP], b[:, step : step + STEP], total)
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
