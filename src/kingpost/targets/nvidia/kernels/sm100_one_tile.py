"""One tile on Blackwell, a kernel for each kind of product: D[128, N] = A[128, K] B[N, K]^T, float32 out.

A and B lie whole in shared memory, in blocks of 128 bytes of K, 128-byte-swizzled. One thread loads them, issues the
steps of 32 bytes to the tensor core, which adds them up in tensor memory, and commits; then each warp stores 32 rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kingpost.formats import BF16, E4M3, U8, U32, Format
from kingpost.program import Builder, Register, SharedArray, f32, kernel, u32, u64
from kingpost.targets.nvidia.isa.blackwell import (
    mma_f8,
    mma_f16,
    mma_mxf8,
    shared_descriptor,
    tensor_allocate,
    tensor_commit,
    tensor_copy_scales,
    tensor_fence_after,
    tensor_fence_before,
    tensor_free,
    tensor_load,
    tensor_relinquish,
    tensor_wait_load,
)
from kingpost.targets.nvidia.isa.common import (
    bulk_load_2d,
    elect,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_wait,
)

ROWS = 128
ROW_BYTES = 128  # of K, in one block
STEP_BYTES = 32
SCALE_BYTES = 512  # a block's scales of 128 rows: four a row
SCALE_COLUMNS = 4


@kernel(target="sm_100a")
def sm100_f16(k: Builder, *, columns: int, blocks: int, format: Format = BF16) -> None:
    """float16 or bfloat16, K = 64 `blocks`."""
    tile = _Tile(k, columns, blocks, format)
    with tile.one_thread():
        for block, step in tile.steps():
            a, b = tile.operands(block, step)
            mma_f16(k, tile.d, a, b, int(block + step > 0), m=ROWS, n=columns, a_format=format, b_format=format)
    tile.store()


@kernel(target="sm_100a")
def sm100_f8(k: Builder, *, columns: int, blocks: int, a_format: Format = E4M3, b_format: Format = E4M3) -> None:
    """e4m3 or e5m2, K = 128 `blocks`."""
    tile = _Tile(k, columns, blocks, a_format, b_format)
    with tile.one_thread():
        for block, step in tile.steps():
            a, b = tile.operands(block, step)
            mma_f8(k, tile.d, a, b, int(block + step > 0), m=ROWS, n=columns, a_format=a_format, b_format=b_format)
    tile.store()


@kernel(target="sm_100a")
def sm100_mxf8(k: Builder, *, columns: int, blocks: int, a_format: Format = E4M3, b_format: Format = E4M3) -> None:
    """e4m3 or e5m2, K = 128 `blocks`, with E8M0 scales for every 32 of K: scale_a [128, K/32], scale_b [N, K/32]."""
    if columns > ROWS:
        raise ValueError(f"columns is {columns}; at most {ROWS}, whose scales are one copy, are wanted")
    scales = [k.parameter("scale_a", u64), k.parameter("scale_b", u64)]
    staged = [k.shared(name, (blocks, SCALE_BYTES), U8) for name in ("a_scales", "b_scales")]
    for address, rows, array in zip(scales, (ROWS, columns), staged):
        _stage_scales(k, address, rows, array)
    fence_proxy_async(k)
    tile = _Tile(k, columns, blocks, a_format, b_format, more_columns=2 * blocks * SCALE_COLUMNS)
    with tile.one_thread():
        places = [tile.d + (columns + i * SCALE_COLUMNS) for i in range(2 * blocks)]
        for block in range(blocks):
            for array, place in zip(staged, places[2 * block :]):
                tensor_copy_scales(k, place, shared_descriptor(k, array.at(block), stride=128, swizzle=0))
        for block, step in tile.steps():
            a, b = tile.operands(block, step)
            a_scales, b_scales = places[2 * block : 2 * block + 2]
            mma_mxf8(k, tile.d, a, b, int(block + step > 0), a_scales, b_scales, n=columns, a_scale=step, b_scale=step,
                     a_format=a_format, b_format=b_format)  # fmt: skip
    tile.store()


def _stage_scales(k: Builder, scales: Register, rows: int, staged: SharedArray) -> None:
    """Thread r brings row r's four scales of each block to where tcgen05.cp wants them, zeros past the rows."""
    blocks = staged.shape[0]
    for block in range(blocks):
        four = k.new(u32, 0)
        with k.mask(k.thread < rows):
            k.load(u32, k.address(scales, k.thread, 4 * blocks), offset=4 * block, into=four)
        k.store(k.fused_multiply_add(k.lane, 16, k.fused_multiply_add(k.warp, 4, staged.at(block))), four)


