"""The bfloat16 product, emulated: the arithmetic model's bits in every major, walk and configuration; its texts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
import pytest

from kingpost import emulate
from kingpost.arrays import view
from kingpost.assemble import AssemblerNotFound, build
from kingpost.formats import BF16, F16, F32, Format, converted
from kingpost.program import Instruction, Launch
from kingpost.registry import Operands, Problem
from kingpost.targets.nvidia.arithmetic import chain_bf16
from kingpost.targets.nvidia.bf16_candidates import Bf16Candidate, candidates
from kingpost.targets.nvidia.chip import H200
from kingpost.targets.nvidia.parts.block_tile import BlockTile
from kingpost.targets.nvidia.parts.summed import planes_per_slice, slices
from kingpost.targets.nvidia.ptx import ptx

from .product import same_bits
from .test_broken_kernels import changed

SCHEDULES = ("late", "early", "random")
MAJORS = [(a, b) for a in ("k", "mn") for b in ("k", "mn")]


@dataclass
class Product:
    """A call: a [B, M, K], b [B, N, K], each with that major in memory, and what comes after the product."""

    a: np.ndarray
    b: np.ndarray
    majors: tuple[str, str] = ("k", "k")
    out: Format = BF16
    alpha: float | None = None
    c: np.ndarray | None = None
    bias: np.ndarray | None = None
    op: str = "batched_mm"
    d: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        a, b = (_laid(x, major) for x, major in zip((self.a, self.b), self.majors))
        self.a, self.b = a, b
        planes = slices(len(a)) if self.op == "summed_mm" else len(a)
        self.d = np.full((planes, a.shape[1], b.shape[1]), np.nan, self.out.dtype)

    @property
    def problem(self) -> Problem:
        bias = None if self.bias is None else view(self.bias).format
        return Problem(self.op, self.b.shape[1], self.a.shape[2], BF16, BF16, None, None, self.out,
                       groups=len(self.a), a_major=self.majors[0], b_major=self.majors[1],
                       c=self.c is not None, bias=bias, alpha=self.alpha is not None)  # fmt: skip

    @property
    def operands(self) -> Operands:
        arrays = {"a": self.a, "b": self.b, "c": self.c, "bias": self.bias, "d": self.d}
        if self.op == "mm":
            arrays = {name: x if x is None or name == "bias" else x[0] for name, x in arrays.items()}
        views = {name: view(x) for name, x in arrays.items() if x is not None}
        numbers = () if self.alpha is None else (("alpha", self.alpha),)
        return Operands(views, ("d",), self.a.shape[1], numbers)

    def launch(self, candidate: Bf16Candidate, grid: int | None = None) -> Launch:
        bound = replace(candidate, problem=self.problem).bind(self.operands)
        return replace(bound, grid=grid or bound.grid)

    def run(self, candidate: Bf16Candidate, order: str = "late", grid: int | None = None, seed: int = 0) -> np.ndarray:
        emulate.run(self.launch(candidate, grid), order, seed)
        return self.d

    def expected(self) -> np.ndarray:
        """By the arithmetic model, in float32 step by step."""
        each = planes_per_slice(len(self.a)) if self.op == "summed_mm" else 1
        results = []
        for plane in range(len(self.d)):
            total = None
            for a, b in zip(self.a[plane * each : plane * each + each], self.b[plane * each :]):
                total = chain_bf16(np.ascontiguousarray(a), np.ascontiguousarray(b), total)
            if self.alpha is not None:
                total = np.float32(self.alpha) * total
            if self.c is not None:
                total = total + self.c[plane].astype(np.float32)
            if self.bias is not None:
                bias = self.bias[plane] if self.bias.ndim == 2 else self.bias
                total = total + bias.astype(np.float32)
            results.append(converted(total, self.out))
        return np.stack(results)


def _laid(x: np.ndarray, major: str) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1) if major == "mn" else x


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(ml_dtypes.bfloat16)


def product(planes: int, m: int, n: int, k: int, seed: int = 0, **more) -> Product:
    return Product(normal(planes, m, k, seed=seed), normal(planes, n, k, seed=seed + 1), **more)


def config(warpgroups: int, subtiles: int, columns: int, stages: int, buffers: int, group: int = 8) -> Bf16Candidate:
    any = Problem("mm", 8, 8, BF16, BF16, None, None, BF16)
    return Bf16Candidate(any, H200, BlockTile(warpgroups, subtiles, columns), stages, buffers, group)


# planes, m, n, k, configuration, blocks (None: as many as on an H200), out
CASES = {
    "one row": (1, 1, 8, 8, config(1, 1, 32, 4, 1), None, BF16),
    "exact tile": (1, 64, 64, 64, config(1, 1, 64, 2, 1), None, BF16),
    "ragged everywhere": (1, 77, 136, 200, config(2, 1, 128, 3, 1), None, BF16),
    "ragged everywhere, float32": (1, 77, 136, 200, config(1, 1, 128, 4, 1), None, F32),
    "ragged everywhere, float16": (1, 77, 136, 200, config(2, 1, 64, 4, 1), 2, F16),
    "256 columns, two parts, two buffers": (1, 100, 264, 144, config(1, 1, 256, 2, 2), 2, BF16),
    "256 columns, two parts, one buffer": (1, 70, 264, 80, config(2, 1, 256, 2, 1), 2, F32),
    "192 columns": (1, 130, 200, 136, config(2, 1, 192, 3, 2), 1, BF16),
    "two subtiles": (1, 300, 72, 144, config(2, 2, 64, 3, 1), 2, BF16),
    "fifteen tiles, two blocks": (1, 130, 264, 144, config(1, 1, 64, 3, 1, group=2), 2, BF16),
    "K of seventeen blocks, ring of two": (1, 5, 16, 1040, config(1, 1, 32, 2, 1), None, BF16),
    "more blocks than tiles": (1, 65, 32, 256, config(1, 1, 32, 3, 1), 5, BF16),
    "batched": (3, 70, 40, 136, config(1, 1, 32, 2, 1), 4, BF16),
    "batched, more blocks than tiles": (2, 9, 40, 24, config(1, 1, 64, 2, 1), 5, F32),
}


@pytest.mark.parametrize("case", CASES)
def test_the_models_bits(case: str) -> None:
    planes, m, n, k, candidate, grid, out = CASES[case]
    given = product(planes, m, n, k, out=out, op="mm" if planes == 1 else "batched_mm")
    assert same_bits(given.run(candidate, "late", grid), given.expected())


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("tile", [(2, 1, 64), (1, 1, 192)])
def test_every_major(majors: tuple[str, str], tile: tuple[int, int, int]) -> None:
    given = product(2, 72, 136, 104, majors=majors)
    assert same_bits(given.run(config(*tile, 2, 1), grid=3), given.expected())


@pytest.mark.parametrize("seed", range(1, 3))
def test_random_schedules_agree(seed: int) -> None:
    given = product(2, 104, 48, 328, seed=seed, majors=("mn", "k"))
    assert same_bits(given.run(config(2, 1, 32, 2, 1), "random", 2, seed), given.expected())


def test_every_number_and_what_is_none() -> None:
    given = product(1, 70, 72, 136, op="mm", out=F32)
    random = np.random.default_rng(8)
    for x in (given.a, given.b):
        x.view(np.uint16)[...] = random.integers(0, 1 << 16, x.shape)
        x[~np.isfinite(x.astype(np.float32))] = 1
    given.a[0, 3, 100], given.b[0, 5, 0], given.a[0, 9, 9] = np.nan, np.inf, -np.inf
    given.a[0, 20], given.b[0, 30] = -0.0, 0.0
    d = given.run(config(1, 1, 64, 2, 1))
    assert same_bits(d, given.expected())
    assert np.isnan(d[0, 3]).all() and not d.view(np.uint32)[0, 20, 30]


FINISHES = {
    "alpha": {"alpha": 0.3},
    "c": {"c": True},
    "bias": {"bias": F32},
    "everything": {"alpha": -1.7, "c": True, "bias": BF16},
}


@pytest.mark.parametrize("finish, out", [("alpha", F32), ("c", F16), ("bias", BF16), ("everything", F32)])
def test_what_comes_after_the_product(finish: str, out: Format) -> None:
    random, more = np.random.default_rng(9), dict(FINISHES[finish])
    if more.get("c"):
        more["c"] = random.standard_normal((2, 70, 200)).astype(out.dtype)
    if bias := more.get("bias"):
        more["bias"] = random.standard_normal((2, 200)).astype(bias.dtype)
    given = product(2, 70, 200, 72, out=out, **more)
    assert same_bits(given.run(config(1, 1, 256, 2, 1), grid=2), given.expected())


def test_c_may_be_the_result_itself() -> None:
    given = product(1, 70, 72, 136, op="mm", out=F32)
    given.d[...] = np.random.default_rng(10).standard_normal(given.d.shape)
    given.c = given.d.copy()
    wanted = given.expected()
    given.c = given.d
    assert same_bits(given.run(config(1, 1, 64, 2, 1)), wanted)


@pytest.mark.parametrize("planes, k", [(1, 136), (2, 136), (31, 8), (33, 72), (65, 8)])
def test_slices_of_sums(planes: int, k: int) -> None:
    """A slice's chain goes from one product to the next; slices are as equal as can be, 32 at most, none empty."""
    given = product(planes, 20, 24, k, op="summed_mm", out=F32, majors=("k", "mn"))
    sizes = [len(given.a[i : i + planes_per_slice(planes)]) for i in range(0, planes, planes_per_slice(planes))]
    assert len(sizes) == slices(planes) == len(given.d) <= 32 and sum(sizes) == planes
    assert len(set(sizes[:-1])) <= 1 and 0 < sizes[-1] <= sizes[0]
    assert same_bits(given.run(config(1, 1, 32, 2, 1), grid=3), given.expected())


