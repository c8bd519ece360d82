"""Instructions for clusters of blocks (sm_90 and later): ranks, the cluster's barrier, and each other's shared memory.

An address in another block's shared memory is made by `map_shared`; it serves mbarrier arrivals. Copies to several
blocks name the same place in each (PTX ISA, "Cluster", "mapa", "cp.async.bulk.tensor").
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kingpost.program import DELETE, EVERY_LANE, Operand, Registers, TensorMapType, operation, u32, u64
from kingpost.program.weakening import shifted
from kingpost.targets.nvidia.isa.common import MBARRIER, address_of, check_bulk, number_of, uses_of_copy
from kingpost.targets.nvidia.isa.operands import single, want_range
from kingpost.targets.nvidia.units.bulk_copy import BulkCopies
from kingpost.targets.nvidia.units.clusters import ClusterBarrier, located, mapped
from kingpost.targets.nvidia.units.mbarrier import Mbarriers

LARGEST_CLUSTER = 8  # blocks that every GPU can run together


@operation("mov.u32 {d}, %cluster_ctarank;", name="cluster_ctarank", writes={"d": u32}, check=single("cluster_ctarank"))
def cluster_rank(warp: Any) -> Any:
    """This block's place in its cluster."""
    return warp.broadcast(np.uint32(warp.block.peers.index(warp.block)))


@operation("barrier.cluster.arrive.release.aligned;", converged=True, decides=(DELETE,))
def cluster_arrive(warp: Any) -> None:
    """Arrive at the cluster's barrier, with all warps of all its blocks."""
    warp.block.peers[0].unit(ClusterBarrier).arrive(warp)


@operation("barrier.cluster.wait.acquire.aligned;", converged=True, decides=(DELETE,))
def cluster_wait(warp: Any) -> Any:
    """Wait until all warps of the cluster's blocks have arrived, as this one has."""
    return warp.block.peers[0].unit(ClusterBarrier).wait(warp)


def _check_rank(address: Operand, rank: Operand, *, into: Any) -> None:
    single("mapa", "address")(address, rank, into=into)
    if not isinstance(rank, Registers):
        want_range("mapa", "rank", int(rank), 0, LARGEST_CLUSTER - 1)


@operation(
    "mapa.shared::cluster.u32 {d}, {address}, {rank};",
    reads={"address": u32, "rank": u32},
    writes={"d": u32},
    check=_check_rank,
)
def map_shared(warp: Any, address: Any, rank: Any) -> Any:
    """The address, for the whole cluster, of what lies at `address` in the shared memory of block `rank`."""
    return mapped(warp.broadcast(address), warp.broadcast(rank))


@operation(
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{address}];",
    name="mbarrier.arrive.cluster",
    reads={"address": u32},
    check=single("mbarrier.arrive.cluster", "address"),
    decides=(DELETE, EVERY_LANE),
)
def mbarrier_arrive_cluster(warp: Any, address: Any) -> None:
    """One arrival a lane at an mbarrier in any block's shared memory; `address` as `map_shared` gives it."""
    block, local = located(warp, address_of(warp, address))
    block.unit(Mbarriers).arrive(warp, local, int(warp.active.sum()))


def _check_multicast(*reads: Operand, into: Any, type: TensorMapType, blocks: int) -> None:
    addressed = check_bulk("cp.async.bulk.tensor.3d.multicast", 3, "destination", "map", None, None, None, "barrier")
    addressed(*reads, into=into, type=type)
    want_range("cp.async.bulk.tensor.3d.multicast", "blocks", blocks, 1, (1 << LARGEST_CLUSTER) - 1)


@operation(
    "{{ .reg .b16 blocks; mov.b16 blocks, {blocks}; "
    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[{destination}], [{map}, {{{column}, {row}, {plane}}}], [{barrier}], blocks; }}",
    name="cp.async.bulk.tensor.3d.multicast",
    reads={"destination": u32, "map": u64, "plane": u32, "row": u32, "column": u32, "barrier": u32},
    check=_check_multicast,
    uses=uses_of_copy,
    decides=(EVERY_LANE, shifted("barrier", MBARRIER)),
)
def bulk_load_multicast_3d(
    warp: Any,
    destination: Any,
    map: Any,
    plane: Any,
    row: Any,
    column: Any,
    barrier: Any,
    *,
    type: TensorMapType,
    blocks: int,
) -> None:
    """Copy a box to `destination` in the shared memory of each block whose rank is a bit of `blocks`, and count its
    bytes on that block's mbarrier at `barrier`."""
    origin = number_of(warp, plane), number_of(warp, row), number_of(warp, column)
    copies = warp.block.unit(BulkCopies)
    ranks = [rank for rank in range(LARGEST_CLUSTER) if blocks >> rank & 1]
    copies.load(warp, address_of(warp, destination), number_of(warp, map), origin, address_of(warp, barrier), ranks)
