"""A block's tile product on Blackwell: four steps of tcgen05.mma into tensor memory, allocated and freed on the way."""

from __future__ import annotations

from kingpost.formats import U32
from kingpost.program import Builder, Fragment, SharedArray, f32, u32
from kingpost.targets.nvidia.isa.blackwell import (
    LOADS,
    mma_f8,
    shared_descriptor,
    tensor_allocate,
    tensor_commit,
    tensor_fence_after,
    tensor_fence_before,
    tensor_free,
    tensor_load,
    tensor_wait_load,
)
from kingpost.targets.nvidia.isa.common import (
    elect,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_init,
    mbarrier_invalidate,
    mbarrier_wait,
)

STEP = 32  # of K, in one mma


def tile_product(k: Builder, a: SharedArray, b: SharedArray) -> Fragment:
    """See `Target.tile_product`: a [64 or 128, 128], b [columns, 128], columns a multiple of 16 up to 256.

    Of 128 rows, thread t of the block gets row t; of 64, warp w gets rows 16 w to 16 w + 15, each row's second half of
    columns in lanes 16 to 31.
    """
    rows, columns = a.shape[0], b.shape[0]
    if rows not in (64, 128) or columns % 16 or not 16 <= columns <= 256:
        wanted = "64 or 128 rows and a multiple of 16 columns up to 256"
        raise ValueError(f"a tile product of {rows} rows and {columns} columns; {wanted} are wanted")
    allocated = max(32, 1 << (columns - 1).bit_length())
    unique = k.next_storage()  # a kernel may have several products
    done = k.shared_barriers(f"tile_product_{unique}_done", 1).at(0)
    slot = k.shared(f"tile_product_{unique}_accumulator", (1,), U32).at(0)

    fence_proxy_async(k)  # threads wrote the operands, the tensor core reads them
    with k.when(k.warp == 0):
        tensor_allocate(k, slot, columns=allocated)
        with k.mask(elect(k)):
            mbarrier_init(k, done, count=1)
            fence_mbarrier_init(k)
    k.barrier()
    accumulator = k.load(u32, slot)

    with k.when(k.warp == 0), k.mask(elect(k)):
        for step in range(0, a.shape[1], STEP):
            operands = [shared_descriptor(k, each.at(0), offset=step) for each in (a, b)]
            mma_f8(k, accumulator, *operands, int(step > 0), m=rows, n=columns, a_format=a.format, b_format=b.format)
        tensor_commit(k, done)
    mbarrier_wait(k, done, 0)
    tensor_fence_after(k)

    own_lanes = accumulator + (k.warp << 21)  # the lane is in bits 31:16, 32 to a warp
    split = None if rows == 128 else columns // 2
    values = k.array(f32, split or columns)
    first = 0
    for count in sorted(LOADS, reverse=True):
        while len(values) - first >= count:
            tensor_load(k, own_lanes, count=count, column=first, split=split, into=values[first : first + count])
            first += count
    tensor_wait_load(k)
    tensor_fence_before(k)
    k.barrier()
    with k.when(k.warp == 0):
        tensor_free(k, accumulator, columns=allocated)
        with k.mask(elect(k)):
            mbarrier_invalidate(k, done)

    places = tuple((0, i) for i in range(len(values)))
    if split is None:
        return Fragment(values, k.thread, k.new(u32, 0), places)
    return Fragment(values, k.fused_multiply_add(k.warp, 16, k.lane % 16), k.lane // 16 * split, places)
