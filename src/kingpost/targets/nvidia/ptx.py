"""A Program as PTX text: the NVIDIA half of the first reader."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator

from kingpost.program import Instruction, Loop, Mask, Node, Operand, Program, Registers, Role, Source, When
from kingpost.program.registers import Storage
from kingpost.program.tensor_map import TensorMapType

VERSIONS = {"sm_90a": "8.0", "sm_100a": "8.8"}  # the lowest that serve; block scales of 32 came with 8.8
REGISTERS_PER_BLOCK = 65536

_ARITHMETIC = {
    "add": "add.{t} {d}, {a}, {b};",
    "sub": "sub.{t} {d}, {a}, {b};",
    "mul": "mul.lo.{t} {d}, {a}, {b};",
    "div": "div.{t} {d}, {a}, {b};",
    "rem": "rem.{t} {d}, {a}, {b};",
    "min": "min.{t} {d}, {a}, {b};",
    "max": "max.{t} {d}, {a}, {b};",
    "and": "and.{b_} {d}, {a}, {b};",
    "or": "or.{b_} {d}, {a}, {b};",
    "xor": "xor.{b_} {d}, {a}, {b};",
    "shl": "shl.{b_} {d}, {a}, {b};",
    "shr": "shr.{t} {d}, {a}, {b};",
    "move": "mov.{t} {d}, {a};",
    "select": "selp.{t} {d}, {a}, {b}, {condition};",
    "fma": "fma.rn.{t} {d}, {a}, {b}, {c};",
    "mad": "mad.lo.{t} {d}, {a}, {b}, {c};",
    "mad_wide": "mad.wide.{t} {d}, {a}, {b}, {c};",
    "widen": "cvt.u64.{t} {d}, {a};",
    "bits": "mov.b32 {d}, {a};",
    "from_bits": "mov.b32 {d}, {a};",
    "abs": "abs.{t} {d}, {a};",
    "neg": "neg.{t} {d}, {a};",
    "not": "not.{b_} {d}, {a};",
    "to_f32": "cvt.rn.f32.{t} {d}, {a};",
    "to_u32": "cvt.rzi.u32.{t} {d}, {a};",
    "to_s32": "cvt.rzi.s32.{t} {d}, {a};",
    "pack_bf16": "cvt.rn.bf16x2.{t} {d}, {high}, {low};",
    "pack_f16": "cvt.rn.f16x2.{t} {d}, {high}, {low};",
    "unpack_f16": "{{ .reg .b16 low, high; mov.b32 {{low, high}}, {a}; cvt.f32.f16 {d}, low; }}",
    "pack_float8": "{{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, {b}, {a}; "
    "cvt.rn.satfinite.e4m3x2.f32 high, {e}, {c}; mov.b32 {d}, {{low, high}}; }}",
    **{name: f"setp.{name}.{{t}} {{d}}, {{a}}, {{b}};" for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}
_ROUNDED = ("add", "sub", "mul", "div")  # float32: with .rn, ptxas may not fuse a product and a sum
_ELSEWHERE = {
    "lane_index": "mov.u32 {d}, %laneid;",
    # through a shuffle, so that ptxas knows the index to be uniform over the warp
    "warp_index": "{{ .reg .b32 t; mov.u32 t, %tid.x; shr.u32 t, t, 5; shfl.sync.idx.b32 {d}, t, 0, 31, 0xffffffff; }}",
    "block_index": "mov.u32 {d}, %ctaid.x;",
    "grid_size": "mov.u32 {d}, %nctaid.x;",
    "shared_base": "mov.u32 {d}, shared_memory;",
    "barrier": "bar.sync 0;",
    "load_global": "ld.global.{t} {d}, [{address}+{offset}];",
    "store_global": "st.global.{t} [{address}+{offset}], {value};",
    "load_shared": "ld.shared.{t} {d}, [{address}+{offset}];",
    "store_shared": "st.shared.{t} [{address}+{offset}], {value};",
    "shuffle_xor": "shfl.sync.bfly.b32 {d}, {a}, {mask}, 31, 0xffffffff;",
    **{
        name.format(space=space, bits=bits): text.format(space=space, bits=bits)
        for space in ("global", "shared")
        for bits in (8, 16)
        for name, text in (
            ("load_{space}_b{bits}", "ld.{space}.u{bits} {{d}}, [{{address}}+{{offset}}];"),
            ("store_{space}_b{bits}", "st.{space}.u{bits} [{{address}}+{{offset}}], {{value}};"),
        )
    },
}
_DECLARED = {"u32": "b32", "s32": "b32", "u64": "b64", "f32": "f32", "pred": "pred"}
_PREFIXES = {"u32": "%r", "s32": "%s", "u64": "%l", "f32": "%f", "pred": "%p"}


class Names:
    """How registers and immediates are written: `%f12` is the thirteenth float32 register that the text uses."""

    def __init__(self) -> None:
        self.first: dict[Storage, int] = {}  # the number of a storage's first register
        self.counts: Counter[str] = Counter()  # by type

    def __call__(self, operand: Operand, element: int = 0) -> str:
        if isinstance(operand, Registers):
            storage, type = operand.storage, operand.type.name
            if storage not in self.first:
                self.first[storage] = self.counts[type]
                self.counts[type] += storage.size
            return f"{_PREFIXES[type]}{self.first[storage] + operand.indices[element if len(operand) > 1 else 0]}"
        if isinstance(operand, float):
            return f"0f{struct.pack('>f', operand).hex()}"
        return str(operand)

    def vector(self, registers: Operand) -> str:
        """`{r0, r1, ...}`"""
        assert isinstance(registers, Registers)
        return "{" + ", ".join(self(registers, i) for i in range(len(registers))) + "}"

    def declarations(self) -> list[str]:
        return [f".reg .{_DECLARED[type]} {_PREFIXES[type]}<{count}>;" for type, count in self.counts.items()]


def ptx(program: Program) -> str:
    """The PTX text of a program, with the Python line of every instruction as `.loc`."""
    return _Writer(program).text()


class _Writer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = Names()
        self.files: dict[str, int] = {}
        self.labels = 0
        self.at: Source | None = None

    def text(self) -> str:
        program = self.program
        body = list(self.body(list(program.body)))
        parameters = [
            f"  .param .align 64 .b8 {p.name}[{p.bytes}]"
            if isinstance(p.type, TensorMapType)
            else f"  .param .{p.type.name} {p.name}"
            for p in program.parameters
        ]
        check_register_budgets(program)
        return "\n".join(
            [
                f".version {VERSIONS.get(program.target, VERSIONS['sm_90a'])}",
                f".target {program.target}",
                ".address_size 64",
                *(f'.file {number} "{file}"' for file, number in self.files.items()),
                ".extern .shared .align 1024 .b8 shared_memory[];",
                f".visible .entry {program.name}(",
                ",\n".join(parameters),
                ")",
                f".maxntid {32 * program.warps}, 1, 1",
                ".minnctapersm 1",
                *([f".reqnctapercluster {program.cluster}, 1, 1"] if program.cluster > 1 else []),
                "{",
                *self.names.declarations(),
                *body,
                "ret;",
                "}",
                "",
            ]
        )

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def body(self, body: list[Node]) -> Iterator[str]:
        roles = [node for node in body if isinstance(node, Role)]
        after_roles = self.label()
        for node in body:
            yield from self.location(node.source)
            match node:
                case Instruction():
                    yield from self.instruction(node)
                case Role():
                    yield from self.role(node, roles[-1] is node, after_roles)
                case Loop():
                    yield from self.loop(node)
                case When():
                    yield from self.branch(node.condition, node.body)
                case Mask():
                    if len(node.body) <= 4 and all(_predicable(inner) for inner in node.body):
                        yield from self.predicated(node)
                    else:
                        yield from self.branch(node.condition, node.body)

    def location(self, source: Source) -> Iterator[str]:
        if source != self.at:
            self.at = source
            number = self.files.setdefault(source.file, len(self.files) + 1)
            yield f".loc {number} {source.line} 0"

    def predicated(self, node: Mask) -> Iterator[str]:
        for inner in node.body:
            assert isinstance(inner, Instruction)
            yield from (f"@{self.names(node.condition)} {line}" for line in self.instruction(inner))

    def branch(self, condition: Registers, body: list[Node]) -> Iterator[str]:
        end = self.label()
        yield f"@!{self.names(condition)} bra {end};"
        yield from self.body(body)
        yield f"{end}:"

    def loop(self, node: Loop) -> Iterator[str]:
        counter, stop, step = self.names(node.counter), self.names(node.stop), self.names(node.step)
        test, start, end = f"%q{self.label()}", self.label(), self.label()
        yield f".reg .pred {test};"
        yield f"mov.u32 {counter}, {self.names(node.start)};"
        yield f"setp.ge.u32 {test}, {counter}, {stop};"
        yield f"@{test} bra {end};"
        yield f"{start}:"
        yield from self.body(node.body)
        yield f"add.u32 {counter}, {counter}, {step};"
        yield f"setp.lt.u32 {test}, {counter}, {stop};"
        yield f"@{test} bra {start};"
        yield f"{end}:"

    def role(self, node: Role, last: bool, after_roles: str) -> Iterator[str]:
        """One arm of the single if/else over warps that setmaxnreg wants; warps past all roles do nothing."""
        warp = next(i.writes[0] for i in self.program.instructions() if i.operation.name == "warp_index")
        other, test = self.label(), f"%q{self.label()}"
        yield f".reg .pred {test};"
        yield f"setp.ge.u32 {test}, {self.names(warp)}, {node.first + node.warps};"
        yield f"@{test} bra {other};"
        if node.registers:
            entry = registers_at_entry(self.program)
            direction = "inc" if node.registers > entry else "dec"
            yield f"setmaxnreg.{direction}.sync.aligned.u32 {node.registers};"
        yield from self.body(node.body)
        yield f"bra {after_roles};"
        yield f"{other}:"
        if last:
            yield f"{after_roles}:"

    def instruction(self, instruction: Instruction) -> Iterator[str]:
        operation = instruction.operation
        text = operation.text if operation.text is not None else _lowered(operation.name)
        if operation.name.startswith("parameter."):
            yield from self.parameter(instruction)
        elif callable(text):
            yield text(instruction, self.names)
        else:
            for element in range(instruction.elements):
                operands = zip((*operation.writes, *operation.operands), (*instruction.writes, *instruction.reads))
                values = {name: self.names(operand, element) for name, operand in operands}
                yield text.format(**values, **instruction.fields)

    def parameter(self, instruction: Instruction) -> Iterator[str]:
        name, register = instruction.fields["parameter"], self.names(instruction.writes[0])
        type = next(p.type for p in self.program.parameters if p.name == name)
        if isinstance(type, TensorMapType):
            yield f"mov.u64 {register}, {name};"
            yield f"cvta.param.u64 {register}, {register};"
        else:
            yield f"ld.param.{type.name} {register}, [{name}];"


def _predicable(node: Node) -> bool:
    """Whether every line of a node can carry a predicate: plain instructions, no blocks of several lines."""
    if not isinstance(node, Instruction):
        return False
    text = node.operation.text if node.operation.text is not None else _lowered(node.operation.name)
    return isinstance(text, str) and not text.startswith("{{") and not node.operation.converged


def _vector(kind: str, type: str) -> Callable[[Instruction, Names], str]:
    """The text of "load_global_x4" and its kin."""
    verb, space, count = kind.split("_")

    def text(instruction: Instruction, names: Names) -> str:
        place = f"[{names(instruction.reads[0])}+{instruction.fields['offset']}]"
        if verb == "load":
            return f"ld.{space}.v{count[1:]}.{type} {names.vector(instruction.writes[0])}, {place};"
        return f"st.{space}.v{count[1:]}.{type} {place}, {names.vector(instruction.reads[1])};"

    return text


def _unpack_float8(instruction: Instruction, names: Names) -> str:
    (codes,), (d,), index = instruction.reads, instruction.writes, instruction.fields["index"]
    assert len(d) == 1, "one register at a time"
    pair, half = ("low", "high")[index // 2], ("first", "second")[index % 2]
    return (
        f"{{ .reg .b16 low, high, first, second; .reg .b32 both; mov.b32 {{low, high}}, {names(codes)}; "
        f"cvt.rn.f16x2.e4m3x2 both, {pair}; mov.b32 {{first, second}}, both; cvt.f32.f16 {names(d)}, {half}; }}"
    )


def _divided(kind: str, type: str) -> Callable[[Instruction, Names], str]:
    """The text of an integer "div" or "rem": by a power of two a shift or a mask, which ptxas does not make of it."""

    def text(instruction: Instruction, names: Names) -> str:
        (a, b), (d,) = instruction.reads, instruction.writes
        lines = []
        for element in range(instruction.elements):
            operands = f"{names(d, element)}, {names(a, element)}"
            if not isinstance(b, int) or b & (b - 1) or not b:
                lines.append(f"{kind}.{type} {operands}, {names(b, element)};")
            elif kind == "div":
                lines.append(f"shr.{type} {operands}, {b.bit_length() - 1};")
            else:
                lines.append(f"and.b{type[1:]} {operands}, {b - 1};")
        return " ".join(lines)

    return text


def _lowered(name: str) -> str | Callable[[Instruction, Names], str]:
    kind, _, type = name.partition(".")
    if kind.endswith(("_x2", "_x4")):
        return _vector(kind, type)
    if kind in ("div", "rem") and type in ("u32", "u64"):
        return _divided(kind, type)
    if kind == "unpack_float8":
        return _unpack_float8
    if kind in _ELSEWHERE:
        return _ELSEWHERE[kind].replace("{t}", type)
    if kind == "parameter":
        return ""
    if (kind, type) == ("ne", "f32"):
        return "setp.neu.f32 {d}, {a}, {b};"  # true of NaN, as in Python
    if type == "f32" and kind in _ROUNDED:
        return f"{kind}.rn.f32 {{d}}, {{a}}, {{b}};"
    b = "pred" if type == "pred" else f"b{type[1:]}"
    return _ARITHMETIC[kind].replace("{t}", type).replace("{b_}", b)


def registers_at_entry(program: Program) -> int:
    """What ptxas may give each thread before setmaxnreg: the register file over the threads, in units of 8."""
    return min(255, REGISTERS_PER_BLOCK // (32 * program.warps)) // 8 * 8


def check_register_budgets(program: Program) -> None:
    """Refuse budgets that setmaxnreg forbids (PTX ISA, "setmaxnreg"): multiples of 8, 24 to 256, whole warpgroups, and
    in sum no more than the block was given at entry."""
    roles = program.roles()
    budgets = [role.registers for role in roles]
    if not any(budgets):
        return
    for role in roles:
        if role.registers is None or role.registers % 8 or not 24 <= role.registers <= 256:
            raise ValueError(
                f"role {role.name}: registers is {role.registers}; a multiple of 8 from 24 to 256 is wanted"
            )
        if role.warps % 4 or role.first % 4:
            raise ValueError(
                f"role {role.name}: warps {role.first} to {role.first + role.warps - 1}; whole warpgroups of 4 "
                "are wanted where registers are budgeted"
            )
    total, given = sum(r.warps * (r.registers or 0) for r in roles), program.warps * registers_at_entry(program)
    if total > given:
        raise ValueError(f"roles ask for {32 * total} registers; the block has {32 * given} at entry")
