"""The rebinding trap: `x = x + 1` in a run-time loop is refused, and what only looks like it is not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kingpost.program import Builder, RebindingError, f32, u32


@pytest.fixture
def k() -> Builder:
    return Builder("test", "nowhere")


def test_a_name(k: Builder) -> None:
    x = k.new(u32, 0, "x")
    with pytest.raises(
        RebindingError, match=r"^x held x before the loop at test_rebinding\.py:\d+ and holds u\d+ after"
    ):
        with k.loop(4):
            x = x + 1


def test_the_message_says_what_to_write(k: Builder) -> None:
    x = k.new(u32, 0, "x")
    with pytest.raises(
        RebindingError, match=r"in place \(x \+= \.\.\., k\.set\(x, \.\.\.\)\).*or give the new value another"
    ):
        with k.loop(4):
            x = x * 2


def test_an_element_of_a_list(k: Builder) -> None:
    totals = [k.new(f32, 0.0, f"total{i}") for i in range(3)]
    with pytest.raises(RebindingError, match=r"^totals\[1\] held total1"):
        with k.loop(4):
            totals[1] = totals[1] + 1.0


def test_a_value_of_a_dict(k: Builder) -> None:
    at = {"a": k.new(u32, 0)}
    with pytest.raises(RebindingError, match=r"^at\['a'\]"):
        with k.loop(4):
            at["a"] = at["a"] + 1


def test_an_attribute(k: Builder) -> None:
    cursor = SimpleNamespace(slot=k.new(u32, 0, "slot"))
    with pytest.raises(RebindingError, match=r"^cursor\.slot held slot"):
        with k.loop(4):
            cursor.slot = cursor.slot + 1


def test_another_view_of_an_array(k: Builder) -> None:
    x = k.array(f32, 4, "x")
    part = x[:2]
    with pytest.raises(RebindingError, match=r"^part held x\[0:2\] .* holds x\[2:4\]"):
        with k.loop(4):
            k.set(part, 1.0)
            part * 2.0
            part = x[2:]


def test_in_an_inner_loop_that_the_outer_one_repeats(k: Builder) -> None:
    x = k.new(u32, 0, "x")
    with pytest.raises(RebindingError, match=r"^x held"):
        with k.loop(4), k.loop(2):
            x = x + 1


def test_read_as_a_condition_or_bound(k: Builder) -> None:
    x, go = k.new(u32, 0, "x"), k.block < 3
    with pytest.raises(RebindingError, match=r"^x held"):
        with k.loop(4):
            with k.loop(x):
                pass
            x = k.new(u32, 5)
    with pytest.raises(RebindingError, match=r"^go held"):
        with k.loop(4):
            with k.when(go):
                k.barrier()
            go = k.block < 5


def test_in_a_helper_that_holds_the_name(k: Builder) -> None:
    """The kernel's own frame is what counts, also when the loop is entered with others."""

    def helper() -> None:
        y = k.new(u32, 0, "y")
        with k.loop(2), k.when(k.block == 0):
            y = y + 1

    with pytest.raises(RebindingError, match=r"^y held y"):
        helper()


# What is no trap


def test_in_place(k: Builder) -> None:
    x, totals = k.new(u32, 0, "x"), [k.new(f32, 0.0) for _ in range(2)]
    with k.loop(4):
        x += 1
        x *= 3
        k.set(x, x + 5)
        totals[0] += 1.0
        k.fused_multiply_add(totals[1], 2.0, 1.0, into=totals[1])


def test_a_fresh_name(k: Builder) -> None:
    x = k.new(u32, 0)
    with k.loop(4):
        y = x + 1
        y = y + 1
        k.set(x, y)


def test_a_name_that_the_body_does_not_read(k: Builder) -> None:
    x = k.new(u32, 0)
    with k.loop(4):
        x = k.new(u32, 1)
        x += 1


def test_loop_counters_by_the_same_name(k: Builder) -> None:
    with k.loop(4) as i:
        k.set(k.new(u32), i)
    with k.loop(4) as i:
        k.set(k.new(u32), i)
        with k.loop(4) as i:
            k.set(k.new(u32), i)


def test_a_python_loop_around_or_inside(k: Builder) -> None:
    x = k.new(u32, 0)
    for i in range(2):
        value = k.new(u32, i)
        with k.loop(4):
            for _ in range(2):
                x += value


def test_names_that_hold_no_registers(k: Builder) -> None:
    count, label = 1, "a"
    with k.loop(4):
        count, label = count + 1, label + "b"
        k.barrier()
    assert (count, label) == (2, "ab")
