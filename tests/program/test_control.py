"""Control flow and the listing: structure as data, readable, stable, with the Python line of every node."""

from __future__ import annotations

import re

import pytest

from kingpost.formats import BF16, E4M3
from kingpost.program import Builder, Instruction, Loop, Mask, Program, Role, When, f32, kernel, u32, u64


@kernel(target="nowhere")
def sample(k: Builder, *, stages: int, columns: int = 16) -> None:
    rows = k.parameter("rows")
    values = k.parameter("values", u64)
    k.tensor_map("a", E4M3, (64, 128), swizzle=128)
    tiles = k.shared("tiles", (stages, 64, 128), E4M3, swizzle=128)
    k.shared("row", (columns,), BF16)
    k.shared_barriers("full", stages)
    with k.role("math", warps=4, registers=232) as warp:
        total = k.array(f32, 4, "total")
        k.set(total, 0.0)
        with k.loop(rows, start=k.block, step=k.grid) as row:
            with k.when(row < 7), k.mask(k.lane == 0):
                k.load(f32, k.address(values, row, 4), into=total[2])
            total += 1.0
        k.store(tiles.at(1), total[0])
        k.set(k.new(u32), warp)
    with k.role("load", warps=2):
        k.barrier()


def test_structure_is_data() -> None:
    program = sample(stages=3)
    assert (program.name, program.target, program.warps) == ("sample", "nowhere", 6)
    assert program.config == {"stages": 3}
    math, load = program.roles()
    assert (math.name, math.first, math.warps, math.registers) == ("math", 0, 4, 232)
    assert (load.name, load.first, load.warps, load.registers) == ("load", 4, 2, None)
    (loop,) = [node for node in math.body if isinstance(node, Loop)]
    when = next(node for node in loop.body if isinstance(node, When))
    (mask,) = [node for node in when.body if isinstance(node, Mask)]
    assert [type(node) for node in mask.body] == [Instruction, Instruction]
    assert [p.name for p in program.parameters] == ["rows", "values", "a"]
    assert [a.name for a in program.shared] == ["tiles", "row", "full"]
    names = [instruction.operation.name for instruction in program.instructions()]
    assert names.count("parameter.u32") == 1 and names.count("parameter.u64") == 2
    assert (
        names.index("load_global.f32")
        < names.index("add.f32")
        < names.index("store_shared.f32")
        < names.index("barrier")
    )


def test_a_configuration_is_written_once() -> None:
    assert sample(stages=3) is sample(stages=3)
    assert sample(stages=3) is not sample(stages=4)
    assert sample.__name__ == "sample" and sample.__wrapped__.__name__ == "sample"


def test_what_a_thread_knows_of_itself_comes_first_and_once() -> None:
    program = sample(stages=2)
    first = [node.operation.name for node in program.body if isinstance(node, Instruction)]
    asked = {"block_index", "grid_size", "lane_index", "shared_base", "warp_index"}
    assert set(first) == asked | {"parameter.u32", "parameter.u64"}
    names = [instruction.operation.name for instruction in program.instructions()]
    assert all(names.count(name) == 1 for name in asked)


def test_shared_memory_is_laid_out() -> None:
    program = sample(stages=3)
    tiles, row, full = program.shared
    assert (tiles.offset, tiles.bytes, tiles.stride, tiles.swizzle) == (0, 3 * 64 * 128, 64 * 128, 128)
    assert (row.offset, row.bytes) == (tiles.bytes, 32)
    assert full.offset % 8 == 0 and full.offset >= row.offset + row.bytes and full.bytes == 24
    assert program.shared_bytes == full.offset + full.bytes


