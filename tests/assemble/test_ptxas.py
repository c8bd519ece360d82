"""What ptxas only remarks on is refused, with the Python line; register budgets are read from the machine code."""

import re

import pytest

from kingpost.assemble import AssemblerNotFound, AssemblyError, find_nvdisasm
from kingpost.assemble.elf import sections
from kingpost.assemble.ptxas import assemble, register_budgets

LAUNCH_BOUNDS = ".maxntid 384,1,1\n.minnctapersm 1"


def kernel(body: str, bounds: str = LAUNCH_BOUNDS, target: str = "sm_90a", version: str = "8.0") -> str:
    return f"""\
.version {version}
.target {target}
.address_size 64
.file 1 "kernel.py"
.extern .shared .align 16 .b8 dynamic[];
.visible .entry main(.param .u64 result)
{bounds}
{{
{body}
ret;
}}
"""


def two_roles(increase: int, decrease: int) -> str:
    return f"""\
.reg .pred loads; .reg .u32 thread; .reg .u64 out;
ld.param.u64 out, [result];
mov.u32 thread, %tid.x;
setp.lt.u32 loads, thread, 128;
@loads bra LOAD;
.loc 1 40 0
setmaxnreg.inc.sync.aligned.u32 {increase};
st.global.u32 [out], thread;
bra END;
LOAD:
.loc 1 44 0
setmaxnreg.dec.sync.aligned.u32 {decrease};
st.global.u32 [out+4], thread;
END:"""


PRODUCT = """\
.reg .u64 out, tile; .reg .f32 x<4>; .reg .pred add;
ld.param.u64 out, [result];
mov.u64 tile, 4611686293305294848;
mov.f32 x0, 0f00000000; mov.f32 x1, x0; mov.f32 x2, x0; mov.f32 x3, x0; setp.ne.u32 add, 1, 0;
wgmma.fence.sync.aligned;
.loc 1 25 0
wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {x0, x1, x2, x3}, tile, tile, add, 1, 1;
wgmma.commit_group.sync.aligned;
.loc 1 28 0
add.f32 x1, x1, x1;
.loc 1 29 0
wgmma.wait_group.sync.aligned 0;
st.global.f32 [out], x0; st.global.f32 [out+4], x1; st.global.f32 [out+8], x2; st.global.f32 [out+12], x3;"""


def exchange(values: int) -> str:
    loads = "\n".join(f"ld.volatile.global.f32 x{i}, [out+{4 * i}];" for i in range(values))
    stores = "\n".join(f"st.volatile.global.f32 [out+{4 * i}], x{values - 1 - i};" for i in range(values))
    return f".reg .u64 out; .reg .f32 x<{values}>;\nld.param.u64 out, [result];\n{loads}\nbar.sync 0;\n{stores}"


def test_report(ptxas):
    static = ".shared .align 4 .b8 mine[96];\n.reg .u32 x; ld.shared.u32 x, [mine]; st.shared.u32 [dynamic], x;"
    binary = assemble(kernel(static), "sm_90a")
    assert binary.image[:4] == b"\x7fELF" and binary.target == "sm_90a" and binary.tool == str(ptxas)
    assert 0 < binary.registers < 20 and (binary.spill_bytes, binary.stack_bytes, binary.shared_bytes) == (0, 0, 96)
    assert 0 < binary.seconds < 60 and "Compiling entry function 'main'" in binary.log
    assert ".text.main" in sections(binary.image)


def test_error_names_line_and_source(ptxas):
    with pytest.raises(AssemblyError) as caught:
        assemble(kernel(".reg .u32 x;\n.loc 1 33 0\nmov.u32 x, 1;\nbogus.u32 x;"), "sm_90a")
    first = caught.value.problems[0]
    assert (first.source, first.text) == ("kernel.py:33", "bogus.u32 x;")
    assert "bogus" in caught.value.log and "kernel.py:33: Not a name of any known instruction" in str(caught.value)


def test_register_read_in_flight(ptxas):
    with pytest.raises(AssemblyError, match=r"kernel\.py:28: C7517 .*\n.*add\.f32 x1, x1, x1;"):
        assemble(kernel(PRODUCT), "sm_90a")
    repaired = PRODUCT.replace("add.f32 x1, x1, x1;\n", "")
    assert assemble(kernel(repaired), "sm_90a").registers > 0


