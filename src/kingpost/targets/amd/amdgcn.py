"""A Program as AMDGCN assembler text: the AMD half of the first reader.

Portable operations are lowered for waves of 64 lanes; hand-written ones give their own text, in which a tuple of
registers is written "v[4:7]". On entry s[0:1] points to the arguments, s2 is the block's index and v0 the thread's.
Arguments lie in the program's order, each at a multiple of its size; behind them the runtime puts the grid's size
(u32), the hidden argument "block count x" of code objects of version 5 and later. Register budgets of roles are not
used: a CDNA wave keeps the registers it starts with.
"""

from __future__ import annotations

from collections.abc import Iterable

from kingpost.program import Instruction, Loop, Mask, Node, Operand, Program, Registers, Role, When
from kingpost.program.registers import Storage
from kingpost.program.tensor_map import TensorMapType
from kingpost.targets.amd import lowering_integers as integers
from kingpost.targets.amd import lowering_memory as memory
from kingpost.targets.amd import lowering_numbers as numbers
from kingpost.targets.amd.lowering import Lowering, split
from kingpost.targets.amd.machine import Line, Reg, Value, Virtual
from kingpost.targets.amd.names import Names, word_count
from kingpost.targets.amd.object_text import object_text
from kingpost.targets.amd.registers import allocate
from kingpost.targets.amd.uniform import merging
from kingpost.targets.amd.waits import insert_waits

LANES = 64
MOST_WAVES = 16  # of a block: 1,024 threads
LDS_BYTES = {"gfx942": 64 << 10, "gfx950": 160 << 10}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def amdgcn(program: Program) -> str:
    """The assembler text of a program, complete, with the Python line of every instruction as a comment."""
    _check(program)
    writer = _Writer(program)
    writer.write()
    usage = allocate(writer.code.lines)
    return object_text(program, argument_places(program), insert_waits(writer.code.lines), usage)


def _check(program: Program) -> None:
    if program.lanes != LANES or program.target not in LDS_BYTES:
        raise ValueError(
            f"program {program.name} is for {program.target} with {program.lanes} lanes; {LANES} lanes on one of "
            f"{', '.join(LDS_BYTES)} are wanted"
        )
    if program.cluster > 1:
        raise ValueError(f"program {program.name} has clusters of {program.cluster} blocks; {program.target} has none")
    if program.warps > MOST_WAVES or program.shared_bytes > LDS_BYTES[program.target]:
        raise ValueError(
            f"program {program.name} has {program.warps} waves and {program.shared_bytes} bytes of LDS; at most "
            f"{MOST_WAVES} and {LDS_BYTES[program.target]} are wanted on {program.target}"
        )


def argument_places(program: Program) -> dict[str, int]:
    """The offset in bytes of each argument, by name, and of the grid's size, as ""."""
    places, end = {}, 0
    for parameter in program.parameters:
        if isinstance(parameter.type, TensorMapType):
            raise ValueError(f"parameter {parameter.name} is a tensor map; {program.target} has none")
        end += -end % parameter.bytes
        places[parameter.name], end = end, end + parameter.bytes
    places[""] = end + -end % 4
    return places