class _Tile:
    """What the kernels share: operands, an accumulator of `columns` and `more_columns` for scales, and the way out."""

    def __init__(
        self, k: Builder, columns: int, blocks: int, a_format: Format, b_format: Format | None = None,
        more_columns: int = 0,
    ) -> None:  # fmt: skip
        b_format = b_format or a_format
        self.k, self.columns, self.blocks = k, columns, blocks
        self.allocated = max(32, 1 << (columns + more_columns - 1).bit_length())
        width = ROW_BYTES // a_format.itemsize
        self.width = width
        self.a_map = k.tensor_map("a", a_format, (ROWS, width), swizzle=128)
        self.b_map = k.tensor_map("b", b_format, (columns, width), swizzle=128)
        self.result = k.parameter("d", u64)
        self.a = k.shared("a_blocks", (blocks, ROWS, width), a_format, swizzle=128)
        self.b = k.shared("b_blocks", (blocks, columns, width), b_format, swizzle=128)
        barriers = k.shared_barriers("barriers", 2)
        self.loaded, self.multiplied = barriers.at(0), barriers.at(1)
        slot = k.shared("accumulator_address", (1,), U32).at(0)
        k.warps(4)

        with k.when(k.warp == 0):
            tensor_allocate(k, slot, columns=self.allocated)
            tensor_relinquish(k)
            with k.mask(elect(k)):
                mbarrier_init(k, self.loaded, count=1)
                mbarrier_init(k, self.multiplied, count=1)
                fence_mbarrier_init(k)
        k.barrier()
        self.d = k.load(u32, slot)

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """What one thread does, once it has loaded the operands; then it commits."""
        k = self.k
        with k.when(k.warp == 0), k.mask(elect(k)):
            mbarrier_arrive_expect(k, self.loaded, bytes=self.a.bytes + self.b.bytes)
            for block in range(self.blocks):
                for array, map in ((self.a, self.a_map), (self.b, self.b_map)):
                    bulk_load_2d(k, array.at(block), map.register, 0, block * self.width, self.loaded, type=map.type)
            mbarrier_wait(k, self.loaded, 0)
            yield
            tensor_commit(k, self.multiplied)

    def steps(self) -> list[tuple[int, int]]:
        return [(block, step) for block in range(self.blocks) for step in range(ROW_BYTES // STEP_BYTES)]

    def operands(self, block: int, step: int) -> list[Register]:
        """Descriptors of A's and B's part of one step."""
        return [shared_descriptor(self.k, each.at(block), offset=step * STEP_BYTES) for each in (self.a, self.b)]

    def store(self) -> None:
        """Wait for the products; thread t stores row t. Then give tensor memory back."""
        k = self.k
        mbarrier_wait(k, self.multiplied, 0)
        tensor_fence_after(k)
        own_lanes = self.d + (k.warp << 21)  # the lane is in bits 31:16, 32 to a warp
        row = k.address(self.result, k.thread, self.columns * 4)
        for first in range(0, self.columns, 16):
            values = k.array(f32, 16)
            tensor_load(k, own_lanes, count=16, column=first, into=values)
            tensor_wait_load(k)
            for i in range(0, 16, 4):
                k.store_vector(row, values[i : i + 4], offset=(first + i) * 4)
        tensor_fence_before(k)
        k.barrier()
        with k.when(k.warp == 0):
            tensor_free(k, self.d, columns=self.allocated)
