"""Walks over the pieces of work: every role of every block sees its items, in order, and no other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import accumulate, groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kingpost import emulate
from kingpost.arrays import view
from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.program import Builder, Launch, Program, kernel, u32, u64
from kingpost.registry import Operands
from kingpost.targets.nvidia.isa.common import elect, fence_mbarrier_init
from kingpost.targets.nvidia.parts.groups import MOST_GROUPS, ByCounts, ByEnds, ByRows, OverK
from kingpost.targets.nvidia.parts.summed import Summed, planes_per_slice, slices
from kingpost.targets.nvidia.parts.walk import Batched, Dense
from kingpost.targets.nvidia.parts.work import Item, Walk
from kingpost.targets.nvidia.ptx import ptx

BLOCK_K = 128
READERS, WORDS = 3, len(fields(Item))
TILES = [(64, 64), (16, 128), (192, 32)]


@kernel(target="sm_90a")
def recorder(k: Builder, *, walk: Walk, rows: int, columns: int) -> None:
    """Two whole warps and one thread write the items that they see to items [grid, READERS, most, WORDS], and to seen
    [grid, READERS] how many there were."""
    items, seen, most = k.parameter("items", u64), k.parameter("seen", u64), k.parameter("most")
    work = walk.over(k, rows, columns, readers=READERS, block_k=BLOCK_K)
    with k.when(k.warp == 0), k.mask(elect(k)):
        work.initialise()
        fence_mbarrier_init(k)
    work.prepare()
    k.barrier()

    def record(reader: Any, one_thread: bool) -> None:
        own = k.block * READERS + reader
        count, at = k.new(u32, 0, "count"), k.new(u64, k.address(items, own * most, 4 * WORDS))
        with work.items(one_thread=one_thread) as item, k.mask(k.lane == 0):
            for word, value in enumerate(vars(item).values()):
                k.store(at, k.new(u32, value), offset=4 * word)
            k.set(at, k.address(at, k.new(u32, 1), 4 * WORDS))
            count += 1
        with k.mask(k.lane == 0):
            k.store(k.address(seen, own, 4), count)

    with k.role("warps", warps=2) as warp:
        record(warp, one_thread=False)
    with k.role("thread", warps=1), k.mask(elect(k)):
        record(2, one_thread=True)
    with k.role("schedule", warps=1):
        if work.scheduled:
            work.schedule()


@dataclass(frozen=True)
class Work:
    """What is walked over: planes are those of a (Batched, Summed) or groups; index is rows, ends or counts."""

    kind: Any
    m: int
    n: int = 8
    k: int = 8
    planes: int = 1
    index: Sequence[int] = ()
    tile: tuple[int, int] = (64, 64)
    group: int = 2

    @property
    def walk(self) -> Any:
        return self.kind(self.group)

    @property
    def program(self) -> Program:
        return recorder(walk=self.walk, rows=self.tile[0], columns=self.tile[1])

    def operands(self) -> Operands:
        planes_a = [self.planes] if self.kind in (Batched, Summed, ByCounts) else []
        planes_b = [self.planes] if self.kind not in (Dense, OverK) else []
        planes_d = planes_a if self.kind is not Summed else [slices(self.planes)]
        shapes = {
            "a": (*planes_a, self.m, self.k),
            "b": (*planes_b, self.n, self.k),
            "d": (*(planes_d if self.kind is not OverK else [self.planes]), self.m, self.n),
        }
        views = {name: view(np.zeros(shape, np.uint8)) for name, shape in shapes.items()}
        if name := getattr(self.kind, "name", ""):
            views[name] = view(np.array(self.index, np.int32))
        return Operands(views, ("d",), self.m)

    def order(self, rows: int) -> Iterator[tuple[int, int]]:
        """The first row and column of each tile of so many rows: down sub-groups of tile rows, column by column."""
        (height, width), count = self.tile, -(-rows // self.tile[0])
        for first in range(0, count, self.group):
            for column in range(-(-self.n // width)):
                for row in range(first, min(first + self.group, count)):
                    yield row * height, column * width

    def groups(self) -> list[tuple[int, int]]:
        """Where each group begins and ends."""
        return list(pairwise([0, *self.index]))

    def tiles(self) -> list[list[Item]]:
        """The items of each tile, by plain enumeration."""
        m, blocks = self.m, -(-self.k // BLOCK_K)
        found: Any = []
        match self.kind.__name__:
            case "Dense" | "Batched":
                found = [[Item(p, p, p, r, m, c, blocks)] for p in range(self.planes) for r, c in self.order(m)]
            case "Summed":
                each = planes_per_slice(self.planes)
                for s, p in enumerate(range(0, self.planes, each)):
                    share = min(each, self.planes - p) * blocks
                    found += [[Item(p, p, s, r, m, c, share)] for r, c in self.order(m)]
            case "ByEnds":
                for g, (begin, end) in enumerate(self.groups()):
                    found += [[Item(0, g, 0, begin + r, end, c, blocks)] for r, c in self.order(end - begin)]
            case "ByCounts":
                for g, count in enumerate(self.index):
                    found += [[Item(g, g, g, r, count, c, blocks)] for r, c in self.order(count)]
            case "OverK":
                sizes = [end - begin for begin, end in self.groups()]
                counts = [-(-size // BLOCK_K) for size in sizes]
                starts = accumulate(counts, initial=0)
                for g, (count, start, size, (begin, _)) in enumerate(zip(counts, starts, sizes, self.groups())):
                    tail = size - BLOCK_K * (count - 1)
                    found += [[Item(0, 0, g, r, m, c, count, begin, start, tail)] for r, c in self.order(m)]
            case "ByRows":
                for r, c in self.order(m):
                    rows = range(r, min(r + self.tile[0], m))
                    runs = [(g, list(run)) for g, run in groupby(rows, lambda row: self.index[row])]
                    found.append([Item(0, g, 0, run[0], run[-1] + 1, c, blocks) for g, run in runs if g >= 0])
        return found


def ran(work: Work, grid: int, schedule: str, seed: int = 0) -> list[list[list[Item]]]:
    """The items that each reader of each block saw."""
    most = 1 + max(sum(len(tile) for tile in work.tiles()), work.m if work.kind is ByRows else 0)
    items, seen = np.zeros((grid, READERS, most, WORDS), np.uint32), np.full((grid, READERS), -1, np.int32)
    arguments = {**work.walk.arguments(work.operands()), "items": view(items), "seen": view(seen), "most": most}
    emulate.run(Launch.of(work.program, grid, **arguments), schedule, seed)
    assert (seen >= 0).all()
    return [
        [[Item(*words) for words in own[:count].tolist()] for own, count in zip(*readers)]
        for readers in zip(items, seen)
    ]


def check(work: Work, grid: int, schedule: str = "random", seed: int = 0) -> None:
    tiles = work.tiles()
    assert sum(1 for tile in tiles if tile) <= work.walk.tiles(work.operands(), *work.tile)
    for block, readers in enumerate(ran(work, grid, schedule, seed)):
        expected = [item for tile in tiles[block::grid] for item in tile]
        for found in readers:
            assert readers[0] == found
            if work.kind is ByRows:  # rows of no group may be named, with nothing to do
                assert all(item.blocks == 0 for item in found if item.row >= item.end)
                found = [item for item in found if item.row < item.end]
            assert list(map(astuple, found)) == list(map(astuple, expected))


EXAMPLES = [
    Work(Dense, 300, n=200, k=513),
    Work(Batched, 130, n=70, k=128, planes=3),
    Work(Summed, 70, n=70, k=130, planes=35),
    Work(ByRows, 150, n=70, planes=3, k=200, index=[0] * 40 + [-1] * 24 + [2, 1, 2] + [-1] * 3 + [1] * 70 + [-1] * 10),
    Work(ByEnds, 400, n=70, planes=6, k=129, index=[0, 129, 129, 130, 322, 330]),
    Work(ByCounts, 130, n=70, planes=4, k=256, index=[0, 130, 64, 65]),
    Work(OverK, 130, n=70, k=512, planes=5, index=[0, 16, 272, 272, 400]),
]
EACH = pytest.mark.parametrize("work", EXAMPLES, ids=lambda work: work.kind.__name__)


@EACH
@pytest.mark.parametrize("grid", [1, 3])
@pytest.mark.parametrize("schedule, seed", [("late", 0), ("early", 0), ("random", 0), ("random", 1), ("random", 2)])
def test_every_role_sees_its_items_in_order(work: Work, grid: int, schedule: str, seed: int) -> None:
    check(work, grid, schedule, seed)


@EACH
def test_blocks_without_items(work: Work) -> None:
    check(work, 132)


# Any groups, of sizes about those of tiles (192, 64, 16), of a warp and of K blocks

about = st.sampled_from([0, 0, 1, 15, 16, 17, 32, 63, 64, 65, 128, 191, 192, 193])
tiles = st.sampled_from(TILES)
grids = st.sampled_from([1, 3, 8])
seeds = st.integers(0, 9)
EXAMPLES_OF_EACH = 6


@given(m=st.integers(0, 400), n=st.integers(1, 300), tile=tiles, group=st.integers(1, 9), grid=grids, seed=seeds)
@settings(max_examples=EXAMPLES_OF_EACH)
def test_dense(m: int, n: int, tile: tuple[int, int], group: int, grid: int, seed: int) -> None:
    check(Work(Dense, m, n, tile=tile, group=group), grid, seed=seed)


@pytest.mark.parametrize("kind", [Batched, Summed], ids=lambda kind: kind.__name__)
@given(planes=st.integers(1, 70), tile=tiles, grid=grids, seed=seeds)
@settings(max_examples=EXAMPLES_OF_EACH // 2)
def test_planes(kind: Any, planes: int, tile: tuple[int, int], grid: int, seed: int) -> None:
    check(Work(kind, 20, 40, planes=planes, tile=tile), grid, seed=seed)


@given(sizes=st.lists(about, min_size=1, max_size=20), spare=st.integers(0, 70), tile=tiles, grid=grids, seed=seeds)
@example(sizes=[0, 0, 0], spare=5, tile=(64, 64), grid=3, seed=0)
@example(sizes=[0, 700, 0], spare=0, tile=(64, 64), grid=3, seed=0)
@example(sizes=[0, 0, 0, 1] * (MOST_GROUPS // 4), spare=1, tile=(64, 64), grid=3, seed=0)
@example(sizes=[0] * (MOST_GROUPS - 1) + [65], spare=0, tile=(64, 64), grid=1, seed=0)
@settings(max_examples=EXAMPLES_OF_EACH)
def test_ends(sizes: list[int], spare: int, tile: tuple[int, int], grid: int, seed: int) -> None:
    index = list(accumulate(sizes))
    check(Work(ByEnds, index[-1] + spare, planes=len(index), index=index, tile=tile), grid, seed=seed)


@given(counts=st.lists(about, min_size=1, max_size=20), spare=st.integers(0, 70), tile=tiles, grid=grids, seed=seeds)
@example(counts=[0, 0, 0], spare=5, tile=(64, 64), grid=3, seed=0)
@example(counts=[0, 0, 0, 1] * (MOST_GROUPS // 4), spare=1, tile=(64, 64), grid=3, seed=0)
@settings(max_examples=EXAMPLES_OF_EACH)
def test_counts(counts: list[int], spare: int, tile: tuple[int, int], grid: int, seed: int) -> None:
    work = Work(ByCounts, max(counts) + spare, planes=len(counts), index=counts, tile=tile)
    check(work, grid, seed=seed)


runs = st.lists(st.tuples(st.sampled_from([-1, 0, 1, 2, MOST_GROUPS - 1]), about), min_size=1, max_size=9)


@given(runs=runs, tile=tiles, grid=grids, seed=seeds)
@example(runs=[(g, 32) for g in (0, 1, 2, 0, 2, 1)], tile=(192, 32), grid=1, seed=0)  # where a lane's next row begins
@example(runs=[(-1, 200)], tile=(64, 64), grid=3, seed=0)
@example(runs=[(g, 1) for g in (3, 1, -1, 4, 1, 5, -1, -1)] * 20, tile=(64, 64), grid=3, seed=0)  # runs of a row
@settings(max_examples=EXAMPLES_OF_EACH)
def test_rows(runs: list[tuple[int, int]], tile: tuple[int, int], grid: int, seed: int) -> None:
    index = [group for group, size in runs for _ in range(size)]
    check(Work(ByRows, len(index), planes=MOST_GROUPS, index=index, tile=tile), grid, seed=seed)


@given(sizes=st.lists(st.integers(0, 33), min_size=1, max_size=20), tile=tiles, grid=grids, seed=seeds)
@example(sizes=[0, 0], tile=(64, 64), grid=3, seed=0)
@example(sizes=[0, 1] * (MOST_GROUPS // 2), tile=(192, 64), grid=3, seed=0)
@settings(max_examples=EXAMPLES_OF_EACH)
def test_groups_of_k(sizes: list[int], tile: tuple[int, int], grid: int, seed: int) -> None:
    index = list(accumulate(16 * size for size in sizes))
    check(Work(OverK, 65, 40, index[-1], planes=len(index), index=index, tile=tile), grid, seed=seed)


@EACH
def test_ptxas_spills_nothing(work: Work) -> None:
    try:
        tool = find_ptxas()
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    binary = assemble(ptx(work.program), "sm_90a", tool)
    assert binary.spill_bytes == binary.stack_bytes == 0
