"""The named sections of a 64-bit little-endian ELF file, which is what a cubin is."""

from __future__ import annotations

import re
import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DEBUG = re.compile(r"\.(rela\.)?(nv_)?debug_")
_NO_BITS = 8  # a section that takes no room in the file


def sections(image: bytes) -> dict[str, bytes]:
    """Section name to contents. Raises ValueError where `image` is no such file or is cut short."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"not a 64-bit little-endian ELF file: it starts with {image[:6]!r}")
    try:
        header = _HEADER.unpack_from(image)
        table, entry_size, count, names_index = header[6], header[11], header[12], header[13]
        rows = [_SECTION.unpack_from(image, table + i * entry_size) for i in range(count)]
        names = _contents(image, rows[names_index])
        return {names[row[0] : names.index(b"\0", row[0])].decode(): _contents(image, row) for row in rows}
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"damaged ELF file of {len(image)} bytes: {error}") from error


def without_debug(image: bytes) -> dict[str, bytes]:
    """The sections that a device is given: all but those that lead back to the text."""
    return {name: contents for name, contents in sections(image).items() if not _DEBUG.match(name)}


def _contents(image: bytes, row: tuple[int, ...]) -> bytes:
    kind, offset, size = row[1], row[4], row[5]
    if kind == _NO_BITS:
        return b""
    if offset + size > len(image):
        raise ValueError(f"a section ends at byte {offset + size}")
    return image[offset : offset + size]