class _Writer:
    def __init__(self, program: Program) -> None:
        self.program, self.code, self.names = program, Lowering(), Names(program)
        self.places = argument_places(program)
        self.merging = merging(program)
        self.vector = integers.VECTOR | numbers.VECTOR | numbers.VECTOR_OF_TARGET[program.target]
        self.early_nan, self.late_nan = _nan_places(program)

    def write(self) -> None:
        code = self.code
        self.arguments, self.block, self.thread = self._entry()
        self.body(self.program.body)
        code.add("s_endpgm", None)

    def _entry(self) -> tuple[Reg, Reg, Reg]:
        """What the hardware puts into registers; elsewhere where a kernel has placed registers of its own."""
        taken = {
            (v.bank, v.first + i) for v in self.names.virtuals.values() if v.first is not None for i in range(v.size)
        }
        found = []
        for bank, first, size, name in (("s", 0, 2, "arguments"), ("s", 2, 1, "block"), ("v", 0, 1, "thread")):
            entry = Reg(Virtual(bank, size, name, None, first), 0, size)
            if taken.isdisjoint((bank, first + i) for i in range(size)):
                found.append(entry)
                continue
            copy = self.code.fresh(bank, size, name)
            self.code.add(_MOVES[bank, size], copy, entry)
            found.append(copy)
        return found[0], found[1], found[2]

    # Structure

    def body(self, body: Iterable[Node]) -> None:
        nodes = list(body)
        roles, after_roles = [node for node in nodes if isinstance(node, Role)], ""
        for node in nodes:
            self.code.source = node.source
            match node:
                case Instruction():
                    self.instruction(node)
                case Loop():
                    self.loop(node)
                case When():
                    self.when(node)
                case Mask():
                    self.mask(node)
                case Role():
                    after_roles = after_roles or self.code.label()
                    self.role(node, after_roles)
                    if node is roles[-1]:
                        self.code.place(after_roles)

    def inside(self, body: Iterable[Node], loop: bool = False) -> None:
        self.code.enter(loop)
        self.body(body)
        self.code.leave()

    def loop(self, node: Loop) -> None:
        code, counter = self.code, self.names.value(node.counter)
        start, end = code.label(), code.label()
        self._set_counter("s_mov_b32", counter, self.names.value(node.start))
        self._compare("s_cmp_ge_u32", node.counter, node.stop)
        code.add("s_cbranch_scc1", None, target=end)
        code.enter(loop=True)
        code.place(start)
        self.body(node.body)
        code.source = node.source
        self._set_counter("s_add_u32", counter, counter, self.names.value(node.step))
        self._compare("s_cmp_lt_u32", node.counter, node.stop)
        code.add("s_cbranch_scc1", None, target=start)
        code.leave()
        code.place(end)

    def _set_counter(self, operation: str, counter: Value, *operands: Value) -> None:
        """A counter that a kernel writes itself may lie in a vector register."""
        assert isinstance(counter, Reg)
        target = counter if counter.bank == "s" else self.code.fresh("s")
        self.code.scalar(operation, target, *map(self.code.uniform, operands))
        if target is not counter:
            self.code.move(counter, target)

    def _compare(self, operation: str, a: Operand, b: Operand) -> None:
        self.code.scalar(operation, None, *(self.code.uniform(self.names.value(x)) for x in (a, b)))

    def when(self, node: When) -> None:
        end = self.code.label()
        self.code.scalar("s_and_b64", "vcc", self.names.value(node.condition), "exec")
        self.code.add("s_cbranch_scc0", None, target=end)
        self.inside(node.body)
        self.code.place(end)

    def mask(self, node: Mask) -> None:
        end, outer = self.code.label(), self.code.fresh("s", 2)
        self.code.scalar("s_and_saveexec_b64", outer, self.names.value(node.condition))
        self.code.add("s_cbranch_execz", None, target=end)
        self.inside(node.body)
        self.code.place(end)
        self.code.scalar("s_mov_b64", "exec", outer)

    def role(self, node: Role, after_roles: str) -> None:
        """One arm of a chain of conditions on the wave's index."""
        warp = next(i.writes[0] for i in self.program.instructions() if i.operation.name == "warp_index")
        other = self.code.label()
        self._compare("s_cmp_ge_u32", warp, node.first + node.warps)
        self.code.add("s_cbranch_scc1", None, target=other)
        self.inside(node.body)
        self.code.add("s_branch", None, target=after_roles)
        self.code.place(other)

    # Instructions

    def instruction(self, instruction: Instruction) -> None:
        operation = instruction.operation
        if operation.text is not None:
            self.by_hand(instruction)
        elif found := memory.access(operation.name):
            self.memory(instruction, *found)
        elif operation.name in _PLACES or operation.name.startswith("parameter."):
            self.place(instruction)
        elif operation.name == "barrier":
            self.code.add("s_barrier", None)
        else:
            for element in range(instruction.elements):
                self.element(instruction, element)

    def by_hand(self, instruction: Instruction) -> None:
        """A hand-written instruction: its text is made once registers have numbers."""
        names, operation = self.names, instruction.operation
        operands = [*zip((*operation.writes, *operation.operands), (*instruction.writes, *instruction.reads))]

        def rendered() -> list[str]:
            text = operation.text
            if callable(text):
                return text(instruction, names).splitlines()
            lines = []
            for element in range(instruction.elements):
                at = element if instruction.elements > 1 else None
                values = {name: names(operand, at) for name, operand in operands}
                assert text is not None
                lines += text.format(**values, **instruction.fields).splitlines()
            return lines

        def touched(values: tuple[Operand, ...]) -> tuple[Value, ...]:
            registers = [value for value in values if isinstance(value, Registers)]
            return tuple(names.value(value, element) for value in registers for element in range(len(value)))

        line = Line(operation.name, touched(instruction.writes), touched(instruction.reads), instruction.source)
        line.regions, line.rendered = self.code.regions, rendered
        self.code.lines.append(line)

    def place(self, instruction: Instruction) -> None:
        """Arguments, and what a thread knows of itself."""
        code, name, (target,) = self.code, instruction.operation.name, instruction.writes
        d = self.names.value(target)
        assert isinstance(d, Reg)
        if name == "lane_index":
            code.vector("v_and_b32", d, LANES - 1, self.thread)
            return
        value = d if d.bank == "s" else code.fresh("s", d.count)
        if name == "warp_index":
            wave = code.temporary()
            code.vector("v_lshrrev_b32", wave, 6, self.thread)
            code.add("v_readfirstlane_b32", value, wave)
        elif name == "block_index":
            code.scalar("s_mov_b32", value, self.block)
        elif name == "shared_base":
            code.scalar("s_mov_b32", value, 0)
        else:
            place = self.places[instruction.fields.get("parameter", "")]
            code.add("s_load_dword" + ("x2" if d.count == 2 else ""), value, self.arguments, place)
        if value is not d:
            for index in range(d.count):
                code.move(d[index], value[index])

    def memory(self, instruction: Instruction, verb: str, space: str, size: int) -> None:
        code, offset = self.code, instruction.fields["offset"]
        address = self.names.value(instruction.reads[0], words=2 if space == "global" else 1)
        if verb == "store":
            value = self.observed(instruction, self.gathered(instruction.reads[1], size))
            memory.store(code, space, size, address, value, offset)
            return
        (target,) = instruction.writes
        d = self.names.tuple(target)
        if d is not None and d.bank == "v":
            memory.load(code, space, size, d, address, offset)
            return
        loaded = code.temporary(max(1, size // 4))
        memory.load(code, space, size, loaded, address, offset)
        for index in range(len(target)):
            code.vector("v_mov_b32", self.names.value(target, index), loaded[index])

    def gathered(self, operand: Operand, size: int) -> Value:
        """An operand of `size` bytes as one tuple of vector registers."""
        if not isinstance(operand, Registers):
            return self.code.in_vector(self.names.value(operand, words=max(1, size // 4)), max(1, size // 4))
        whole = self.names.tuple(operand)
        if whole is not None and whole.bank == "v":
            return whole
        copy, count = self.code.temporary(max(1, size // 4)), word_count(operand.storage)
        for element in range(len(operand)):
            value = self.names.value(operand, element)
            for index, word in enumerate(split(value, count)):
                self.code.move(copy[element * count + index], word)
        return copy

    def observed(self, instruction: Instruction, value: Value) -> Value:
        """Stored words of which some may be a NaN of the chip's own, with the portable NaN instead."""
        operand = instruction.reads[1]
        if not isinstance(operand, Registers) or operand.storage not in self.late_nan:
            return value
        assert isinstance(value, Reg)
        copy = self.code.temporary(value.count)
        for index in range(value.count):
            numbers.one_nan(self.code, copy[index], value[index])
        return copy

    def element(self, instruction: Instruction, element: int) -> None:
        """One element of a lanewise operation, or of a shuffle."""
        code, name = self.code, instruction.operation.name
        (target,) = instruction.writes
        d = self.names.value(target, element)
        assert isinstance(d, Reg)
        operands = [self.operand(instruction, operand, element) for operand in instruction.reads]
        kind, _, type = name.partition(".")
        if target.storage.type.bits == 1:
            self.predicate(instruction, d, kind, type, operands)
            return
        all_scalar = not any(isinstance(value, Reg) and value.bank != "s" for value in operands)
        if d.bank == "s" and all_scalar and self.on_scalars(name, d, operands):
            return
        result = d if d.bank == "v" else code.temporary(d.count)
        if kind == "shuffle_xor":
            memory.shuffle_xor(code, result, operands[0], self.thread, instruction.fields["mask"])
        else:
            lowered = self.vector[name]
            if isinstance(lowered, str):
                code.vector(lowered, result, *operands)
            else:
                lowered(code, result, *operands, **instruction.fields)
        if target.storage in self.early_nan and name in numbers.GIVES_NAN:
            numbers.one_nan(code, result, result)
        if result is not d:
            for index in range(d.count):
                code.move(d[index], result[index])

    def operand(self, instruction: Instruction, operand: Operand, element: int) -> Value:
        value = self.names.value(operand, element, words=_operand_words(instruction))
        unsettled = isinstance(operand, Registers) and operand.storage in self.late_nan
        if unsettled and instruction.operation.name not in numbers.TAKES_ANY_NAN:
            seen = self.code.temporary()
            numbers.one_nan(self.code, seen, value)
            return seen
        return value

    def on_scalars(self, name: str, d: Reg, operands: list[Value]) -> bool:
        """Write a scalar instruction, if there is one."""
        if (by_constant := integers.scalar_by_constant(name, operands[-1])) is not None:
            self.code.scalar(by_constant[0], d, operands[0], by_constant[1])
            return True
        lowered = integers.SCALAR.get(name)
        if lowered is None:
            return False
        if isinstance(lowered, str):
            self.code.scalar(lowered, d, *operands)
        else:
            lowered(self.code, d, *operands)
        return True

    def predicate(self, instruction: Instruction, d: Reg, kind: str, type: str, operands: list[Value]) -> None:
        """A mask of lanes; in a mask, other lanes keep theirs where they may still be seen."""
        code, keeps = self.code, instruction.writes[0].storage in self.merging
        found = code.fresh("s", 2) if keeps else d
        if kind in _COMPARISONS:
            scalar = not any(isinstance(v, Reg) and v.bank != "s" for v in operands)
            compare = integers.compare_scalar if scalar and type in integers.SCALAR_COMPARISONS else integers.compare
            compare(code, found, kind, type, *operands)
        else:
            masks = [(-1 if v else 0) if isinstance(v, int) else v for v in operands]
            code.scalar(integers.PREDICATES[instruction.operation.name], found, *masks)
        if keeps:
            code.scalar("s_and_b64", found, found, "exec")
            code.scalar("s_andn2_b64", d, d, "exec")
            code.scalar("s_or_b64", d, d, found)


_PLACES = {"lane_index", "warp_index", "block_index", "grid_size", "shared_base"}
_MOVES = {("s", 2): "s_mov_b64", ("s", 1): "s_mov_b32", ("v", 1): "v_mov_b32"}


def _operand_words(instruction: Instruction) -> int:
    wide = any(isinstance(r, Registers) and r.type.bits == 64 for r in (*instruction.reads, *instruction.writes))
    return 2 if wide else 1


def _nan_places(program: Program) -> tuple[set[Storage], set[Storage]]:
    """Where the chip's own NaNs become the portable one: as soon as written, and only when seen.

    Late is cheaper, as sums are written more often than seen; early is for storages that also hold bits from
    elsewhere, which must stay as they are.
    """
    early: set[Storage] = set()
    late: set[Storage] = set()
    for storage in {target.storage for i in program.instructions() for target in i.writes}:
        makes = [writer.operation.name in numbers.GIVES_NAN for writer in storage.writers]
        neutral = [_is_number(writer) or made for writer, made in zip(storage.writers, makes)]
        if any(makes):
            (late if all(neutral) and not storage.place else early).add(storage)
    return early, late


def _is_number(writer: Instruction) -> bool:
    """Whether an instruction sets a register to a number that is no NaN."""
    return writer.operation.name == "move.f32" and isinstance(writer.reads[0], (int, float)) and (
        writer.reads[0] == writer.reads[0]
    )  # fmt: skip
