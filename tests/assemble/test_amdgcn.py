"""AMDGCN to a code object: by the real tool where there is one, complaints with their Python line, the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from kingpost import assemble
from kingpost.assemble import AssemblerNotFound, AssemblyError, Tool, find_clang
from kingpost.assemble.amdgcn import assemble as assemble_amdgcn
from kingpost.assemble.amdgcn import python_line
from kingpost.assemble.elf import sections


@pytest.fixture
def clang() -> Tool:
    """The real one; skips the test without it."""
    try:
        return find_clang()
    except AssemblerNotFound as error:
        pytest.skip(str(error))


def kernel(*body: str, target: str = "gfx942") -> str:
    lines = "\n".join(f"  {line}" for line in body)
    return f"""\
.amdgcn_target "amdgcn-amd-amdhsa--{target}"
.text
.globl k
.p2align 8
.type k,@function
k:
{lines}
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel k
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 8
  .amdhsa_accum_offset 8
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--{target}
amdhsa.kernels:
  - .name: k
    .symbol: k.kd
    .kernarg_segment_size: 8
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 96
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 14
    .vgpr_count: 8
    .max_flat_workgroup_size: 64
.end_amdgpu_metadata
"""


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_a_kernel_becomes_a_code_object(clang: Tool, target: str) -> None:
    binary = assemble_amdgcn(kernel("v_mov_b32 v1, v0", target=target), target)
    assert (binary.registers, binary.shared_bytes, binary.spill_bytes, binary.stack_bytes) == (8, 96, 0, 0)
    assert (binary.target, binary.tool) == (target, str(clang))
    found = sections(binary.image)
    assert {".text", ".rodata", ".note", ".dynsym"} <= set(found)
    assert len(found[".rodata"]) == 64  # the kernel's descriptor


def test_instructions_of_the_newer_chip_are_refused_on_the_older(clang: Tool) -> None:
    newer = "v_cvt_pk_bf16_f32 v1, v2, v3"
    assert assemble_amdgcn(kernel(newer, target="gfx950"), "gfx950")
    with pytest.raises(AssemblyError, match="not supported on this GPU"):
        assemble_amdgcn(kernel(newer), "gfx942")


def test_a_complaint_names_the_python_line(clang: Tool) -> None:
    with pytest.raises(AssemblyError) as info:
        assemble_amdgcn(kernel("; kernel.py:27", "v_mov_b32 v1, v0", "; kernel.py:28", "v_wrong v1, v0"), "gfx942")
    (problem,) = info.value.problems
    assert (problem.source, problem.text) == ("kernel.py:28", "v_wrong v1, v0")
    assert "kernel.py:28: invalid instruction" in str(info.value)
    assert "v_wrong" in info.value.log


def test_too_many_scalars_for_a_vector_instruction_are_refused(clang: Tool) -> None:
    """What the lowering relies on the assembler to know."""
    with pytest.raises(AssemblyError, match="constant bus"):
        assemble_amdgcn(kernel("v_add_u32 v1, s2, s3"), "gfx942")


def test_a_text_that_takes_too_long_is_given_up(clang: Tool) -> None:
    with pytest.raises(AssemblyError, match="no result after"):
        assemble_amdgcn(kernel(*["v_mov_b32 v1, v0"] * 20000), "gfx942", timeout=0.001)


def test_python_lines_are_those_of_the_last_comment() -> None:
    lines = ["; a.py:1", "  s_nop 0", "  ; b.py:20", "L1:", "  s_nop 1 ; not a line"]
    assert [python_line(lines, n) for n in (1, 2, 3, 5)] == ["a.py:1", "a.py:1", "b.py:20", "b.py:20"]
    assert python_line(["s_nop 0"], 1) == ""


def test_build_picks_the_assembler_by_target_and_caches(
    clang: Tool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kernel("v_mov_b32 v1, v0")
    built = assemble.build(text, "gfx942")
    assert built.image[:4] == b"\x7fELF" and list(folder.glob("*/zig*.bin" if clang.name == "zig" else "*/*.bin"))
    assemble.cache._memo.clear()
    monkeypatch.setattr(assemble.amdgcn, "assemble", lambda *_: pytest.fail("assembled again"))
    assert assemble.build(text, "gfx942").image == built.image


def test_rocms_clang_is_taken_with_its_linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clang without ld.lld beside it is none."""
    folder = tmp_path / "llvm/bin"
    folder.mkdir(parents=True)
    for name in ("clang", "ld.lld"):
        (folder / name).write_text("#!/bin/sh\necho version 20.0.1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(assemble.tools, "_package_folders", lambda package: [])
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert (find_clang().origin, str(find_clang())) == ("ROCm", "clang 20.0.1")
    (folder / "ld.lld").unlink()
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(AssemblerNotFound, match="pip install ziglang"):
        find_clang()
