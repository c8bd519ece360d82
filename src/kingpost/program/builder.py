"""Writing a program: the `k` that a kernel function is given, and the `Program` that results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

from kingpost.formats import U64, Format
from kingpost.program import operations as op
from kingpost.program.control import Loop, Mask, Node, Role, When, instructions, storages_read
from kingpost.program.instruction import Instruction, calling_line
from kingpost.program.launch import Parameter
from kingpost.program.memory import SharedArray
from kingpost.program.rebinding import bindings, refuse_rebinding, user_frame
from kingpost.program.registers import Operand, Register, Registers, Storage
from kingpost.program.target import Fragment, Target
from kingpost.program.tensor_map import TensorMapType
from kingpost.program.types import Type, f32, u32, u64


@dataclass(frozen=True, eq=False)
class Program:
    """A kernel as data. Every block runs `body` with `warps` warps and `shared_bytes` of shared memory.

    cluster: how many neighbouring blocks run together and may reach each other's shared memory.
    """

    name: str
    target: str
    lanes: int
    warps: int
    parameters: tuple[Parameter, ...]
    shared: tuple[SharedArray, ...]
    shared_bytes: int
    body: tuple[Node, ...]
    config: dict[str, Any] = field(default_factory=dict)
    cluster: int = 1

    def instructions(self) -> Iterator[Instruction]:
        return instructions(list(self.body))

    def roles(self) -> list[Role]:
        return [node for node in self.body if isinstance(node, Role)]

    def __str__(self) -> str:
        config = ", ".join(f"{name}={value}" for name, value in self.config.items())
        lines = [
            f"program {self.name}({config}) for {self.target}: {self.warps} {_plural(self.warps, 'warp')}, "
            f"{self.shared_bytes} shared bytes"
        ]
        lines += [f"  parameter {p.name}: {getattr(p.type, 'name', p.type)}" for p in self.parameters]
        lines += [f"  shared {array!r}" for array in self.shared]
        return "\n".join(lines + list(_listing(list(self.body), 1)))


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else noun + "s"


def _listing(body: list[Node], depth: int) -> Iterator[str]:
    for node in body:
        yield f"{'  ' * depth + str(node):<90} # {node.source}"
        if not isinstance(node, Instruction):
            yield from _listing(node.body, depth + 1)


class Builder:
    """Writes one program. Kernel functions call it `k`."""

    def __init__(self, name: str, target: Target | str) -> None:
        self.name, self.target = name, Target(target) if isinstance(target, str) else target
        self._storages = 0
        self._cluster = 1
        self._prologue: list[Node] = []
        self._body: list[Node] = []
        self._outermost = self._body
        self._parameters: list[Parameter] = []
        self._shared: list[SharedArray] = []
        self._shared_bytes = 0
        self._warps = 0

    # Registers

    def next_storage(self) -> int:
        self._storages += 1
        return self._storages

    def array(self, type: Type, size: int, name: str | None = None, place: str | None = None) -> Registers:
        """`size` new registers, without a value yet. place: the chip's registers, "v[4:7]", where we allocate."""
        return Registers(Storage(self, type, size, name, place), tuple(range(size)))

    def new(self, type: Type, value: Operand | None = None, name: str | None = None) -> Register:
        """A new register, set to `value` if one is given."""
        register = self.array(type, 1, name)[0]
        if value is not None:
            self.set(register, value)
        return register  # type: ignore[return-value]

    def set(self, target: Registers, value: Operand) -> None:
        op.portable("move", target.type)(self, value, into=target)

    def emit_portable(self, name: str, *operands: Operand, into: Registers | None = None) -> Any:
        """The portable operation `name`, on the type of the first register among the operands."""
        type = next((o.type for o in operands if isinstance(o, Registers)), None)
        if type is None:
            raise TypeError(f"{name} of {operands}: at least one register is wanted among the operands")
        return op.portable(name, type)(self, *operands, into=into)

    def select(self, condition: Register, a: Operand, b: Operand, into: Registers | None = None) -> Any:
        """`a` in the lanes where `condition` holds, `b` elsewhere; at least one of them a register, or `into` given."""
        type = next((o.type for o in (a, b, into) if isinstance(o, Registers)), u32)
        return op.portable("select", type)(self, a, b, condition, into=into)

    def minimum(self, a: Registers, b: Operand) -> Any:
        return self.emit_portable("min", a, b)

    def maximum(self, a: Registers, b: Operand) -> Any:
        return self.emit_portable("max", a, b)

    def fused_multiply_add(self, a: Operand, b: Operand, c: Operand, into: Registers | None = None) -> Any:
        """a * b + c: rounded once for f32, modulo 2^32 for u32."""
        type = next((o.type for o in (a, b, c) if isinstance(o, Registers)), None)
        return self.emit_portable("mad" if type is u32 else "fma", a, b, c, into=into)

    def ceil_div(self, a: Register, b: int) -> Register:
        return (a + (b - 1)) // b

    def address(self, base: Register, index: Operand, size: Operand = 1) -> Register:
        """base (u64) + index (u32) * size, in bytes."""
        return op.portable("mad_wide", u32)(self, index, size, base)

    def load(self, type: Type, address: Register, offset: int = 0, into: Registers | None = None) -> Any:
        """A load from global memory (u64 address) or shared memory (u32 address)."""
        return op.portable(f"load_{_space(address)}", type)(self, address, offset=offset, into=into)

    def store(self, address: Register, value: Register, offset: int = 0) -> None:
        """A store to global memory (u64 address) or shared memory (u32 address)."""
        op.portable(f"store_{_space(address)}", value.type)(self, address, value, offset=offset)

    def load_vector(self, type: Type, address: Register, count: int, offset: int = 0) -> Registers:
        """`count` (2 or 4) neighbouring u32 or f32 at once, at an address that is a multiple of their size."""
        into = self.array(type, count)
        op.portable(f"load_{_space(address)}_x{count}", type)(self, address, offset=offset, into=into)
        return into

    def store_vector(self, address: Register, values: Registers, offset: int = 0) -> None:
        """2 or 4 u32 or f32 to neighbouring places, at an address that is a multiple of their size."""
        name = f"store_{_space(address)}_x{len(values)}"
        op.portable(name, values.type)(self, address, values, offset=offset)

    def load_narrow(self, bits: int, address: Register, offset: int = 0) -> Register:
        """8 or 16 bits, zero-extended to u32."""
        return op.portable(f"load_{_space(address)}_b{bits}", u32)(self, address, offset=offset)

    def store_narrow(self, bits: int, address: Register, value: Register, offset: int = 0) -> None:
        """The low 8 or 16 bits of a u32."""
        op.portable(f"store_{_space(address)}_b{bits}", u32)(self, address, value, offset=offset)

    def barrier(self) -> None:
        """Wait for all warps of the block."""
        op.barrier(self)

    def convert(self, type: Type, value: Registers) -> Any:
        """u32 or s32 to f32, rounded; f32 to u32 or s32, truncated and saturated (NaN to 0); u32 to u64."""
        if (type, value.type) == (u64, u32):
            return self.emit_portable("widen", value)
        return self.emit_portable(f"to_{type.name}", value)

    def bits(self, value: Registers) -> Any:
        """The bits of an f32, as u32."""
        return self.emit_portable("bits", value)

    def from_bits(self, value: Registers) -> Any:
        """The f32 of these bits (u32)."""
        return self.emit_portable("from_bits", value)

    def pack_bf16(self, low: Registers, high: Registers) -> Any:
        """Two f32 rounded to bfloat16, `low` in bits 15:0 of a u32."""
        return self.emit_portable("pack_bf16", low, high)

    def pack_f16(self, low: Registers, high: Registers) -> Any:
        """Two f32 rounded to float16, infinity beyond its range, `low` in bits 15:0 of a u32."""
        return self.emit_portable("pack_f16", low, high)

    def unpack_f16(self, half: Registers) -> Any:
        """The f32 of the float16 in bits 15:0 of a u32."""
        return self.emit_portable("unpack_f16", half)

    def pack_float8(self, a: Registers, b: Registers, c: Registers, d: Registers) -> Any:
        """Four f32 rounded to the target's e4m3, saturated, `a` in bits 7:0 of a u32."""
        return op.portable("pack_float8", f32)(self, a, b, c, d, format=self.target.float8)

    def unpack_float8(self, codes: Registers, index: int) -> Any:
        """The f32 of byte `index` (0 to 3) of a u32 of codes of the target's e4m3."""
        return op.portable("unpack_float8", u32)(self, codes, index=index, format=self.target.float8)

    def shuffle_xor(self, value: Register, mask: int) -> Register:
        """The value that the lane has whose index differs by exclusive or with `mask`."""
        return op.portable("shuffle_xor", value.type)(self, value, mask=mask)

    def reduce(self, name: str, value: Register, lanes: int | None = None) -> Register:
        """The "add", "min" or "max" of `value` over each group of `lanes` neighbouring lanes (a power of two; default
        the whole warp), in every lane; sums are added pairwise, nearest lanes last."""
        lanes = self.lanes if lanes is None else lanes
        if not 1 <= lanes <= self.lanes or lanes & (lanes - 1):
            raise ValueError(f"lanes is {lanes}; a power of two up to {self.lanes} is wanted")
        mask = lanes // 2
        while mask:
            value = self.emit_portable(name, value, self.shuffle_xor(value, mask))
            mask //= 2
        return value

    # A product of tiles by the whole block, as the target computes it

    def tile(self, name: str, rows: int) -> SharedArray:
        """Declare an operand of `tile_product`: [rows, 128] e4m3, K contiguous, laid out as the target wants it."""
        return self.shared(name, (rows, 128), self.target.float8, self.target.tile_swizzle)

    def tile_product(self, a: SharedArray, b: SharedArray) -> Fragment:
        """a [rows, 128] b [columns, 128]^T from zero, in float32, after every thread of the block has written its part.

        All warps of the block take part, `target.tile_warps` of them; a and b come from `tile`.
        """
        if self.target.tile_product is None:
            raise ValueError(f"target {self.target.name} has no tile product")
        return self.target.tile_product(self, a, b)

    # What a thread knows of itself: emitted once, ahead of the body

    @property
    def lanes(self) -> int:
        """Lanes of a warp (or wave) on this target."""
        return self.target.lanes

    @contextmanager
    def _ahead(self) -> Iterator[None]:
        body, self._body = self._body, self._prologue
        yield
        self._body = body

    @functools.cached_property
    def shared_base(self) -> Register:
        with self._ahead():
            return op.shared_base(self)

    @functools.cached_property
    def lane(self) -> Register:
        with self._ahead():
            return op.lane_index(self)

    @functools.cached_property
    def warp(self) -> Register:
        with self._ahead():
            return op.warp_index(self)

    @functools.cached_property
    def block(self) -> Register:
        with self._ahead():
            return op.block_index(self)

    @functools.cached_property
    def grid(self) -> Register:
        with self._ahead():
            return op.grid_size(self)

    @functools.cached_property
    def thread(self) -> Register:
        """The thread's index in its block."""
        with self._ahead():
            return self.fused_multiply_add(self.warp, self.lanes, self.lane)

    # Declarations

    def warps(self, count: int) -> None:
        """Run blocks of `count` warps, all doing the same; a program of roles has as many as its roles."""
        if self._warps:
            raise ValueError(f"warps is {count}; this program has {self._warps} already")
        self._warps = count

    def cluster(self, blocks: int) -> None:
        """Run `blocks` neighbouring blocks together, so that they may reach each other's shared memory."""
        if not isinstance(blocks, int) or not 1 <= blocks <= 8:
            raise ValueError(f"cluster is {blocks!r}; 1 to 8 blocks are wanted")
        self._cluster = blocks

    def parameter(self, name: str, type: Type = u32) -> Register:
        """A scalar parameter, read into a register."""
        self._refuse_taken(name, self._parameters)
        with self._ahead():
            register: Register = op.portable("parameter", type)(self, parameter=name)
        self._parameters.append(Parameter(name, type, register))
        return register

    def tensor_map(self, name: str, format: Format, box: tuple[int, ...], swizzle: int = 0) -> Parameter:
        """A tensor map parameter; what it maps is given at launch."""
        self._refuse_taken(name, self._parameters)
        with self._ahead():
            address: Register = op.portable("parameter", u64)(self, parameter=name)
        parameter = Parameter(name, TensorMapType(format, box, swizzle), address)
        self._parameters.append(parameter)
        return parameter

    def shared(self, name: str, shape: tuple[int, ...], format: Format, swizzle: int = 0) -> SharedArray:
        """Declare an array in shared memory; swizzled ones start at a whole pattern (1,024 bytes at 128)."""
        self._refuse_taken(name, self._shared)
        alignment = max(128, 8 * swizzle) if prod(shape) * format.bits // 8 >= 128 else 16
        self._shared_bytes += -self._shared_bytes % alignment
        array = SharedArray(self, name, shape, format, swizzle, self._shared_bytes)
        if swizzle and shape[-1] * format.bits // 8 != swizzle:
            raise ValueError(
                f"shared array {name}: rows of {shape[-1]} {format.name} under a swizzle of {swizzle} bytes; "
                "rows as long as the swizzle are wanted"
            )
        self._shared_bytes += array.bytes
        self._shared.append(array)
        return array

    @staticmethod
    def _refuse_taken(name: str, declared: Sequence[Parameter | SharedArray]) -> None:
        if any(each.name == name for each in declared):
            raise ValueError(f"name {name!r} is declared already; another is wanted")

    def shared_barriers(self, name: str, count: int) -> SharedArray:
        """Declare `count` 8-byte barrier objects in shared memory."""
        return self.shared(name, (count,), U64)

    # Structure

    def append(self, node: Node) -> None:
        self._body.append(node)
        if isinstance(node, Instruction):
            for target in node.writes:
                target.storage.writers.append(node)

    @contextmanager
    def _inside(self, node: Any) -> Iterator[None]:
        outer, self._body = self._body, node.body
        try:
            yield
        finally:
            self._body = outer
        self._body.append(node)

    @contextmanager
    def loop(self, stop: Operand, start: Operand = 0, step: Operand = 1) -> Iterator[Register]:
        """A run-time loop over a new u32 counter. The body is written once: only registers are carried."""
        frame, source = user_frame(), calling_line()
        before = bindings(frame)
        counter = self.new(u32)
        counter.storage.counter = True
        node = Loop(counter, start, stop, step, source)
        with self._inside(node):
            yield counter
        refuse_rebinding(before, bindings(frame), storages_read(node.body), source)

    @contextmanager
    def when(self, condition: Register) -> Iterator[None]:
        """Run the body if `condition`, the same in all lanes of the warp."""
        with self._inside(When(condition, calling_line())):
            yield

    @contextmanager
    def mask(self, condition: Register) -> Iterator[None]:
        """Run the body in the lanes where `condition` holds."""
        with self._inside(Mask(condition, calling_line())):
            yield

    @contextmanager
    def role(self, name: str, warps: int, registers: int | None = None) -> Iterator[Register]:
        """What the block's next `warps` warps do; yields the warp's index within the role.

        Roles stand one after another on the outermost level; what follows the last is for all warps.
        """
        body, last = self._outermost, self._outermost[-1] if self._outermost else None
        if self._body is not body or (any(isinstance(n, Role) for n in body) and not isinstance(last, Role)):
            raise ValueError(
                f"role {name!r} stands inside a loop or condition, or apart from the roles before it; roles one "
                "after another on the outermost level are wanted"
            )
        first = self._warps
        self._warps += warps
        role = Role(name, first, warps, registers, calling_line())
        with self._inside(role):
            yield self.warp - first if first else self.warp

    def finish(self, config: dict[str, Any]) -> Program:
        return Program(
            self.name,
            self.target.name,
            self.lanes,
            max(self._warps, 1),
            tuple(self._parameters),
            tuple(self._shared),
            self._shared_bytes,
            tuple(self._prologue + self._body),
            config,
            self._cluster,
        )


def _space(address: Register) -> str:
    return "global" if address.type is u64 else "shared"


def kernel(target: Target | str | None = None) -> Callable[[Callable[..., None]], Callable[..., Program]]:
    """Make `f(k, **config)` a function of its configuration that returns the Program, written once for each.

    Without a target the kernel is portable: the function takes one, `f(target=a_target, **config)`.
    """
    fixed = target

    def decorate(write: Callable[..., None]) -> Callable[..., Program]:
        @functools.cache
        def written(*, target: Target | str | None = fixed, **config: Any) -> Program:
            if target is None or (fixed is not None and target is not fixed):
                raise ValueError(f"{write.__name__}: target is {target!r}; {fixed or 'a Target'} is wanted")
            k = Builder(write.__name__, target)
            write(k, **config)
            return k.finish(config)

        return functools.wraps(write)(written)

    return decorate
