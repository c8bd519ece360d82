"""D[M, N] = A[M, K] B[N, K]^T through the target's tile product: simple, for any sizes, one tile of D a block.

The threads of a block bring 64 x 128 tiles of A and B into shared memory, zeros past the edges; the target multiplies
them from zero; then total = fma(partial, rn32(scale_a * scale_b), total), K blocks in ascending order.
"""

from __future__ import annotations

from kingpost.arrays import View
from kingpost.formats import BF16, F32, Format
from kingpost.portable.rows import row_address
from kingpost.portable.views import aligned, check, check_rows, stride
from kingpost.program import (
    Builder,
    Fragment,
    Launch,
    Register,
    Registers,
    SharedArray,
    Target,
    f32,
    kernel,
    swizzle,
    u32,
    u64,
)
from kingpost.scaling import BLOCK

SIDE = 64  # rows and columns of a tile
CHUNK = 16  # bytes that a thread copies at once


def launch(target: Target, a: View, scale_a: View, b: View, scale_b: View, d: View) -> Launch:
    """a: the target's e4m3 [M, K], b: [N, K], rows at multiples of 16 bytes, K a multiple of 16; scale_a: float32
    [M, ceil(K/128)], scale_b: [ceil(N/128), ceil(K/128)], any strides; d: float32 or bfloat16 [M, N]."""
    if target.tile_product is None:
        raise ValueError(f"target {target.name} has no tile product")
    check_rows("a", a, [target.float8], (None, None))
    check_rows("b", b, [target.float8], (None, a.shape[1]))
    (m, depth), n = a.shape, b.shape[0]
    check("scale_a", scale_a, [F32], (m, -(-depth // BLOCK)))
    check("scale_b", scale_b, [F32], (-(-n // BLOCK), -(-depth // BLOCK)))
    check_rows("d", d, [F32, BF16], (m, n))
    for name, each in (("a", a), ("b", b)):
        if depth % CHUNK or not aligned(each, CHUNK):
            raise ValueError(
                f"{name} has shape {list(each.shape)}, starts at {each.pointer:#x} and has strides {each.strides} "
                f"bytes; a multiple of {CHUNK} is wanted for K, the start and the rows' stride"
            )
    strides = {
        f"{name}_stride{i}": stride(each, i) for name, each in (("sa", scale_a), ("sb", scale_b)) for i in (0, 1)
    } | {f"{name}_stride": stride(each, 0) for name, each in (("a", a), ("b", b), ("d", d))}
    program = tile_product(target=target, out=d.format)
    views = {"a": a, "scale_a": scale_a, "b": b, "scale_b": scale_b, "d": d}
    return Launch.of(program, -(-m // SIDE) * -(-n // SIDE), m=m, n=n, depth=depth, **strides, **views)


@kernel()
def tile_product(k: Builder, *, out: Format) -> None:
    k.warps(k.target.tile_warps)
    m, n, depth = (k.parameter(name) for name in ("m", "n", "depth"))
    a, b, d, scale_a, scale_b = (k.parameter(name, u64) for name in ("a", "b", "d", "scale_a", "scale_b"))
    a_stride, b_stride, d_stride = (k.parameter(f"{name}_stride") for name in "abd")
    sa_row, sa_block, sb_row, sb_block = (k.parameter(f"{name}_stride{i}") for name in ("sa", "sb") for i in (0, 1))
    a_tile, b_tile = k.tile("a_tile", SIDE), k.tile("b_tile", SIDE)
    tiles = k.ceil_div(n, SIDE)
    row, column = k.block // tiles * SIDE, k.block % tiles * SIDE
    scale_b_row = row_address(k, scale_b, column // BLOCK, sb_row)

    total = k.array(f32, SIDE * SIDE // (k.target.tile_warps * k.lanes), "total")
    k.set(total, 0.0)
    with k.loop(k.ceil_div(depth, BLOCK)) as block:
        _copy(k, a_tile, a, a_stride, row, m, block * BLOCK, depth)
        _copy(k, b_tile, b, b_stride, column, n, block * BLOCK, depth)
        part = k.tile_product(a_tile, b_tile)
        of_b = k.load(f32, row_address(k, scale_b_row, block, sb_block))
        offsets = sorted({down for down, _ in part.places})
        scales = k.array(f32, len(offsets), "scale")
        for scale, down in zip(scales, offsets):
            own = row_address(k, scale_a, k.minimum(row + part.row + down, m - 1), sa_row)
            k.emit_portable("mul", k.load(f32, row_address(k, own, block, sa_block)), of_b, into=scale)
        own_scales = scales[[offsets.index(down) for down, _ in part.places]]
        k.fused_multiply_add(part.values, own_scales, total, into=total)
    _store(k, part, total, out, d, d_stride, (row, m), (column, n))


def _copy(
    k: Builder,
    tile: SharedArray,
    x: Register,
    stride: Register,
    first: Register,
    rows: Register,
    at: Register,
    depth: Register,
) -> None:
    """64 rows of x from row `first` on, 128 elements each from column `at` on, to a tile; zeros past rows and depth."""
    threads, chunks = k.target.tile_warps * k.lanes, BLOCK // CHUNK
    for start in range(0, SIDE * chunks, threads):
        chunk = k.thread + start
        row, column = chunk // chunks, chunk % chunks * CHUNK
        words = k.array(u32, CHUNK // 4)
        k.set(words, 0)
        with k.mask((first + row < rows) & (at + column < depth)):
            k.set(words, k.load_vector(u32, k.address(row_address(k, x, first + row, stride), at + column), CHUNK // 4))
        k.store_vector(swizzle(tile.at(row) + column, k.target.tile_swizzle), words)


def _store(
    k: Builder,
    part: Fragment,
    total: Registers,
    out: Format,
    d: Register,
    stride: Register,
    rows: tuple[Register, Register],
    columns: tuple[Register, Register],
) -> None:
    """A thread's share of the tile at (rows[0], columns[0]) of d, what lies before (rows[1], columns[1])."""
    row, column = rows[0] + part.row, columns[0] + part.column
    starts = {down: row_address(k, d, row + down, stride) for down, _ in part.places}
    for value, (down, right) in zip(total, part.places):
        with k.mask((row + down < rows[1]) & (column + right < columns[1])):
            address = k.address(starts[down], column + right, out.itemsize)
            if out is BF16:
                k.store_narrow(16, address, k.pack_bf16(value, value))
            else:
                k.store(address, value)
