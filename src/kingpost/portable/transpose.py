"""8-bit codes [R, C] transposed to [C, R]: how float8 operands come to have K contiguous.

A block takes a tile of 128 x 128. A thread turns squares of 4 x 4 codes in registers, from four words of rows to four
words of columns; shared memory gathers the columns, which leave 16 bytes at a time.
"""

from __future__ import annotations

from kingpost.arrays import View
from kingpost.formats import FLOAT8, U8, U32
from kingpost.portable.rows import row_address
from kingpost.portable.views import aligned, check_rows, stride
from kingpost.program import Builder, Launch, Register, Registers, Target, kernel, u32, u64

SIDE = 128  # of a tile
THREADS = 256
SQUARE = 4  # codes in a word
WORDS = SIDE // SQUARE
PITCH = WORDS + 1  # words from column to column in shared memory, so that neighbours lie in different banks
CODES = (U8, *FLOAT8)


def launch(target: Target, source: View, destination: View) -> Launch:
    """source: codes of 8 bits [R, C], destination: [C, R], elements of a row adjacent in both, rows at any distance."""
    check_rows("source", source, CODES, (None, None))
    rows, columns = source.shape
    check_rows("destination", destination, [source.format], (columns, rows))
    whole = columns % SQUARE == 0 and rows % 16 == 0 and aligned(source, SQUARE) and aligned(destination, 16)
    grid = -(-rows // SIDE) * -(-columns // SIDE)
    strides = {f"{name}_stride": stride(x, 0) for name, x in (("source", source), ("destination", destination))}
    views = {"source": source, "destination": destination}
    return Launch.of(transpose(target=target, whole=whole), grid, rows=rows, columns=columns, **strides, **views)


@kernel()
def transpose(k: Builder, *, whole: bool) -> None:
    """whole: words of the source and 16 bytes of the destination lie inside and are aligned."""
    k.warps(THREADS // k.lanes)
    rows, columns = k.parameter("rows"), k.parameter("columns")
    source, destination = k.parameter("source", u64), k.parameter("destination", u64)
    source_stride, destination_stride = k.parameter("source_stride"), k.parameter("destination_stride")
    tile = k.shared("columns_of_tile", (SIDE, PITCH), U32)
    tiles = k.ceil_div(columns, SIDE)
    first_row, first_column = k.block // tiles * SIDE, k.block % tiles * SIDE

    column = k.thread % WORDS * SQUARE
    for start in range(0, WORDS, THREADS // WORDS):
        row = (k.thread // WORDS + start) * SQUARE
        words = k.array(u32, SQUARE, "row")
        k.set(words, 0)
        for i, word in enumerate(words):
            line = row_address(k, source, first_row + row + i, source_stride)
            _load(k, word, line, first_column + column, columns, first_row + row + i < rows, whole)
        at = tile.at(column) + row
        for i, word in enumerate(_turned(k, words)):
            k.store(at, word, offset=i * PITCH * 4)
    k.barrier()

    chunk = k.thread % (SIDE // 16) * 16
    for start in range(0, SIDE, THREADS // (SIDE // 16)):
        column = k.thread // (SIDE // 16) + start
        at = tile.at(column) + chunk
        words = k.array(u32, 4, "column")
        for i, word in enumerate(words):
            k.load(u32, at, offset=4 * i, into=word)
        line = row_address(k, destination, first_column + column, destination_stride)
        _store(k, words, line, first_row + chunk, rows, first_column + column < columns, whole)


def _load(
    k: Builder, word: Register, line: Register, column: Register, columns: Register, inside: Register, whole: bool
) -> None:
    """Four codes of a row from `column` on; what lies outside stays zero."""
    if whole:
        with k.mask(inside & (column < columns)):
            k.load(u32, k.address(line, column), into=word)
        return
    for i in range(SQUARE):
        with k.mask(inside & (column + i < columns)):
            k.emit_portable("or", word, k.load_narrow(8, k.address(line, column), offset=i) << 8 * i, into=word)


def _store(
    k: Builder, words: Registers, line: Register, row: Register, rows: Register, inside: Register, whole: bool
) -> None:
    """16 codes of a column from `row` on, none past the end."""
    if whole:
        with k.mask(inside & (row < rows)):
            k.store_vector(k.address(line, row), words)
        return
    for i in range(16):
        with k.mask(inside & (row + i < rows)):
            k.store_narrow(8, k.address(line, row), words[i // 4] >> 8 * (i % 4), offset=i)


def _turned(k: Builder, words: Registers) -> list[Register]:
    """Four words of rows as four words of columns."""
    columns = []
    for i in range(SQUARE):
        parts = [(word >> 8 * i) & 0xFF if i < SQUARE - 1 else word >> 24 for word in words]
        columns.append(parts[0] | parts[1] << 8 | parts[2] << 16 | parts[3] << 24)
    return columns
