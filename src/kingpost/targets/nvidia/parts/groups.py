"""Walks over grouped products: which rows, or which part of K, belong to which group stands in device memory.

One warp of a block, the scheduler, works out the block's items and publishes them in a small ring of messages, ahead of
the others, who only read. Work is dealt out statically: block b has tiles b, b + grid, ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields

from kingpost.arrays import View
from kingpost.formats import U32
from kingpost.program import Builder, Operand, Register, u32, u64
from kingpost.registry import Operands
from kingpost.targets.nvidia.isa.common import (
    ballot,
    elect,
    find_first_set,
    mbarrier_arrive,
    population_count,
    shuffle_index,
    shuffle_up,
)
from kingpost.targets.nvidia.parts.ring import Producer, Ring
from kingpost.targets.nvidia.parts.work import Item, TileOrder

LANES = 32
MOST_GROUPS = 512
MESSAGES = 4  # in flight


@dataclass(frozen=True)
class Message:
    """What the scheduler says of an item, a word each. more: an item of the same tile follows."""

    group: Operand
    row: Operand
    end: Operand
    column: Operand
    blocks: Operand
    depth: Operand = 0
    block: Operand = 0
    tail: Operand = 0

    @property
    def more(self) -> Operand:
        return self.tail  # groups of rows have no tails, groups of K one item a tile


WORDS = len(fields(Message))


@dataclass(frozen=True)
class GroupWalk:
    """What the walks over groups have in common. group: tile rows walked together, as `TileOrder` has it."""

    group: int
    partial = True
    tails = False
    name = ""  # of the array that says what belongs to which group
    shared_bytes = 4 * MESSAGES * WORDS + 16 * MESSAGES + 8 * (MOST_GROUPS + 1) + 256

    def arguments(self, operands: Operands) -> dict[str, View | int | float]:
        a, b, d, index = operands["a"], operands["b"], operands["d"], operands[self.name]
        groups = b.shape[0] if len(b.shape) == 3 else index.shape[0]
        return {"m": d.shape[-2], "n": d.shape[-1], "k": a.shape[-1], "groups": groups, self.name: index}


@dataclass(frozen=True)
class ByRows(GroupWalk):
    """rows[i] is the group of row i, or none. Every run of rows of one group within a tile is an item of its own."""

    name = "rows"

    def over(self, k: Builder, rows: int, columns: int, readers: int, block_k: int) -> GroupedWork:
        return RunsOfRows(k, self, rows, columns, readers, block_k)

    def tiles(self, operands: Operands, rows: int, columns: int) -> int:
        m, n = operands["d"].shape
        return -(-m // rows) * -(-n // columns)


@dataclass(frozen=True)
class ByEnds(GroupWalk):
    """Group g has rows ends[g - 1] to ends[g]. Tiles begin where groups do."""

    name = "ends"

    def over(self, k: Builder, rows: int, columns: int, readers: int, block_k: int) -> GroupedWork:
        return GroupsOfRows(k, self, rows, columns, readers, block_k)

    def tiles(self, operands: Operands, rows: int, columns: int) -> int:
        m, n = operands["d"].shape
        return (-(-m // rows) + operands["ends"].shape[0]) * -(-n // columns)


@dataclass(frozen=True)
class ByCounts(GroupWalk):
    """Group g has the first counts[g] rows of plane g."""

    name = "counts"

    def over(self, k: Builder, rows: int, columns: int, readers: int, block_k: int) -> GroupedWork:
        return PlanesOfRows(k, self, rows, columns, readers, block_k)

    def tiles(self, operands: Operands, rows: int, columns: int) -> int:
        groups, m, n = operands["d"].shape
        return groups * -(-m // rows) * -(-n // columns)


@dataclass(frozen=True)
class OverK(GroupWalk):
    """Group g has elements ends[g - 1] to ends[g] of K, and a plane of d to itself."""

    name = "ends"
    partial = False
    tails = True

    def over(self, k: Builder, rows: int, columns: int, readers: int, block_k: int) -> GroupedWork:
        return GroupsOfK(k, self, rows, columns, readers, block_k)

    def tiles(self, operands: Operands, rows: int, columns: int) -> int:
        groups, m, n = operands["d"].shape
        return groups * -(-m // rows) * -(-n // columns)


class GroupedWork:
    """A walk in one program. Parameters: m, n and k (elements), the number of groups, and the int32 array's address."""

    scheduled = True

    def __init__(self, k: Builder, walk: GroupWalk, rows: int, columns: int, readers: int, block_k: int) -> None:
        self.k, self.walk, self.tile_rows, self.tile_columns, self.block_k = k, walk, rows, columns, block_k
        self.m, self.n, self.depth = k.parameter("m"), k.parameter("n"), k.parameter("k")
        self.groups, self.index = k.parameter("groups"), k.parameter(walk.name, u64)
        self.columns = k.ceil_div(self.n, columns)
        self.messages = k.shared("messages", (MESSAGES, WORDS), U32)
        self.ring = Ring(k, MESSAGES, writers=1, readers=readers, of="_messages")

    def initialise(self) -> None:
        self.ring.initialise()

    def prepare(self) -> None:
        """What all warps do before the block's barrier."""

    def count(self) -> Register:
        """The number of tiles, known after the block's barrier."""
        raise NotImplementedError

    def publish(self, tile: Register, producer: Producer) -> None:
        """Publish the messages of a tile; a whole warp."""
        raise NotImplementedError

    def read(self, message: Message) -> Item:
        """A message as an item: of rows in one plane."""
        return Item(0, message.group, 0, message.row, message.end, message.column, message.blocks)  # type: ignore[arg-type]

    def schedule(self) -> None:
        k, producer = self.k, self.ring.producer()
        with k.loop(self.count(), start=k.block, step=k.grid) as tile:
            self.publish(tile, producer)

    def send(self, message: Message, producer: Producer) -> None:
        """Publish a message, which is the same in all lanes."""
        k = self.k
        words = k.array(u32, WORDS, "message")
        for word, value in zip(words, vars(message).values()):
            k.set(word, value)
        with producer.fill() as (slot, full), k.mask(elect(k)):  # one lane, once all have waited
            at = self.messages.at(slot)
            k.store_vector(at, words[:4])
            k.store_vector(at, words[4:], offset=16)
            mbarrier_arrive(k, full)

    @contextmanager
    def items(self, one_thread: bool = False) -> Iterator[Item]:
        k, messages = self.k, self.ring.consumer()
        stop = k.new(u32, self.count(), "stop")
        with k.loop(stop, start=k.block, step=k.grid):
            messages.wait()
            at = self.messages.at(messages.slot)
            words = [word for offset in (0, 16) for word in k.load_vector(u32, at, 4, offset=offset)]
            message, read = Message(*words), messages.turn()
            with nullcontext() if one_thread else k.mask(elect(k)):  # one lane, once all have read
                mbarrier_arrive(k, read)
            self.extend(stop, message)
            yield self.read(message)

    def extend(self, stop: Register, message: Message) -> None:
        """Let the loop over items run once more if another item of the tile follows."""


