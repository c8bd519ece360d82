"""Eight neighbouring elements of a matrix row in one lane: read as float32, written as codes or float32."""

from __future__ import annotations

from kingpost.formats import BF16, F16, F32, Format
from kingpost.program import Builder, Operand, Register, Registers, f32, u32

WIDTH = 8  # elements


def row_address(k: Builder, base: Register, row: Register, stride: Operand) -> Register:
    """base (u64) + row * stride, in bytes; both u32."""
    address: Register = k.emit_portable("mad_wide", row, stride, base)
    return address


def read(
    k: Builder, format: Format, row: Register, places: list[Register], columns: Register, whole: bool
) -> list[Registers]:
    """float32 [8] for each place: the elements of a row, bfloat16, float16 or float32, from that column on.

    row: address (u64) of its element 0. whole: `columns` is a multiple of 8 and rows start at multiples of 16 bytes;
    then what lies past the end reads as the row's last 8 elements (so that no load is masked), else as zeros.
    """
    if not whole:
        return [_read_singly(k, format, row, column, columns) for column in places]
    last = columns - WIDTH
    addresses = [k.address(row, k.minimum(column, last), format.itemsize) for column in places]
    if format is not F32:
        return [_widened(k, format, pairs) for pairs in [k.load_vector(u32, address, 4) for address in addresses]]
    return [_both(k, *(k.load_vector(f32, address, 4, offset=offset) for offset in (0, 16))) for address in addresses]


def _widened(k: Builder, format: Format, pairs: Registers) -> Registers:
    """Pairs of bfloat16 or float16, the first in the low half, as float32."""
    values = k.array(f32, WIDTH)
    if format is BF16:
        k.emit_portable("from_bits", pairs << 16, into=values[0::2])
        k.emit_portable("from_bits", pairs & 0xFFFF0000, into=values[1::2])
    else:
        k.emit_portable("unpack_f16", pairs, into=values[0::2])
        k.emit_portable("unpack_f16", pairs >> 16, into=values[1::2])
    return values


def _both(k: Builder, first: Registers, second: Registers) -> Registers:
    values = k.array(f32, WIDTH)
    k.set(values[: WIDTH // 2], first)
    k.set(values[WIDTH // 2 :], second)
    return values


def _read_singly(k: Builder, format: Format, row: Register, column: Register, columns: Register) -> Registers:
    values = k.array(f32, WIDTH)
    for i, value in enumerate(values):
        address = k.address(row, k.minimum(column + i, columns - 1), format.itemsize)
        element = read_one(k, format, address)
        k.select(column + i < columns, element, 0.0, into=value)
    return values


def read_one(k: Builder, format: Format, address: Register) -> Register:
    """The bfloat16, float16 or float32 at an address (u64), as float32."""
    if format is F32:
        found: Register = k.load(f32, address)
    elif format is BF16:
        found = k.from_bits(k.load_narrow(16, address) << 16)
    else:
        found = k.unpack_f16(k.load_narrow(16, address))
    return found


def write_codes(k: Builder, row: Register, column: Register, columns: Register, codes: Registers, whole: bool) -> None:
    """8 codes, u32 [2], to a row from `column` on, none past its end. whole: as for `read`, with multiples of 8."""
    address = k.address(row, column)
    if whole:
        with k.mask(column < columns):
            k.store_vector(address, codes)
        return
    for i in range(WIDTH):
        with k.mask(column + i < columns):
            k.store_narrow(8, address, codes[i // 4] >> 8 * (i % 4), offset=i)


def read_codes(k: Builder, row: Register, column: Register, columns: Register, whole: bool) -> Registers:
    """float32 [8]: the values of a row's codes of the target's e4m3 from `column`, which lies inside, on."""
    address = k.address(row, column)
    values = k.array(f32, WIDTH)
    codes = k.load_vector(u32, address, 2) if whole else None
    for i, value in enumerate(values):
        if codes is not None:
            k.set(value, k.unpack_float8(codes[i // 4], i % 4))
        else:
            place = k.address(row, k.minimum(column + i, columns - 1))
            k.set(value, k.unpack_float8(k.load_narrow(8, place), 0))
    return values


def write(
    k: Builder, format: Format, row: Register, column: Register, columns: Register, values: Registers, whole: bool
) -> None:
    """float32 [8] to a row, bfloat16, float16 or float32, from `column`, which lies inside, on; none past its end."""
    address = k.address(row, column, format.itemsize)
    pack = k.pack_f16 if format is F16 else k.pack_bf16
    if whole and format is not F32:
        k.store_vector(address, pack(values[0::2], values[1::2]))
    elif whole:
        for half in (0, 4):
            k.store_vector(address, values[half : half + 4], offset=4 * half)
    else:
        for i, value in enumerate(values):
            with k.mask(column + i < columns):
                if format is F32:
                    k.store(address, value, offset=4 * i)
                else:
                    k.store_narrow(16, address, pack(value, value), offset=2 * i)