def test_swizzled_arrays_start_at_a_whole_pattern() -> None:
    k = Builder("aligned", "nowhere")
    k.shared("odd", (5,), BF16)
    for swizzle in (32, 64, 128):
        assert k.shared(f"s{swizzle}", (8, swizzle // 2), BF16, swizzle).offset % (8 * swizzle) == 0
        k.shared(f"gap{swizzle}", (3,), BF16)
    assert k.shared("plain", (512,), BF16).offset % 128 == 0
    with pytest.raises(
        ValueError, match=r"shared array t: rows of 32 bfloat16 under a swizzle of 128 bytes; rows as long"
    ):
        k.shared("t", (8, 32), BF16, 128)


LISTING = """\
program sample(stages=3) for nowhere: 6 warps, {bytes} shared bytes
  parameter rows: u32
  parameter values: u64
  parameter a: TensorMapType(format=E4M3, box=(64, 128), swizzle=128)
  shared tiles: e4m3[3, 64, 128] at 0, swizzle 128
  shared row: bfloat16[16] at 24576
  shared full: uint64[3] at {full}
"""


def test_the_listing_reads_from_top_to_bottom() -> None:
    program = sample(stages=3)
    lines = str(program).splitlines()
    head = LISTING.format(bytes=program.shared_bytes, full=program.shared[2].offset).splitlines()
    assert [line for line in lines[:7] if not line.startswith("  parameter a")] == [
        line for line in head if not line.startswith("  parameter a")
    ]
    assert "box=(64, 128)" in lines[3] and "swizzle=128" in lines[3]
    text = [line.partition("#")[0].rstrip() for line in lines]
    role = text.index("  role 'math': warps 0 to 3, 232 registers a thread")
    body = [
        line for line in text[role:] if "total" in line or line.lstrip().startswith(("loop", "when", "mask", "role"))
    ]
    shape = [re.sub(r"\b[usp]\d+\b", "_", line) for line in body]
    assert shape == [
        "  role 'math': warps 0 to 3, 232 registers a thread",
        "    total = move.f32 0.0",
        "    loop _ from _ to _ by _",
        "      when _",
        "        mask _",
        "          total[2] = load_global.f32 _, offset=0",
        "      total = add.f32 total, 1.0",
        "    store_shared.f32 _, total[0], offset=0",
        "  role 'load': warps 4 to 5",
    ]
    assert all(len(line) < 140 for line in lines)


def test_the_listing_is_stable() -> None:
    k = [Builder("sample", "nowhere") for _ in range(2)]
    for builder in k:
        sample.__wrapped__(builder, stages=3)
    first, second = (str(builder.finish({"stages": 3})) for builder in k)
    assert first == second
    assert "0x" not in first  # no addresses of Python objects


# Source lines


def test_every_node_keeps_its_python_line() -> None:
    program = sample(stages=3)
    start = sample.__wrapped__.__code__.co_firstlineno

    def line(text: str) -> int:
        import inspect

        (found,) = [i for i, each in enumerate(inspect.getsource(sample.__wrapped__).splitlines()) if text in each]
        return start + found

    def first(kind: str) -> int:
        return next(i.source.line for i in program.instructions() if i.operation.name == kind)

    math, _ = program.roles()
    loop = next(node for node in math.body if isinstance(node, Loop))
    when = next(node for node in loop.body if isinstance(node, When))
    assert math.source.line == line('k.role("math"')
    assert loop.source.line == line("k.loop(")
    assert when.source.line == when.body[-1].source.line == line("k.when(")
    assert first("load_global.f32") == line("k.load(")
    assert first("add.f32") == line("total += 1.0")
    assert first("move.f32") == line("k.set(total")
    assert first("grid_size") == line("k.loop(") and first("lane_index") == line("k.mask(")
    assert {i.source.file for i in program.instructions()} == {"test_control.py"}


@pytest.mark.parametrize("file, kept", [
    ("/home/someone/kingpost/tests/kernel.py", "kernel.py"),
    ("/home/kingpost/mine/kernel.py", "kernel.py"),
    ("C:\\work\\kernel.py", "kernel.py"),
    ("<stdin>", "<stdin>"),
])  # fmt: skip
def test_source_files_do_not_depend_on_where_they_lie(file: str, kept: str) -> None:
    from kingpost.program.instruction import portable_path

    assert portable_path(file) == kept


def test_our_own_files_are_named_from_the_package_on() -> None:
    import kingpost.targets.nvidia.parts.ring as module
    from kingpost.program.instruction import portable_path

    assert portable_path(module.__file__) == "kingpost/targets/nvidia/parts/ring.py"


# What is refused


def write(body) -> Program:
    k = Builder("refused", "nowhere")
    body(k)
    return k.finish({})


def role_in_a_loop(k: Builder) -> None:
    with k.loop(3), k.role("inner", warps=1):
        pass


def role_in_a_condition(k: Builder) -> None:
    with k.when(k.block == 0), k.role("inner", warps=1):
        pass


def role_in_a_role(k: Builder) -> None:
    with k.role("outer", warps=1), k.role("inner", warps=1):
        pass


def instructions_between_roles(k: Builder) -> None:
    with k.role("first", warps=1):
        pass
    k.barrier()
    with k.role("inner", warps=1):
        pass


@pytest.mark.parametrize("body", [role_in_a_loop, role_in_a_condition, role_in_a_role, instructions_between_roles])
def test_roles_stand_one_after_another(body) -> None:
    """In text they are one chain of branches: what stood between two would run for the later one's warps only."""
    with pytest.raises(ValueError, match="role 'inner' stands"):
        write(body)


def test_instructions_before_and_after_roles() -> None:
    def body(k: Builder) -> None:
        k.barrier()
        for name in "ab":
            with k.role(name, warps=1):
                k.barrier()
        k.barrier()

    kinds = [type(node) for node in write(body).body]
    assert kinds[-4:] == [Instruction, Role, Role, Instruction]
