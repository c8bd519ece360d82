"""d = x + y, float32, of any length: four elements a thread in 16-byte accesses, the ragged end one by one."""

from __future__ import annotations

from kingpost.arrays import View
from kingpost.formats import F32
from kingpost.portable.views import check_rows
from kingpost.program import Builder, Launch, Target, f32, kernel, u64

WIDTH = 4  # elements of a thread
WARPS = 8


def launch(target: Target, x: View, y: View, d: View) -> Launch:
    """x, y, d: float32 [N], neighbours in memory."""
    for name, each in (("x", x), ("y", y), ("d", d)):
        check_rows(name, each, [F32], x.shape if len(x.shape) == 1 else [None])
    size = x.shape[0]
    program = vector_add(target=target, whole=all(each.pointer % 16 == 0 for each in (x, y, d)))
    return Launch.of(program, -(-size // (WARPS * target.lanes * WIDTH)), x=x, y=y, d=d, size=size)


@kernel()
def vector_add(k: Builder, *, whole: bool) -> None:
    """whole: the arrays start at multiples of 16 bytes."""
    k.warps(WARPS)
    x, y, d, size = k.parameter("x", u64), k.parameter("y", u64), k.parameter("d", u64), k.parameter("size")
    first = (k.block * (WARPS * k.lanes) + k.thread) * WIDTH
    at_x, at_y, at_d = (k.address(base, first, F32.itemsize) for base in (x, y, d))
    singly = k.select(first < size, size - first, 0)
    if whole:
        full = singly >= WIDTH
        with k.mask(full):
            k.store_vector(at_d, k.load_vector(f32, at_x, WIDTH) + k.load_vector(f32, at_y, WIDTH))
        singly = k.select(full, 0, singly)
    for i in range(WIDTH):
        with k.mask(singly > i):
            offset = i * F32.itemsize
            k.store(at_d, k.load(f32, at_x, offset=offset) + k.load(f32, at_y, offset=offset), offset=offset)
