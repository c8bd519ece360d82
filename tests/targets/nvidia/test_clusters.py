"""Clusters: blocks that reach each other's shared memory, rightly and wrongly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from kingpost import emulate
from kingpost.arrays import view
from kingpost.assemble import AssemblerNotFound, find_ptxas
from kingpost.assemble.ptxas import assemble
from kingpost.emulate import EmulationError
from kingpost.formats import U8
from kingpost.program import Builder, Launch, TensorMap, u32, u64
from kingpost.targets.nvidia.isa.clusters import (
    bulk_load_multicast_3d,
    cluster_arrive,
    cluster_rank,
    cluster_wait,
    map_shared,
    mbarrier_arrive_cluster,
)
from kingpost.targets.nvidia.isa.common import (
    elect,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_arrive,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
)
from kingpost.targets.nvidia.ptx import ptx

SCHEDULES = ("late", "early", "random")
TURNS, BYTES = 4, 128


@dataclass(frozen=True)
class Kernel:
    """Block 0 of a cluster of 2 copies a row a turn to both, which add up what they read. Parts can be left out."""

    start: bool = True  # both wait for the other's barriers
    end: bool = True  # nobody leaves before the other is done with it
    fence: bool = True
    release_other: bool = True  # block 1 tells block 0 that it has read its row
    blocks: int = 0b11

    def __call__(self, k: Builder) -> None:
        k.cluster(2)
        source = k.tensor_map("source", U8, (1, 1, BYTES), swizzle=0)
        result = k.parameter("result", u64)
        row = k.shared("row", (1, BYTES), U8)
        full, empty = k.shared_barriers("full", 1).at(0), k.shared_barriers("empty", 1).at(0)
        rank = cluster_rank(k)
        with k.mask(elect(k)):
            mbarrier_init(k, full, count=1)
            mbarrier_init(k, empty, count=2 if self.release_other else 1)
            if self.fence:
                fence_mbarrier_init(k)
        if self.start:
            cluster_arrive(k)
            cluster_wait(k)
        total = k.new(u32, 0)
        with k.loop(TURNS) as turn:
            with k.mask(elect(k)):
                mbarrier_arrive_expect(k, full, bytes=BYTES)
            with k.when(rank == 0), k.mask(elect(k)):
                mbarrier_wait(k, empty, turn & 1 ^ 1)
                bulk_load_multicast_3d(
                    k, row.at(0), source.register, 0, turn, 0, full, type=source.type, blocks=self.blocks
                )
            mbarrier_wait(k, full, turn & 1)
            total += k.load(u32, row.at(0) + k.lane * 4)
            fence_proxy_async(k)
            elect(k)
            with k.mask(k.lane == 0):
                if self.release_other:
                    mbarrier_arrive_cluster(k, map_shared(k, empty, 0))
                else:
                    with k.when(rank == 0):
                        mbarrier_arrive(k, empty)
        if self.end:
            cluster_arrive(k)
            cluster_wait(k)
        k.store(k.address(result, k.block * 32 + k.lane, 4), total)


def launch(kernel: Kernel) -> tuple[Launch, np.ndarray, np.ndarray]:
    k = Builder("clustered", "sm_90a")
    kernel(k)
    program = k.finish({})
    source = np.random.default_rng(0).integers(0, 100, (1, TURNS, BYTES), np.uint8)
    result = np.zeros((4, 32), np.uint32)
    maps = next(p.type for p in program.parameters if p.name == "source")
    arguments = {"source": TensorMap(maps, view(source)), "result": view(result).pointer}
    return Launch(program, 4, arguments, (view(result),)), source, result


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_both_blocks_read_every_row(schedule: str) -> None:
    given, source, result = launch(Kernel())
    report = emulate.run(given, schedule)
    assert report.blocks == 4
    assert (result == source[0].view("<u4").sum(axis=0, dtype=np.uint32)).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("kernel", "kinds", "words"),
    [
        (Kernel(start=False), {"cluster", "mbarrier"}, ("may not have started", "never initialised")),
        (Kernel(end=False), {"cluster", "in flight at exit"}, ("has exited", "may still touch its shared memory")),
        (Kernel(fence=False), {"mbarrier"}, ("without a fence.mbarrier_init",)),
        (Kernel(release_other=False), {"race"}, ("nothing orders the two",)),
        (Kernel(blocks=0b111), {"cluster"}, ("reaches for block 2 of a cluster of 2",)),
        (Kernel(blocks=0b01), {"deadlock"}, ("bytes missing",)),
    ],
    ids=["no barrier at the start", "none at the end", "no fence", "not told", "a third block", "one block only"],
)
def test_what_is_left_out_is_found(schedule: str, kernel: Kernel, kinds: set[str], words: tuple[str, ...]) -> None:
    with pytest.raises(EmulationError) as error:
        emulate.run(launch(kernel)[0], schedule)
    assert error.value.finding.kind in kinds
    assert any(word in str(error.value) for word in words), str(error.value)
    assert "test_clusters.py:" in str(error.value)


def test_the_clusters_barrier_is_used_in_turns() -> None:
    def run(body) -> None:
        k = Builder("barrier", "sm_90a")
        k.cluster(2)
        body(k)
        emulate.run(Launch(k.finish({}), 2, {}))

    def twice(k: Builder) -> None:
        cluster_arrive(k)
        cluster_arrive(k)

    def one_only(k: Builder) -> None:
        with k.when(cluster_rank(k) == 1):
            cluster_arrive(k)
            cluster_wait(k)

    for body, words in (
        (twice, "again before it has waited"),
        (cluster_wait, "without having arrived"),
        (one_only, "where 1 of 2 warps have arrived"),
    ):
        with pytest.raises(EmulationError, match=words):
            run(body)


def test_bad_sizes_are_refused() -> None:
    for blocks in (0, 9, 1.5):
        with pytest.raises(ValueError, match="cluster is"):
            Builder("kernel", "sm_90a").cluster(blocks)  # type: ignore[arg-type]
    given, *_ = launch(Kernel())
    with pytest.raises(ValueError, match="grid is 3; a multiple of 2, the cluster, is wanted"):
        replace(given, grid=3)


def test_ptxas_takes_the_text() -> None:
    text = ptx(launch(Kernel())[0].program)
    assert ".reqnctapercluster 2, 1, 1" in text
    try:
        assemble(text, "sm_90a", find_ptxas())
    except AssemblerNotFound as missing:
        pytest.skip(str(missing))
