"""What is the same in all lanes of a wave, and where a written value can still be seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kingpost.program import Instruction, Loop, Mask, Node, Program, Registers, When
from kingpost.program.registers import Storage
from kingpost.program.types import f32

# of f32, what only moves bits; the scalar unit has no float32 arithmetic
_MOVES = {"move", "select", "bits", "from_bits", "parameter"}
_SOURCES = {"warp_index", "block_index", "grid_size", "shared_base"}
_INTEGER = {
    "add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "not", "shl", "shr", "lt", "le", "gt", "ge",
    "eq", "ne", "mad", "mad_wide", "widen",
}  # fmt: skip

Path = tuple[Node, ...]


def scalars(program: Program) -> set[Storage]:
    """The single registers that have one value for all lanes: those that scalar registers can hold."""
    accesses = _accesses(program.body)
    merged = {storage for storage in accesses if keeps_lanes(accesses[storage])}
    found = {storage for storage in accesses if storage.size == 1 and storage not in merged}
    while True:
        kept = {storage for storage in found if all(_uniform(writer, found) for writer in storage.writers)}
        if kept == found:
            return found
        found = kept


def merging(program: Program) -> set[Storage]:
    """The storages where writing in some lanes must keep what the others hold."""
    return {storage for storage, accesses in _accesses(program.body).items() if keeps_lanes(accesses)}


def keeps_lanes(accesses: list[tuple[Path, bool]]) -> bool:
    """Whether some write is in a mask and is not seen by exactly the lanes that wrote.

    It is seen by those alone if it is the only write, comes first, and encloses every other access.
    """
    writes = [path for path, is_write in accesses if is_write]
    if not any(isinstance(node, Mask) for path in writes for node in path):
        return False
    first, is_write = accesses[0]
    return not (len(writes) == 1 and is_write and all(path[: len(first)] == first for path, _ in accesses))


def _uniform(writer: Instruction, found: set[Storage]) -> bool:
    name, _, type = writer.operation.name.partition(".")
    if writer.operation.text is not None:
        return False
    if name in _SOURCES or name == "parameter":
        return True
    if name not in (_MOVES if type == f32.name else _MOVES | _INTEGER):
        return False
    return all(read.storage in found for read in writer.reads if isinstance(read, Registers))


def _accesses(body: Iterable[Node]) -> dict[Storage, list[tuple[Path, bool]]]:
    """Every access to a storage in the order of the text: the nodes it stands in, whether it writes."""
    found: dict[Storage, list[tuple[Path, bool]]] = defaultdict(list)

    def note(values: Iterable[object], path: Path, writes: bool) -> None:
        for value in values:
            if isinstance(value, Registers):
                found[value.storage].append((path, writes))

    def walk(body: Iterable[Node], path: Path) -> None:
        for node in body:
            if isinstance(node, Instruction):
                note(node.reads, path, False)
                note(node.writes, path, True)
                continue
            if isinstance(node, Loop):
                note((node.start, node.stop, node.step), path, False)
                note((node.counter,), path, True)
            elif isinstance(node, (When, Mask)):
                note((node.condition,), path, False)
            walk(node.body, (*path, node))

    walk(body, ())
    return found