class TabledWork(GroupedWork):
    """A walk over groups one after another, by tables in shared memory: where each begins, a sum over those before."""

    def __init__(self, k: Builder, walk: GroupWalk, rows: int, columns: int, readers: int, block_k: int) -> None:
        super().__init__(k, walk, rows, columns, readers, block_k)
        self.ends = k.shared("group_ends", (MOST_GROUPS + 1,), U32)  # 0, then the array
        self.sums = k.shared("group_sums", (MOST_GROUPS + 1,), U32)  # 0, then over groups 0 to g

    def summed(self, size: Register) -> Register:
        """What is summed over groups, of a group of this size."""
        raise NotImplementedError

    def size(self, begin: Register, end: Register) -> Register:
        """The size of a group between these entries of the table."""
        return self.k.maximum(end, begin) - begin

    def limit(self) -> Register:
        """The largest entry that makes sense; anything larger is taken for it."""
        return self.m

    def prepare(self) -> None:
        k = self.k
        table = self.ends.at(0)
        with k.mask(k.thread == 0):
            for array in (self.ends, self.sums):
                k.store(array.at(0), k.new(u32, 0))
        for first in range(0, MOST_GROUPS, LANES * 4):  # by the first four warps
            group = k.thread + first
            with k.mask((k.thread < LANES * 4) & (group < self.groups)):
                k.store(table + group * 4, k.load(u32, k.address(self.index, group, 4)), offset=4)
        k.barrier()
        with k.when(k.warp == 0):
            self._sum()

    def _sum(self) -> None:
        """Prefix sums, 32 groups at a time."""
        k, ends, sums = self.k, self.ends.at(0), self.sums.at(0)
        total = k.new(u32, 0, "total")
        with k.loop(self.groups, step=LANES) as first:
            group = first + k.lane
            value = k.new(u32, 0, "sum")
            with k.mask(group < self.groups):
                begin, end = (k.minimum(k.load(u32, ends + group * 4, offset=o), self.limit()) for o in (0, 4))
                k.set(value, self.summed(self.size(begin, end)))
            for distance in (1, 2, 4, 8, 16):
                below = shuffle_up(k, value, distance=distance)
                value += k.select(k.lane >= distance, below, 0)
            value += total
            with k.mask(group < self.groups):
                k.store(sums + group * 4, value, offset=4)
            k.set(total, shuffle_index(k, value, LANES - 1))

    def entry(self, group: Register) -> tuple[Register, Register, Register]:
        """Where a group begins and ends by the table, and the sum over those before it."""
        k = self.k
        ends, sums = self.ends.at(0) + group * 4, self.sums.at(0) + group * 4
        begin, end = (k.minimum(k.load(u32, ends, offset=offset), self.limit()) for offset in (0, 4))
        return begin, end, k.load(u32, sums)

    def find(self, tile: Register) -> Register:
        """The group that a tile is in: as many as have their last tile at or before it."""
        k, sums = self.k, self.sums.at(0)
        found = k.new(u32, 0, "group")
        with k.loop(self.groups, step=LANES) as first:
            group = first + k.lane
            last = k.load(u32, sums + k.minimum(group, self.groups - 1) * 4, offset=4)
            found += population_count(k, ballot(k, (last <= tile) & (group < self.groups)))
        return found


