"""Bounds stay expressions: their value is found from the parameters, without a run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingpost.program import Builder, Loop, NotConstant, evaluate, f32, u32, u64


@pytest.fixture
def k() -> Builder:
    return Builder("test", "nowhere")


def test_a_loops_bounds(k: Builder) -> None:
    rows, columns = k.parameter("rows"), k.parameter("columns")
    with k.loop(k.ceil_div(rows, 128) * columns, start=k.block, step=k.grid) as tile, k.loop(tile + 2) as inner:
        k.set(k.new(u32), inner)
    outer = next(node for node in k.finish({}).body if isinstance(node, Loop))
    known = {"rows": 300, "columns": 5, "block_index": 7, "grid_size": 132}
    assert [evaluate(bound, known) for bound in (outer.start, outer.stop, outer.step)] == [7, 15, 132]
    inner_loop = next(node for node in outer.body if isinstance(node, Loop))
    assert evaluate(inner_loop.stop, {**known, outer.counter.storage: 9}) == 11
    with pytest.raises(NotConstant, match="counts a loop"):
        evaluate(inner_loop.stop, known)


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1))
def test_arithmetic_is_the_chips(x: int, y: int) -> None:
    k = Builder("test", "nowhere")
    a, b = k.parameter("a"), k.parameter("b")
    expressions = {
        a + b: (x + y) % 2**32, a - b: (x - y) % 2**32, a * b: x * y % 2**32, a // b: x // y, a % b: x % y,
        a & b: x & y, a | b: x | y, a ^ b: x ^ y, a << 3: x * 8 % 2**32, a >> 3: x // 8, k.minimum(a, b): min(x, y),
        k.maximum(a, b): max(x, y), a < b: x < y, a == b: x == y, k.select(a < b, a, b): min(x, y),
        k.fused_multiply_add(a, 7, b): (7 * x + y) % 2**32, k.address(k.parameter("base", u64), a, 8): 2**40 + 8 * x,
    }  # fmt: skip
    for expression, value in expressions.items():
        assert evaluate(expression, {"a": x, "b": y, "base": 2**40}) == value


def test_numbers_and_constants(k: Builder) -> None:
    assert evaluate(5, {}) == 5
    assert evaluate(k.new(u32, 5) + 3, {}) == 8
    assert evaluate(k.new(f32, 0.1), {}) == float(np.float32(0.1))
    assert type(evaluate(k.new(u32, 5), {})) is int


def test_what_depends_on_the_run(k: Builder) -> None:
    x = k.new(u32, 0, "x")
    x += k.parameter("a")
    loaded = k.load(u32, k.parameter("p", u64))
    for value, message in (
        (x, "x is written 2 times"),
        (k.new(u32, name="y") + 1, "y is written 0 times"),
        (loaded + 1, "is made by load_global.u32 at test_evaluate.py:"),
        (k.lane * 2, "is made by lane_index"),
        (k.array(u32, 3), "written 0 times"),
    ):
        with pytest.raises(NotConstant, match=message):
            evaluate(value, {"a": 1, "p": 1 << 20})
    with pytest.raises(NotConstant, match=r"parameter\.u32"):
        evaluate(k.parameter("b"), {"a": 1})
