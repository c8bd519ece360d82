"""x [K, M] to the target's e4m3 [M, K] with a float32 scale for every 128 of K: the cast for the gradient of weights.

With `ends`, K is cut into groups that each start a new block of scales. A block of threads takes 128 of K and two
columns of M a lane: rows are read along M, largest magnitudes meet in shared memory, 16 codes leave along K at once.
"""

from __future__ import annotations

from typing import Any

from kingpost.arrays import View
from kingpost.formats import BF16, F32, I32, U32, Format
from kingpost.portable.block_scale import Divisor, Rounding, scale_of
from kingpost.portable.rows import read_one, row_address
from kingpost.portable.views import aligned, check, check_rows, stride
from kingpost.program import Builder, Launch, Register, Registers, Target, f32, kernel, u32, u64
from kingpost.scaling import BLOCK

THREADS = 256
COLUMNS = 2  # of a lane
STORED = 16  # codes that leave at once
MOST_GROUPS = 512


def launch(target: Target, x: View, *more: View, **rounding: Any) -> Launch:
    """x: bfloat16 or float32 [K, M], elements of a row adjacent; then ends, if given, int32 [G], up to 512 groups;
    data: the target's e4m3 [M, K], elements of a row adjacent; scales: float32 [M, blocks], any strides: group g's
    blocks stand behind those of the groups before it, and blocks behind the last group's are not written. rounding: the
    options of `Rounding.of`. Of NaN and infinity as `cast`."""
    *given, data, scales = more
    depth, columns = x.shape
    check_rows("x", x, (BF16, F32), (None, None))
    check_rows("data", data, [target.float8], (columns, depth))
    check("scales", scales, [F32], (columns, None))
    for ends in given:
        check_rows("ends", ends, [I32], (None,))
        if ends.shape[0] > MOST_GROUPS:
            raise ValueError(f"ends has {ends.shape[0]} groups; {MOST_GROUPS} at most are wanted")
    wide = columns % COLUMNS == 0 and aligned(x, COLUMNS * x.format.itemsize)
    whole = wide and depth % STORED == 0 and aligned(data, STORED)
    how = Rounding.of(target.float8, **rounding)
    program = transposed_cast(target=target, source=x.format, grouped=bool(given), whole=whole, rounding=how)
    strides = {"x_stride": stride(x, 0), "data_stride": stride(data, 0)}
    strides |= {"row_stride": stride(scales, 0), "block_stride": stride(scales, 1)}
    views = {"x": x, "data": data, "scales": scales}
    if given:
        strides["groups"], views["ends"] = given[0].shape[0], given[0]
    across = -(-columns // (COLUMNS * target.lanes))
    sizes = {"depth": depth, "columns": columns, "eps": rounding.get("eps", 1e-10)}
    return Launch.of(program, scales.shape[1] * across, **views, **sizes, **strides)


@kernel()
def transposed_cast(k: Builder, *, source: Format, grouped: bool, whole: bool, rounding: Rounding) -> None:
    """source: the format of x. whole: two columns are read at a time, and 16 codes written."""
    warps = THREADS // k.lanes
    k.warps(warps)
    height = BLOCK // warps  # rows of a warp
    depth, columns, eps = k.parameter("depth"), k.parameter("columns"), k.parameter("eps", f32)
    x, data, scales = k.parameter("x", u64), k.parameter("data", u64), k.parameter("scales", u64)
    x_stride, data_stride = k.parameter("x_stride"), k.parameter("data_stride")
    row_stride, block_stride = k.parameter("row_stride"), k.parameter("block_stride")
    across = k.ceil_div(columns, COLUMNS * k.lanes)
    slot = k.block // across
    column = k.block % across * (COLUMNS * k.lanes) + k.lane * COLUMNS
    if grouped:
        begin, end = _part(k, slot, depth, warps)
    else:
        begin = slot * BLOCK
        end = k.minimum(begin + BLOCK, depth)

    first = begin + k.warp * height
    values = [k.array(f32, height, "column") for _ in range(COLUMNS)]
    most = [k.new(f32, 0.0, "largest") for _ in range(COLUMNS)]
    for i in range(height):
        inside = first + i < end
        line = row_address(k, x, k.minimum(first + i, depth - 1), x_stride)
        pair = _pair(k, source, line, column, columns, whole)
        for value, number, largest in zip(values, pair, most):
            k.select(inside, number, 0.0, into=value[i])
            k.emit_portable("max", largest, k.emit_portable("abs", value[i]), into=largest)
    for c, (numbers, largest) in enumerate(zip(values, _of_warps(k, most, warps))):
        scale = scale_of(k, largest, eps, rounding)
        quotients = Divisor(k, scale, rounding).divide(numbers)
        inside = column + c < columns
        line = row_address(k, data, column + c, data_stride)
        for start in range(0, height, STORED):
            codes = k.pack_float8(*(quotients[[start + 4 * w + i for w in range(STORED // 4)]] for i in range(4)))
            _store(k, codes, line, first + start, end, inside, whole)
        with k.mask(inside & (k.thread < k.lanes) & (begin < end)):
            k.store(row_address(k, row_address(k, scales, column + c, row_stride), slot, block_stride), scale)


def _pair(
    k: Builder, format: Format, line: Register, column: Register, columns: Register, whole: bool
) -> list[Register]:
    """Two neighbours of a row as float32; past its end, the last ones."""
    if not whole:
        found = []
        for c in range(COLUMNS):
            at = k.address(line, k.minimum(column + c, columns - 1), format.itemsize)
            found.append(read_one(k, format, at))
        return found
    at = k.address(line, k.minimum(column, columns - COLUMNS), format.itemsize)
    if format is F32:
        return list(k.load_vector(f32, at, COLUMNS))
    both = k.load(u32, at)
    return [k.from_bits(both << 16), k.from_bits(both & 0xFFFF0000)]


def _store(
    k: Builder, codes: Registers, line: Register, row: Register, end: Register, inside: Register, whole: bool
) -> None:
    """16 codes of a column from `row` on, none from `end` on."""
    if whole:
        with k.mask(inside & (row < end)):
            k.store_vector(k.address(line, row), codes)
        return
    for i in range(STORED):
        with k.mask(inside & (row + i < end)):
            k.store_narrow(8, k.address(line, row), codes[i // 4] >> 8 * (i % 4), offset=i)


def _of_warps(k: Builder, most: list[Register], warps: int) -> list[Register]:
    """The largest of all warps for each of a lane's columns."""
    held = k.shared("largest_of_warps", (warps, COLUMNS * k.lanes), F32)
    for c, value in enumerate(most):
        k.store(held.at(k.warp) + k.lane * 4, value, offset=c * k.lanes * 4)
    k.barrier()
    found = []
    for c in range(COLUMNS):
        largest = k.new(f32, 0.0, "largest")
        for warp in range(warps):
            other = k.load(f32, held.at(warp) + k.lane * 4, offset=c * k.lanes * 4)
            k.emit_portable("max", largest, other, into=largest)
        found.append(largest)
    return found


def _part(k: Builder, slot: Register, depth: Register, warps: int) -> tuple[Register, Register]:
    """Where the block of scales `slot` begins and ends in K, by the groups' ends; nothing for a slot behind the last.

    Thread t looks after groups t and t + 256. Blocks are counted by doubling distances.
    """
    groups, ends = k.parameter("groups"), k.parameter("ends", u64)
    sums = k.shared("blocks_of_groups", (2, MOST_GROUPS), U32)
    part = k.shared("part", (4,), U32)
    owned = []
    with k.mask(k.thread < 2):
        k.store(part.at(0) + k.thread * 4, k.new(u32, 0))
    for start in range(0, MOST_GROUPS, THREADS):
        group, begin, end = k.thread + start, k.new(u32, 0), k.new(u32, 0)
        with k.mask(group < groups):
            k.set(end, _end(k, ends, group, depth))
        with k.mask((group < groups) & (group > 0)):
            k.set(begin, _end(k, ends, group - 1, depth))
        k.set(end, k.maximum(begin, end))
        blocks = k.ceil_div(end - begin, BLOCK)
        k.store(sums.at(0) + group * 4, blocks)
        owned.append((group, begin, end, blocks))
    distance, side = 1, 0
    while distance < MOST_GROUPS:
        k.barrier()
        for group, *_ in owned:
            total = k.new(u32, k.load(u32, sums.at(side) + group * 4))
            with k.mask(group >= distance):
                k.emit_portable("add", total, k.load(u32, sums.at(side) + (group - distance) * 4), into=total)
            k.store(sums.at(1 - side) + group * 4, total)
        distance, side = 2 * distance, 1 - side
    for group, begin, end, blocks in owned:
        behind = k.load(u32, sums.at(side) + group * 4)
        with k.mask((slot < behind) & (slot >= behind - blocks)):
            start = begin + (slot - (behind - blocks)) * BLOCK
            k.store(part.at(0), start)
            k.store(part.at(0), k.minimum(start + BLOCK, end), offset=4)
    k.barrier()
    return k.load(u32, part.at(0)), k.load(u32, part.at(0), offset=4)


def _end(k: Builder, ends: Register, group: Register, depth: Register) -> Register:
    """Where a group ends: at a multiple of 16, whatever `ends` holds, since 16 codes at other places stop a device."""
    end: Register = k.minimum(k.load(u32, k.address(ends, group, 4)), depth)
    return end - end % STORED