class GroupsOfRows(TabledWork):
    """Groups of rows behind one another in one plane."""

    def summed(self, size: Register) -> Register:
        return self.k.ceil_div(size, self.tile_rows) * self.columns

    def count(self) -> Register:
        return self.k.load(u32, self.sums.at(0) + self.groups * 4)

    def publish(self, tile: Register, producer: Producer) -> None:
        k, group = self.k, self.find(tile)
        begin, end, before = self.entry(group)
        rows = k.ceil_div(self.size(begin, end), self.tile_rows)
        row, column = TileOrder(k, rows, self.columns, self.walk.group).place(tile - before)
        first, blocks = self.begin(begin) + row * self.tile_rows, k.ceil_div(self.depth, self.block_k)
        self.send(Message(group, first, end, column * self.tile_columns, blocks), producer)

    def begin(self, begin: Register) -> Register:
        """The first row of a group that begins there by the table."""
        return begin


class PlanesOfRows(GroupsOfRows):
    """Groups of rows in planes of their own: the table has their sizes."""

    def size(self, begin: Register, end: Register) -> Register:
        return end

    def begin(self, begin: Register) -> Register:
        return self.k.new(u32, 0)

    def read(self, message: Message) -> Item:
        group = message.group
        return Item(group, group, group, message.row, message.end, message.column, message.blocks)  # type: ignore[arg-type]


class GroupsOfK(TabledWork):
    """Groups of K behind one another: the same tiles for each, and a sum over blocks of scales."""

    def limit(self) -> Register:
        return self.depth

    def summed(self, size: Register) -> Register:
        return self.k.ceil_div(size, self.block_k)

    def count(self) -> Register:
        return self._tiles().count * self.groups

    def publish(self, tile: Register, producer: Producer) -> None:
        k, tiles = self.k, self._tiles()
        group = tile // tiles.count
        row, column = tiles.place(tile % tiles.count)
        begin, end, block = self.entry(group)
        size = self.size(begin, end)
        blocks = k.ceil_div(size, self.block_k)
        tail = size + self.block_k - blocks * self.block_k
        place = row * self.tile_rows, self.m, column * self.tile_columns
        self.send(Message(group, *place, blocks, begin, block, tail), producer)

    def read(self, message: Message) -> Item:
        return Item(0, 0, *vars(message).values())

    def _tiles(self) -> TileOrder:
        return TileOrder(self.k, self.k.ceil_div(self.m, self.tile_rows), self.columns, self.walk.group)


class RunsOfRows(GroupedWork):
    """Tiles of rows, cut into runs of one group."""

    def count(self) -> Register:
        return self._tiles().count

    def publish(self, tile: Register, producer: Producer) -> None:
        k = self.k
        row, column = self._tiles().place(tile)
        first = row * self.tile_rows
        height = k.minimum(self.m - first, self.tile_rows)
        groups = [
            k.load(u32, k.address(self.index, k.minimum(first + (k.lane + start), self.m - 1), 4))
            for start in range(0, self.tile_rows, LANES)
        ]
        begin, runs = k.new(u32, 0, "begin"), k.new(u32, 1, "runs")
        with k.loop(runs):
            group = self._held(groups, begin)
            end = k.minimum(self._run_end(groups, group, begin), height)
            more = k.select(end < height, 1, 0, into=k.new(u32))
            blocks = k.select(group < self.groups, k.ceil_div(self.depth, self.block_k), 0)
            last = first + k.select(group < self.groups, end, begin)
            place = first + begin, last, column * self.tile_columns
            self.send(Message(group, *place, blocks, tail=more), producer)
            runs += more
            k.set(begin, end)

    def extend(self, stop: Register, message: Message) -> None:
        stop += self.k.grid * message.more

    def _held(self, groups: list[Register], place: Register) -> Register:
        """The group of the row at `place` in the tile."""
        k = self.k
        found = shuffle_index(k, groups[0], place)
        for i, held in enumerate(groups[1:], 1):
            k.select(place >= i * LANES, shuffle_index(k, held, place), found, into=found)
        return found

    def _run_end(self, groups: list[Register], group: Register, begin: Register) -> Register:
        """The first place behind `begin` that is of another group; past the tile if none is."""
        k = self.k
        end = k.new(u32, self.tile_rows, "end")
        for i, held in reversed(list(enumerate(groups))):
            other = ballot(k, (held != group) & (k.lane + i * LANES > begin))
            k.select(other != 0, find_first_set(k, other) + i * LANES, end, into=end)
        return end

    def _tiles(self) -> TileOrder:
        return TileOrder(self.k, self.k.ceil_div(self.m, self.tile_rows), self.columns, self.walk.group)
