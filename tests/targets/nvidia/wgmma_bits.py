"""wgmma on a chip against the arithmetic model, bit by bit: a kernel, operands that look for differences, their count.

A batch is one product: rows of A, COLUMNS (about) of B, 128 bytes of K, cut into tiles of 64 x n. Every tile is
multiplied five times: each 32 bytes of K by itself, onto accumulators of its own, and all four in a chain from zero.
This imports nothing beside it, so that bench/bits.py can take it by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kingpost.arrays import view
from kingpost.formats import BF16, E4M3, E5M2, F16, F32, Format
from kingpost.program import Builder, Launch, Registers, f32, kernel, u32, u64
from kingpost.program.memory import SharedArray
from kingpost.targets.nvidia.arithmetic import chain, wgmma_step
from kingpost.targets.nvidia.bf16_candidates import FEW_ROWS as FEW_ROWS_BF16
from kingpost.targets.nvidia.bf16_candidates import TILES as TILES_BF16
from kingpost.targets.nvidia.fp8_candidates import BY_BLOCK, BY_COLUMN, FEW_ROWS
from kingpost.targets.nvidia.isa.common import (
    bulk_load_2d,
    elect,
    fence_mbarrier_init,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
)
from kingpost.targets.nvidia.isa.hopper import (
    matrix_descriptor,
    wgmma,
    wgmma_commit,
    wgmma_f16,
    wgmma_fence,
    wgmma_wait,
)

ROWS, COLUMNS = 64, 256
DEPTH, STEPS = 128, 4  # DEPTH: bytes of K
RESULTS = STEPS + 1  # of a tile
GOLDEN = Path(__file__).parents[2] / "golden" / "wgmma_bits.json"  # by kind and family: digests of a golden batch


class Kind(NamedTuple):
    """What is multiplied into what, and where A is."""

    a_format: Format = E4M3
    b_format: Format = E4M3
    d_format: Format = F32
    a_in_registers: bool = False

    @property
    def depth(self) -> int:
        return DEPTH // self.a_format.itemsize

    @property
    def step(self) -> int:
        return self.depth // STEPS

    @property
    def formats(self) -> tuple[Format, Format, Format]:
        return self[:3]

    def __str__(self) -> str:
        where = ", a in registers" if self.a_in_registers else ""
        return f"{self.a_format} {self.b_format} into {self.d_format}{where}"


_FP8_PAIRS = [(a, b) for a in (E4M3, E5M2) for b in (E4M3, E5M2)]
OF_KERNELS = [*(Kind(a, b) for a, b in _FP8_PAIRS), Kind(BF16, BF16)]
KINDS = [
    *OF_KERNELS,
    *(Kind(a, b, F32, True) for a, b in _FP8_PAIRS),
    Kind(BF16, BF16, F32, True),
    *(Kind(a, b, F16, where) for a, b in _FP8_PAIRS for where in (False, True)),
    *(Kind(F16, F16, d, where) for d in (F32, F16) for where in (False, True)),
]
_FP8_SIZES = {timed.tile.columns for timed in (*BY_BLOCK, *FEW_ROWS, *BY_COLUMN)}
_BF16_SIZES = {tile.columns for tile in (*TILES_BF16, *FEW_ROWS_BF16)}


def sizes(kind: Kind) -> list[int]:
    """The n to be compared: 8, of which most tiles are, and what the kernels use, or a few for what none uses."""
    used = {16, 64, 256}
    if kind in OF_KERNELS:
        used = _BF16_SIZES if kind.a_format is BF16 else _FP8_SIZES
    return [8, *sorted(used)]


def columns_of(n: int) -> int:
    """Columns of a batch: as many tiles as fit."""
    return COLUMNS // n * n


# The kernel


@kernel(target="sm_90a")
def wgmma_bits(k: Builder, *, n: int, kind: Kind) -> None:
    """d[s] = c[s] + step s of a b^T for s < 4, d[4] = a b^T: c is [4, rows, columns], d [5, rows, columns], a block one
    tile, along a row of tiles first. plane: bytes of one [rows, columns]."""
    columns, across = columns_of(n), COLUMNS // n
    size = kind.d_format.itemsize
    b_map = k.tensor_map("b", kind.b_format, (n, kind.depth), 128)
    b = k.shared("b_tile", (n, kind.depth), kind.b_format, 128)
    tiles = [(b, b_map)]
    if kind.a_in_registers:
        a_address = k.parameter("a", u64)
    else:
        a_map = k.tensor_map("a", kind.a_format, (ROWS, kind.depth), 128)
        a = k.shared("a_tile", (ROWS, kind.depth), kind.a_format, 128)
        tiles.append((a, a_map))
    c, d, plane = k.parameter("c", u64), k.parameter("d", u64), k.parameter("plane", u64)
    arrived = k.shared_barriers("arrived", 1).at(0)

    with k.role("multiply", warps=4) as warp:
        down, right = k.block // across, k.block % across
        first_row = {"a": down * ROWS, "b": right * n}
        with k.when(warp == 0), k.mask(elect(k)):
            mbarrier_init(k, arrived, count=1)
            fence_mbarrier_init(k)
            mbarrier_arrive_expect(k, arrived, bytes=sum(tile.bytes for tile, _ in tiles))
            for tile, map in tiles:
                bulk_load_2d(k, tile.at(0), map.register, first_row[map.name], 0, arrived, type=map.type)
        k.barrier()
        mbarrier_wait(k, arrived, 0)

        row = down * ROWS + warp * 16 + k.lane // 4
        first = (row * columns + right * n + k.lane % 4 * 2) * size  # bytes to this lane's first accumulator
        c_own, d_own = k.address(c, first), k.address(d, first)
        total = k.array(f32, n // 2, "total") if kind.d_format is F32 else k.array(u32, n // 4, "total")
        places = [_offset(i, columns, kind) for i in range(len(total))]
        rows = k.array(u32, 4 * STEPS, "rows")
        if kind.a_in_registers:
            a_own = k.address(a_address, row * DEPTH + k.lane % 4 * 4)
            for i in range(4 * STEPS):  # four for each step: K's halves of rows 8 apart
                k.load(u32, a_own, offset=i // 4 * 32 + i // 2 % 2 * 16 + i % 2 * 8 * DEPTH, into=rows[i])

        def multiply(step: int, accumulate: bool) -> None:
            left = rows[4 * step : 4 * step + 4] if kind.a_in_registers else _step(k, a, step)
            operation = wgmma if kind.d_format is F32 else wgmma_f16
            operation(k, left, _step(k, b, step), into=total, n=n, accumulate=accumulate,
                      a_format=kind.a_format, b_format=kind.b_format)  # fmt: skip

        for step in range(STEPS):
            for register, offset in zip(total, places):
                k.load(total.type, c_own, offset=offset, into=register)
            wgmma_fence(k)
            multiply(step, accumulate=True)
            _finish(k, total, d_own, places)
            c_own += plane
            d_own += plane
        wgmma_fence(k)
        for step in range(STEPS):
            multiply(step, accumulate=step > 0)
        _finish(k, total, d_own, places)


def _step(k: Builder, tile: SharedArray, step: int) -> Registers:
    return matrix_descriptor(k, tile.at(0), offset=32 * step)


def _finish(k: Builder, total: Registers, d_own: Registers, places: list[int]) -> None:
    wgmma_commit(k)
    wgmma_wait(k, groups=0)
    for register, offset in zip(total, places):
        k.store(d_own, register, offset=offset)


def _offset(i: int, columns: int, kind: Kind) -> int:
    """Bytes from a lane's register 0 to its register i in a matrix of so many columns."""
    size = kind.d_format.itemsize
    i *= 4 // size  # accumulators before it
    return (i // 2 % 2 * 8 * columns + i // 4 * 8 + i % 2) * size


# Operands


class Operands(NamedTuple):
    """a: codes [rows, K]; b: codes [columns, K]; c: [4, rows, columns] of the kind's d_format."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray


_FRACTION_BITS = {E4M3: 3, E5M2: 2, BF16: 7, F16: 10, F32: 23}
_BIAS = {E4M3: 7, E5M2: 15, BF16: 127, F16: 15, F32: 127}
_LARGEST = {E4M3: 0x7E, E5M2: 0x7B, BF16: 0x7F7F, F16: 0x7BFF, F32: 0x7F7FFFFF}  # codes of the largest numbers
FAMILIES = ("ordinary", "cut", "special")


def operands(kind: Kind, family: str, rows: int, n: int, random: np.random.Generator) -> Operands:
    """A batch of one family.

    ordinary: rows of one size each, from subnormal to the largest numbers, one of all sizes, some almost empty;
    accumulators from zero to 2^30 times what is added to them, of either sign.
    cut: one large product in most sums, the others of so much less that the last bits kept of them, odd mostly, lie
    around where the step truncates; accumulators on halves of that place, near it, and so large that it moves there.
    special: ordinary, with NaN, infinities and largest numbers among operands and accumulators.
    """
    parts = [(rows, kind.a_format), (columns_of(n), kind.b_format)]
    if family == "cut":
        return _around_the_cut(kind, parts, random)
    exponents = [_of_every_size(random, count, kind.depth, format) for count, format in parts]
    a, b = (_codes(random, each, format) for each, (_, format) in zip(exponents, parts))
    for codes in (a, b):
        empty = (random.random((len(codes), 1)) < 0.15) & (random.random(codes.shape) < 0.93)
        codes[empty] &= 1 << 8 * codes.itemsize - 1
    largest = [each.max(axis=1) - _BIAS[format] for each, (_, format) in zip(exponents, parts)]
    c = _accumulators(random, kind, largest[0][:, None] + largest[1])
    if family == "special":
        for codes, format in ((a, kind.a_format), (b, kind.b_format)):
            _replace(random, codes, 1 / 256, format)
        _replace(random, c.view(f"u{c.itemsize}"), 1 / 16, kind.d_format)
    return Operands(a, b, c)


def _of_every_size(random: np.random.Generator, rows: int, depth: int, format: Format) -> np.ndarray:
    """Exponent fields [rows, depth], each row of some range."""
    bias, top = _BIAS[format], _LARGEST[format] >> _FRACTION_BITS[format]
    small = (bias - 77, bias - 66) if format is BF16 else (0, 3)  # products that float32 or float16 hold as subnormals
    ranges = np.array([(bias - 4, bias + 4), (bias, bias + 1), (0, top + 1), small, (0, 2), (top - 2, top + 1)])
    low, high = ranges[random.choice(len(ranges), rows, p=(0.35, 0.1, 0.15, 0.15, 0.1, 0.15))].T[:, :, None]
    return random.integers(low, high, (rows, depth))


def _codes(random: np.random.Generator, exponents: np.ndarray, format: Format, odd: float = 0.0) -> np.ndarray:
    """Codes with these exponent fields, any sign and fraction; a share of them with the last bit set."""
    bits, largest = _FRACTION_BITS[format], _LARGEST[format]
    low = random.integers(0, 2 << bits, exponents.shape)  # the sign above the fraction
    magnitudes = exponents << bits | low & (1 << bits) - 1
    if odd:
        magnitudes |= random.random(exponents.shape) < odd
    return (np.minimum(magnitudes, largest) | low >> bits << format.bits - 1).astype(f"u{format.itemsize}")


def _accumulators(random: np.random.Generator, kind: Kind, exponents: np.ndarray) -> np.ndarray:
    """Accumulators around 2^exponents [rows, columns], for each step."""
    format, shape = kind.d_format, (STEPS, *exponents.shape)
    top = _LARGEST[format] >> _FRACTION_BITS[format]
    fields = np.clip(exponents + _BIAS[format] + random.integers(-30, 31, shape), 0, top)
    anywhere = random.random(shape) < (0.3 if format is F16 else 0.05)
    fields = np.where(anywhere, random.integers(0, top + 1, shape), fields)
    return _with_zeros(random, _codes(random, fields, format).view(format.dtype))


def _with_zeros(random: np.random.Generator, c: np.ndarray) -> np.ndarray:
    c[random.random(c.shape) < 0.15] = 0
    return c


def _replace(random: np.random.Generator, codes: np.ndarray, share: float, format: Format) -> None:
    """Put a share of no numbers, infinities, largest and smallest numbers and zeros among codes."""
    largest = _LARGEST[format]
    chosen = [largest + 1, largest + 1, largest, 1, 0]
    if format is not E4M3:  # whose one code above the largest number is NaN
        chosen += [largest + 2, (2 << format.bits - 2) - 1]
    signs = random.integers(0, 2, codes.shape) << format.bits - 1
    values = np.array(chosen)[random.integers(0, len(chosen), codes.shape)] | signs
    np.copyto(codes, values.astype(codes.dtype), where=random.random(codes.shape) < share)


def _around_the_cut(kind: Kind, parts: list[tuple[int, Format]], random: np.random.Generator) -> Operands:
    fraction_bits = 13 if kind.a_format.bits == 8 else 25  # that a step keeps below its largest exponent
    last = fraction_bits - sum(_FRACTION_BITS[format] for _, format in parts)  # so much less, and no bit is lost
    least, greatest = (last - 1) // 2, (fraction_bits + 3) // 2
    place = random.integers(0, kind.step, STEPS) + kind.step * np.arange(STEPS)  # of each step's large product
    codes, large = [], []
    for rows, format in parts:
        exponent = random.integers(3, 7, rows)
        fields = np.repeat(exponent[:, None], kind.depth, axis=1) + _BIAS[format]
        less = random.integers(least, greatest + 1, (rows, 1)) + random.integers(0, 2, fields.shape)
        less[:, place] = np.where(random.random((rows, 1)) < 0.9, 0, less[:, place])
        codes.append(_codes(random, np.maximum(fields - less, 0), format, odd=0.75))
        large.append(exponent)
    exponents = np.broadcast_to(large[0][:, None] + large[1], (STEPS, *(len(each) for each in large)))
    shape = exponents.shape
    signs = 1 - 2 * random.integers(0, 2, shape)
    halves = np.ldexp((2 * random.integers(0, 1 << 10, shape) + 1) * signs, exponents - fraction_bits - 1)
    significands = signs * (1 + random.integers(0, 1 << 23, shape) / 2**23)
    near = np.ldexp(significands, exponents + random.integers(-fraction_bits - 3, 4, shape))
    larger = np.ldexp(significands, exponents + random.integers(4, fraction_bits + 5, shape))
    c = np.choose(random.integers(0, 3, shape), [halves, near, larger])
    most = kind.d_format.maximum
    return Operands(*codes, _with_zeros(random, c.clip(-most, most).astype(kind.d_format.dtype)))


# The two sides, and their comparison


def launch(given: Operands, d: np.ndarray, n: int, kind: Kind) -> Launch:
    """The kernel on a batch, into d: [5, rows, columns] of the kind's d_format."""
    rows = len(given.a)
    a, b = (view(codes.view(format.dtype)) for codes, format in ((given.a, kind.a_format), (given.b, kind.b_format)))
    return Launch.of(
        wgmma_bits(n=n, kind=kind),
        rows // ROWS * (COLUMNS // n),
        a=a,
        b=b,
        c=view(given.c),
        d=view(d),
        plane=d[0].nbytes,
    )


def model(given: Operands, kind: Kind) -> np.ndarray:
    """What the arithmetic model gives: [5, rows, columns]."""
    a, b, c = given
    steps = [slice(k, k + kind.step) for k in range(0, kind.depth, kind.step)]
    results = [wgmma_step(a[:, step], b[:, step], c[i], *kind.formats) for i, step in enumerate(steps)]
    return np.stack([*results, chain(a, b, None, *kind.formats)])


class Batch(NamedTuple):
    """What to compare: operands drawn from `seed`, and what the model makes of them."""

    kind: Kind
    family: str
    n: int
    seed: tuple[int, ...]
    operands: Operands
    expected: np.ndarray


def batch(kind: Kind, family: str, n: int, number: int, rows: int) -> Batch:
    """The same for the same arguments, on every machine."""
    seed = (KINDS.index(kind), FAMILIES.index(family), n, number)
    given = operands(kind, family, rows, n, np.random.default_rng(seed))
    return Batch(kind, family, n, seed, given, model(given, kind))


def golden_batch(kind: Kind, family: str) -> Batch:
    return batch(kind, family, 8, 0, ROWS)


def digests(given: Operands, d: np.ndarray) -> list[str]:
    """SHA-256 of operands, which another numpy may draw otherwise, and of results."""
    return [hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest() for arrays in (given, [d])]


def outputs(batch: Batch, run: Callable[[Launch], None]) -> np.ndarray:
    """What `run` makes of a batch: as its `expected`."""
    d = np.full_like(batch.expected, 77.0)
    run(launch(batch.operands, d, batch.n, batch.kind))
    return d


@dataclass
class Tally:
    """What was compared of one kind and family. tiles: by n. examples: of outputs that differ, with their operands."""

    tiles: dict[int, int] = field(default_factory=dict)
    outputs: int = 0
    differing: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, batch: Batch, run: Callable[[Launch], None]) -> None:
        """Compare a batch with what `run` makes of it."""
        n = batch.n
        got, wanted = (x.view(f"u{x.itemsize}") for x in (outputs(batch, run), batch.expected))
        self.tiles[n] = self.tiles.get(n, 0) + got.size // (ROWS * n)
        self.outputs += got.size
        wrong = np.flatnonzero(got != wanted)
        self.differing += len(wrong)
        for place in wrong[: 3 - len(self.examples)]:
            self.examples.append(_example(batch, got, wanted, *map(int, np.unravel_index(place, got.shape))))


def _example(batch: Batch, got: np.ndarray, wanted: np.ndarray, result: int, row: int, column: int) -> dict[str, Any]:
    """One output, with all that it is made of, in hexadecimal: bytes of K in order, numbers as such."""
    a, b, c = batch.operands
    step = batch.kind.step
    depth = slice(step * result, step * result + step) if result < STEPS else slice(None)
    return {
        "n": batch.n,
        "seed": batch.seed,
        "result": f"step {result}" if result < STEPS else "chain from zero",
        "row": row,
        "column": column,
        "a": a[row, depth].tobytes().hex(),
        "b": b[column, depth].tobytes().hex(),
        "c": f"{int(c.view(got.dtype)[result, row, column]):#x}" if result < STEPS else "0x0",
        "chip": f"{int(got[result, row, column]):#x}",
        "model": f"{int(wanted[result, row, column]):#x}",
    }