def test_sums_are_handed_over_as_slices() -> None:
    given = product(40, 20, 24, 72, op="summed_mm", out=F32)
    given.d = given.d[:19]
    with pytest.raises(ValueError, match=r"d is float32 \(19, 20, 24\); the slices of the sum, float32 \(20, 20, 24\)"):
        given.launch(config(1, 1, 32, 2, 1))


def test_views_with_gaps_and_transposed_batches() -> None:
    """[h, b, r] of [b, h, r]: planes closer together than rows; rows with gaps; a result of the same kind."""
    plain = product(3, 70, 40, 136)
    given = product(3, 70, 40, 136)
    given.a = np.ascontiguousarray(given.a.transpose(1, 0, 2)).transpose(1, 0, 2)
    wide = np.full((3, 40, 192), np.nan, given.b.dtype)
    wide[:, :, :136] = given.b
    given.b = wide[:, :, :136]
    given.d = np.full((70, 3, 40), np.nan, given.d.dtype).transpose(1, 0, 2)
    assert given.a.strides[0] < given.a.strides[1] and given.d.strides[0] < given.d.strides[1]
    assert same_bits(np.ascontiguousarray(given.run(config(1, 1, 32, 2, 1), grid=4)), plain.expected())


def test_bits_of_a_row_do_not_depend_on_m() -> None:
    given = product(1, 300, 136, 200, op="mm")
    whole = given.run(config(2, 2, 128, 2, 1))
    for m, candidate in ((1, config(1, 1, 32, 2, 1)), (7, config(2, 1, 256, 2, 1))):
        some = Product(given.a[:, :m], given.b, op="mm")
        assert same_bits(some.run(candidate), np.ascontiguousarray(whole[:, :m]))