def test_spill(ptxas):
    with pytest.raises(AssemblyError, match=r"\d+ bytes spilled, \d+ bytes of stack, with 32 registers"):
        assemble(kernel(exchange(64), ".maxnreg 32"), "sm_90a")
    assert assemble(kernel(exchange(64)), "sm_90a").spill_bytes == 0


def test_stack(ptxas):
    body = """\
.reg .u64 out, at; .reg .u32 x; .local .b32 table[64];
ld.param.u64 out, [result]; ld.global.u32 x, [out];
mov.u64 at, table; mad.wide.u32 at, x, 4, at;
st.local.u32 [at], x; ld.local.u32 x, [at+4]; st.global.u32 [out], x;"""
    with pytest.raises(AssemblyError, match="0 bytes spilled, 256 bytes of stack"):
        assemble(kernel(body), "sm_90a")


def test_ignored_budget(ptxas):
    with pytest.raises(AssemblyError, match="C7508") as caught:
        assemble(kernel(two_roles(232, 40), bounds=""), "sm_90a")
    assert {problem.source for problem in caught.value.problems} >= {"kernel.py:40", "kernel.py:44"}


def test_budget_dropped_without_a_word(ptxas, tmp_path):
    """What a linking assembler does: the log says nothing of it, the machine code lacks the instruction."""
    quiet = tmp_path / "ptxas"
    quiet.write_text(
        f"""#!/bin/sh
[ "$1" = --version ] && exec {ptxas.path} --version
sed -i s/^setmaxnreg.*// program.ptx
exec {ptxas.path} "$@"
"""
    )
    quiet.chmod(0o755)
    tool = type(ptxas)(quiet, "test")
    with pytest.raises(AssemblyError, match=r"kernel\.py:40: setmaxnreg is not in .*: no USETMAXREG of 232"):
        assemble(kernel(two_roles(232, 40)), "sm_90a", tool)


@pytest.mark.parametrize(("target", "version"), [("sm_90a", "8.0"), ("sm_100a", "8.6")])
@pytest.mark.parametrize("increase", [168, 176, 208, 232, 240, 256])
def test_budgets_in_the_machine_code(ptxas, tmp_path, target, version, increase):
    decrease = 24 + (increase - 168) // 16 * 8
    image = assemble(kernel(two_roles(increase, decrease), target=target, version=version), target).image
    assert sorted(register_budgets(image)) == [decrease, increase]
    assert sorted(disassembled_budgets(image, tmp_path)) == [decrease, increase]


def test_no_budget_where_the_disassembler_sees_none(ptxas, tmp_path):
    for body in (exchange(64), PRODUCT.replace("add.f32 x1, x1, x1;\n", "")):
        image = assemble(kernel(body), "sm_90a").image
        assert register_budgets(image) == disassembled_budgets(image, tmp_path) == []


def disassembled_budgets(image: bytes, folder) -> list[int]:
    try:
        tool = find_nvdisasm()
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    (folder / "program.cubin").write_bytes(image)
    listing = tool.run("-c", "program.cubin", folder=folder).stdout
    return [int(count, 0) for count in re.findall(r"USETMAXREG.*?(0x[0-9a-f]+) ;", listing)]


def test_time_limit(ptxas, tmp_path):
    slow = tmp_path / "ptxas"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo V1.0; exit; }\nexec sleep 5\n')
    slow.chmod(0o755)
    with pytest.raises(AssemblyError, match=r"ptxas 1\.0 for sm_90a:\n  no result after 0\.1 s"):
        assemble("", "sm_90a", type(ptxas)(slow, "test"), timeout=0.1)


def test_elf_against_pyelftools(ptxas):
    elffile = pytest.importorskip("elftools.elf.elffile")
    import io

    image = assemble(kernel(two_roles(232, 40)), "sm_90a").image
    expected = {section.name: section for section in elffile.ELFFile(io.BytesIO(image)).iter_sections()}
    found = sections(image)
    assert found.keys() == expected.keys()
    assert all(found[name] == expected[name].data() for name in found if expected[name]["sh_type"] != "SHT_NOBITS")


@pytest.mark.parametrize("damage", [lambda i: b"text", lambda i: i[:100], lambda i: i[: len(i) // 2]])
def test_damaged_elf(ptxas, damage):
    with pytest.raises(ValueError, match="ELF file"):
        sections(damage(assemble(kernel(""), "sm_90a").image))
