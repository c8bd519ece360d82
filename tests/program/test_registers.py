"""Registers and operators: what they emit, what they are views of, what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kingpost.program import Builder, Instruction, Register, Registers, f32, operation, pred, s32, u32, u64
from kingpost.program.operations import PORTABLE, portable


@pytest.fixture
def k() -> Builder:
    return Builder("test", "nowhere")


def emitted(k: Builder) -> list[Instruction]:
    return list(k.finish({}).instructions())


def test_slices_are_views_of_one_storage(k: Builder) -> None:
    x = k.array(f32, 8, "x")
    assert len(x) == 8 and x.whole and x.type is f32
    assert x[2:6].indices == (2, 3, 4, 5) and x[2:6][1:3].indices == (3, 4)
    assert x[::2].indices == (0, 2, 4, 6) and x[-1].indices == (7,)
    assert x[[0, 0, 5]].indices == (0, 0, 5) and x[2:][[1, 0]].indices == (3, 2)
    assert all(view.storage is x.storage for view in (x[2:6], x[::2], x[3], x[[1, 1]]))
    assert isinstance(x[3], Register) and not isinstance(x[3:4], Register)
    assert [register.indices for register in x[1:3]] == [(1,), (2,)]
    assert x[2:6].same(x[2:6]) and not x[2:6].same(x[1:5]) and not x.same(k.array(f32, 8)) and not x.same("x")
    with pytest.raises(IndexError):
        x[8]


def test_names(k: Builder) -> None:
    x = k.array(f32, 8, "x")
    assert [repr(view) for view in (x, x[3], x[2:6], x[[0, 0, 1]])] == ["x", "x[3]", "x[2:6]", "x[0, 0, 1]"]
    assert repr(k.new(u32)) != repr(k.new(u32))


@pytest.mark.parametrize("name, emit", [
    ("add", lambda x, y: x + y), ("sub", lambda x, y: x - y), ("mul", lambda x, y: x * y),
    ("div", lambda x, y: x // y), ("rem", lambda x, y: x % y), ("and", lambda x, y: x & y),
    ("or", lambda x, y: x | y), ("xor", lambda x, y: x ^ y), ("shl", lambda x, y: x << y),
    ("shr", lambda x, y: x >> y), ("lt", lambda x, y: x < y), ("le", lambda x, y: x <= y),
    ("gt", lambda x, y: x > y), ("ge", lambda x, y: x >= y), ("eq", lambda x, y: x == y),
    ("ne", lambda x, y: x != y),
])  # fmt: skip
def test_operators_emit_portable_operations(k: Builder, name: str, emit) -> None:
    x, y = k.array(u32, 4, "x"), k.array(u32, 4, "y")
    result = emit(x, y)
    (instruction,) = emitted(k)
    assert instruction.operation is portable(name, u32)
    assert instruction.reads == (x, y) and instruction.writes == (result,) and instruction.elements == 4
    assert result.type is (pred if name in ("lt", "le", "gt", "ge", "eq", "ne") else u32)
    assert not result.same(x) and not result.same(y)


def test_one_register_gives_one_register(k: Builder) -> None:
    x = k.new(u32)
    assert isinstance(x + 1, Register) and isinstance(1 + x, Register) and isinstance(2 * x, Register)
    assert isinstance(x < 3, Register)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "xor"])
def test_augmented_assignment_writes_in_place(k: Builder, name: str) -> None:
    x = before = k.array(u32, 4, "x")
    match name:
        case "add":
            x += 3
        case "sub":
            x -= 3
        case "mul":
            x *= 3
        case "xor":
            x ^= 3
    assert x is before
    (instruction,) = emitted(k)
    assert instruction.operation is portable(name, u32) and instruction.writes == (x,) and instruction.reads == (x, 3)


def test_a_scalar_goes_with_every_register_of_an_array(k: Builder) -> None:
    x, y = k.array(f32, 4), k.new(f32)
    assert len(x * y) == len(y * x) == len(k.fused_multiply_add(x, y, x)) == 4


def test_a_register_has_no_value_in_python(k: Builder) -> None:
    x = k.new(u32)
    with pytest.raises(TypeError, match=r"branch on it with k\.when"):
        if x < 3:
            pass
    with pytest.raises(TypeError):
        x in [k.new(u32)]  # noqa: B015


def test_other_builder_methods(k: Builder) -> None:
    x, y, p = k.new(f32, name="x"), k.new(u32, name="y"), k.new(pred, name="p")
    k.minimum(x, 1.0)
    k.maximum(y, 2)
    k.fused_multiply_add(y, 3, y)
    k.select(p, x, 0.0)
    k.select(p, 1, 0, into=y)
    k.ceil_div(y, 128)
    k.address(k.new(u64), y, 4)
    names = [instruction.operation.name for instruction in emitted(k)]
    assert names == ["min.f32", "max.u32", "mad.u32", "select.f32", "select.u32", "add.u32", "div.u32", "mad_wide.u32"]


def test_memory_follows_the_type_of_the_address(k: Builder) -> None:
    k.load(f32, k.new(u64))
    k.load(f32, k.new(u32))
    k.store(k.new(u64), k.new(u32))
    k.store(k.new(u32), k.new(u64))
    names = [instruction.operation.name for instruction in emitted(k)]
    assert names == ["load_global.f32", "load_shared.f32", "store_global.u32", "store_shared.u64"]


# What is refused


@contextmanager
def refused(k: Builder, error: type[Exception], *words: str) -> Iterator[None]:
    """The block raises `error` with these words, and emits nothing."""
    before = len(emitted(k))
    with pytest.raises(error) as info:
        yield
    assert [word for word in words if word not in str(info.value)] == [], str(info.value)
    assert len(emitted(k)) == before


@operation("test {d}, {a}, {b};", name="test", writes={"d": f32}, lanewise=True)
def sample(warp, a, b, *, mode, strength=1):
    return a


def test_wrong_counts_and_fields(k: Builder) -> None:
    x = k.new(f32)
    for reads, fields in (
        ((x,), {"mode": 1}),
        ((x, x, x), {"mode": 1}),
        ((x, x), {}),
        ((x, x), {"mode": 1, "colour": 2}),
    ):
        with refused(
            k, TypeError, "test takes operands ('a', 'b') and fields ('mode', 'strength')", f"got {len(reads)}"
        ):
            sample(k, *reads, **fields)
    assert sample(k, x, x, mode=1).type is f32
    (instruction,) = emitted(k)
    assert instruction.fields == {"mode": 1, "strength": 1}


@pytest.mark.parametrize("value", ["x", None, 1j, [1]])
def test_operands_are_registers_or_numbers(k: Builder, value: object) -> None:
    with refused(k, TypeError, "operand b", repr(value), "a register or a number is wanted"):
        sample(k, k.new(f32), value, mode=1)


def test_registers_of_another_program(k: Builder) -> None:
    other = Builder("other", "nowhere")
    with refused(k, ValueError, "test", "operand b", "another program"):
        sample(k, k.new(f32), other.new(f32), mode=1)
    with refused(k, ValueError, "another program"):
        sample(k, k.new(f32), k.new(f32), mode=1, into=other.new(f32))


def test_wrong_types(k: Builder) -> None:
    x, y, i, p = k.new(f32, name="x"), k.new(f32), k.new(u32, name="i"), k.new(pred, name="p")
    with refused(k, TypeError, "d is i", "u32", "f32 is wanted"):
        sample(k, x, y, mode=1, into=i)
    with refused(k, TypeError, "add.f32", "b is i", "u32", "f32 is wanted"):
        x + i
    with refused(k, TypeError, "add.u32", "f32", "u32 is wanted"):
        i += x
    with refused(k, TypeError, "select.f32", "condition", "u32", "pred is wanted"):
        k.select(i, x, y)
    with refused(k, TypeError, "mad_wide.u32", "c is", "u64 is wanted"):
        k.address(i, i)
    with refused(k, TypeError, "xor on f32 is no portable operation", "u32", "u64"):
        x ^ 1
    with refused(k, TypeError, "add on pred"):
        p + p


@pytest.mark.parametrize("type, good, bad", [
    (u32, [0, 7, 2**32 - 1], [-1, 2**32, 1.5, True]),
    (u64, [0, 2**64 - 1], [-1, 2**64, 0.5]),
    (s32, [-(2**31), 2**31 - 1], [2**31, -(2**31) - 1, 1.0]),
    (f32, [0, -3, 1.5, float("nan"), float("inf")], [True, 10**400]),
])  # fmt: skip
def test_numbers_must_fit_their_type(k: Builder, type, good: list, bad: list) -> None:
    for number in good:
        k.new(type, number)
    for number in bad:
        with refused(k, TypeError, "move." + type.name, "a is", f"{type.name} is wanted"):
            k.new(type, number)


def test_a_float32_takes_whole_numbers_as_floats(k: Builder) -> None:
    """Every reader sees the same kind of number: PTX writes floats and integers differently."""
    k.new(f32, 2)
    (instruction,) = emitted(k)
    assert isinstance(instruction.reads[0], float)


def test_unequal_lengths(k: Builder) -> None:
    with refused(k, ValueError, "add.f32", "lengths [3, 4]", "equal lengths (or 1) are wanted"):
        k.array(f32, 4) + k.array(f32, 3)
    with refused(k, ValueError, "lengths [3, 4]"):
        k.fused_multiply_add(k.array(f32, 4), 1.0, 0.0, into=k.array(f32, 3))
    with refused(k, ValueError, "d has 1 registers; 4 are wanted"):
        k.emit_portable("add", k.array(f32, 4), 1.0, into=k.new(f32))


def test_an_array_may_not_write_what_its_later_lines_read(k: Builder) -> None:
    """One instruction on arrays is several lines of text: the second would see what the first wrote."""
    x = k.array(f32, 4, "x")
    with refused(k, ValueError, "mul.f32", "x"):
        x *= x[0]
    with refused(k, ValueError, "move.f32", "x"):
        k.set(x[1:], x[:3])
    with refused(k, ValueError, "mul.f32", "x"):
        k.emit_portable("mul", x, x[2], into=x)
    k.set(x[:3], x[1:])  # reads each before it is written
    x *= x
    x *= x[3]
    k.emit_portable("mul", x[:3], x[3], into=x[:3])
    assert len(emitted(k)) == 4


def test_portable_operations_are_about_forty() -> None:
    families = {re.sub(r"_[xb]\d+$", "", name) for name, _ in PORTABLE}  # widths of loads and stores count once
    assert 30 <= len(families) <= 50
    assert all(operation.text is None for operation in PORTABLE.values())
    with pytest.raises(TypeError, match="sqrt on f32 is no portable operation; it exists on"):
        portable("sqrt", f32)


def test_uses_count_every_line_of_an_array(k: Builder) -> None:
    k.array(f32, 16) * k.new(f32)
    k.new(f32) * k.new(f32)
    many, one = emitted(k)
    assert many.uses == {unit: 16 * amount for unit, amount in one.uses.items()} and one.uses["fma"] == 1


def test_registers_hash_by_identity(k: Builder) -> None:
    """== emits, so sets and dicts of registers must not compare them."""
    x, y = k.new(u32), k.new(u32)
    assert len({x, y}) == 2 and isinstance(x == y, Registers)