# Groups


@dataclass
class Grouped:
    """A call: a and b as the op has them, each with that major in memory, and the int32 array that tells of groups."""

    op: str
    by: str | None
    a: np.ndarray
    b: np.ndarray
    index: np.ndarray
    majors: tuple[str, str] = ("k", "k")
    out: Format = BF16
    c: bool = False
    d: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.a, self.b = (_swapped(x) if major == "mn" else x for x, major in zip((self.a, self.b), self.majors))
        shape = (*self.a.shape[:-1], self.b.shape[-2])
        self.d = np.full((len(self.index), *shape) if self.by is None else shape, np.nan, self.out.dtype)
        self.added = np.random.default_rng(11).standard_normal(self.d.shape).astype(self.out.dtype) if self.c else None

    def launch(self, candidate: Bf16Candidate) -> Launch:
        groups = len(self.index) if self.by is None else len(self.b)
        problem = Problem(self.op, self.b.shape[-2], self.a.shape[-1], BF16, BF16, None, None, self.out, by=self.by,
                          groups=groups, a_major=self.majors[0], b_major=self.majors[1], c=self.c)  # fmt: skip
        arrays = {"a": self.a, "b": self.b, self.by or "ends": self.index, "c": self.added, "d": self.d}
        operands = Operands({name: view(x) for name, x in arrays.items() if x is not None}, ("d",), self.d.shape[-2])
        return replace(candidate, problem=problem).bind(operands)

    def run(self, candidate: Bf16Candidate, order: str = "late", grid: int = 3) -> np.ndarray:
        emulate.run(replace(self.launch(candidate), grid=grid), order)
        return self.d

    def expected(self) -> np.ndarray:
        d, added = np.full_like(self.d, np.nan), 0 if self.added is None else self.added.astype(np.float32)
        a, b = (np.ascontiguousarray(x) for x in (self.a, self.b))
        begin = 0
        for group, value in enumerate(self.index if self.by != "rows" else range(len(b))):
            if self.by is None:
                some = [np.ascontiguousarray(x[:, begin:value]) for x in (a, b)]
                d[group] = converted(chain_bf16(*some) + (added[group] if self.c else 0), self.out)
            else:
                rows = {"rows": np.s_[self.index == group], "ends": np.s_[begin:value],
                        "counts": np.s_[group, :value]}[self.by]  # fmt: skip
                total = chain_bf16(np.ascontiguousarray(a[rows]), b[group])
                d[rows] = converted(total + (added[rows] if self.c else 0), self.out)
            begin = value
        return d


def _swapped(x: np.ndarray) -> np.ndarray:
    """The same elements, the last two dimensions the other way round in memory."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


ROWS = np.random.default_rng(12).integers(-1, 4, 30)
INDICES = {
    "runs of rows": ("rows", int32(*[0] * 50, *[-1] * 14, *[2] * 70, *[1] * 2)),
    "every row another": ("rows", int32(*ROWS[:8], *[3] * 114, *ROWS[8:16], *[-1] * 6)),
    "no row": ("rows", int32(*[-1] * 136)),
    "ends anywhere": ("ends", int32(5, 5, 77, 130)),
    "one group has everything": ("ends", int32(0, 136, 136, 136)),
    "empty groups": ("ends", int32(0, 0, 0, 0)),
    "counts": ("counts", int32(1, 0, 34, 17)),
    "full planes": ("counts", int32(34, 34, 34, 34)),
}


def groups_of_rows(case: str, n: int, k: int, **more) -> Grouped:
    by, index = INDICES[case]
    a = normal(136, k) if by != "counts" else normal(4, 34, k)
    return Grouped("grouped_mm", by, a, normal(4, n, k), index, **more)


@pytest.mark.parametrize("number, case", list(enumerate(INDICES)))
def test_groups_of_rows(number: int, case: str) -> None:
    given = groups_of_rows(case, 40, 72, majors=("k", "mn"))
    tile = [(1, 1, 32), (2, 1, 128), (2, 2, 64)][number % 3]
    assert same_bits(given.run(config(*tile, 2, 1)), given.expected())


ENDS = {"any": (16, 16, 208, 304), "one block": (0, 64, 64, 64), "all in one": (0, 304, 304, 304), "none": (0, 0, 0, 0)}


@pytest.mark.parametrize("ends, majors", [*(("any", majors) for majors in MAJORS), *zip(list(ENDS)[1:], MAJORS)])
def test_groups_of_k(ends: str, majors: tuple[str, str]) -> None:
    """Each group's part of K, a multiple of 16; what lies behind its end is NaN here and there, and no group's."""
    a, b = normal(72, 304), normal(40, 304)
    a[:, ENDS[ends][-1] :] = np.nan
    given = Grouped("grouped_mm_k", None, a, b, int32(*ENDS[ends]), majors, F32, c=ends == "any")
    assert same_bits(given.run(config(2, 1, 64, 2, 1)), given.expected())


def test_nan_of_one_group_is_no_others() -> None:
    a, b = normal(72, 304), normal(40, 304)
    a[3, 210] = b[7, 16] = np.nan
    given = Grouped("grouped_mm_k", None, a, b, int32(*ENDS["any"]), ("mn", "mn"), F32)
    d = given.run(config(1, 1, 32, 2, 1))
    assert same_bits(d, given.expected())
    assert np.isnan(d[3, 3]).all() and np.isnan(d[2, :, 7]).all() and np.isnan(d).sum() == 40 + 72


# Configurations

PROBLEMS = {
    f"{op}, {out}, {a} {b}": Problem(op, 4096, 7168, BF16, BF16, None, None, out, groups=groups, a_major=a, b_major=b)
    for op, groups in (("mm", 1), ("batched_mm", 8), ("summed_mm", 40))
    for out in (BF16, F32)
    for a, b in MAJORS
}
PLAIN = PROBLEMS["mm, bfloat16, k k"]
ASSEMBLED = [
    PLAIN,
    replace(PLAIN, out_format=F32, a_major="mn", b_major="mn"),
    replace(PLAIN, alpha=True, c=True, bias=BF16),
    replace(PLAIN, op="grouped_mm", by="rows", groups=8, c=True),
    replace(PLAIN, op="grouped_mm", by="ends", groups=8, b_major="mn", out_format=F32),
    replace(PLAIN, op="grouped_mm", by="counts", groups=8),
    replace(PLAIN, op="grouped_mm_k", groups=8, a_major="mn", b_major="mn", out_format=F32, c=True),
    replace(PLAIN, op="summed_mm", groups=8),
]


@pytest.mark.parametrize("problem", ASSEMBLED, ids=str)
def test_ptxas_accepts_every_configuration_without_a_remark(problem: Problem) -> None:
    """No spill, no serialised product, no dropped budget: `build` refuses them all."""
    for candidate in candidates(problem, H200):
        program = candidate.program
        try:
            binary = build(ptx(program), "sm_90a")
        except AssemblerNotFound as error:
            pytest.skip(str(error))
        assert binary.spill_bytes == binary.stack_bytes == 0, candidate.name
        assert program.shared_bytes + binary.shared_bytes <= H200.shared_bytes, candidate.name


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_every_problem_has_tiles_for_few_rows_and_many(problem: Problem) -> None:
    found = candidates(problem, H200)
    assert {str(each.tile) for each in found} >= {"128x256", "256x128", "128x128", "64x128", "64x64", "64x32"}
    assert min(each.stages for each in found) >= 3
    best = [min(found, key=lambda each: each.microseconds(m)).tile for m in (1, 8192)]
    assert best[0].rows * best[0].columns <= 64 * 256 < best[1].rows * best[1].columns


def test_problems_of_others() -> None:
    assert all(candidates(problem, H200) for problem in ASSEMBLED)
    for other in ({"a_format": F16}, {"b_format": F32}, {"op": "tile_product"}):
        assert candidates(replace(PLAIN, **other), H200) == []
    assert candidates(replace(PLAIN, op="grouped_mm", by="ends", groups=513), H200) == []


@pytest.mark.parametrize("subtiles, stages, buffers", [(1, 1, 1), (1, 2, 2), (2, 4, 2)])
def test_stages_and_buffers_that_would_stick_or_overwrite(subtiles: int, stages: int, buffers: int) -> None:
    given = product(1, 8, 96, 64, op="mm")
    with pytest.raises(ValueError, match=f"stages is {stages}, buffers {buffers}; 2 or more and a divisor of 1"):
        given.launch(config(1, subtiles, 64, stages, buffers))


def test_mn_major_tiles_are_whole_boxes() -> None:
    given = product(1, 8, 96, 64, op="mm", majors=("k", "mn"))
    with pytest.raises(ValueError, match="b is MN-major, in tiles of 96 rows; a multiple of 64 is wanted"):
        given.launch(config(1, 1, 96, 2, 1))


def test_a_slot_that_is_left_too_early_shows() -> None:
    """With one more group in flight, a slot is filled anew while its products are still to come."""

    def later(instruction: Instruction, role: str) -> Instruction:
        waits_for_one = instruction.operation.name == "wgmma.wait_group" and instruction.fields["groups"] == 1
        return replace(instruction, fields={"groups": 2}) if waits_for_one else instruction

    given = product(1, 5, 16, 1048, op="mm")
    for order in SCHEDULES:
        launch = given.launch(config(1, 1, 32, 2, 1))
        with pytest.raises(emulate.EmulationError, match=r"race: .*tile"):
            emulate.run(replace(launch, program=changed(launch.program, later)), order)
