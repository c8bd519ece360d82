"""The text around a kernel's instructions: what the assembler, the linker and the runtime want to know of it.

Sources: LLVM, "User Guide for AMDGPU Backend": assembler directives and code object metadata of version 5 and 6.
"""

from __future__ import annotations

from collections.abc import Iterator

from kingpost.program import Program
from kingpost.targets.amd.machine import Line
from kingpost.targets.amd.registers import Usage

GRID_BYTES = 4
TRIPLE = "amdgcn-amd-amdhsa"


def object_text(program: Program, places: dict[str, int], lines: list[Line], usage: Usage) -> str:
    """places: the offset of each argument by name, of the grid's size as ""."""
    name, argument_bytes = program.name, places[""] + GRID_BYTES
    directives = {
        "group_segment_fixed_size": program.shared_bytes,
        "private_segment_fixed_size": 0,
        "kernarg_size": argument_bytes,
        "user_sgpr_kernarg_segment_ptr": 1,
        "user_sgpr_count": 2,
        "system_sgpr_workgroup_id_x": 1,
        "system_sgpr_workgroup_id_y": 0,
        "system_sgpr_workgroup_id_z": 0,
        "system_vgpr_workitem_id": 0,
        "next_free_vgpr": usage.unified,
        "accum_offset": usage.accumulation_offset,
        "next_free_sgpr": max(3, usage.scalar),
        "float_round_mode_32": 0,  # to nearest even
        "float_round_mode_16_64": 0,
        "float_denorm_mode_32": 3,  # subnormals in and out
        "float_denorm_mode_16_64": 3,
        "ieee_mode": 0,  # min and max give the number where the other is any NaN
        "dx10_clamp": 1,
    }
    return "\n".join([
        f'.amdgcn_target "{TRIPLE}--{program.target}"',
        ".amdhsa_code_object_version 6",
        ".text",
        f".globl {name}",
        ".p2align 8",
        f".type {name},@function",
        f"{name}:",
        *_instructions(lines),
        f".size {name}, .-{name}",
        ".rodata",
        ".p2align 6",
        f".amdhsa_kernel {name}",
        *(f"  .amdhsa_{key} {value}" for key, value in directives.items()),
        ".end_amdhsa_kernel",
        ".amdgpu_metadata",
        *_metadata(program, places, argument_bytes, usage),
        ".end_amdgpu_metadata",
        "",
    ])  # fmt: skip


def _instructions(lines: list[Line]) -> Iterator[str]:
    at = None
    for line in lines:
        if line.source is not None and line.source != at and line.label is None:
            at = line.source
            yield f"  ; {at}"
        yield from line.text() if line.label else (f"  {text}" for text in line.text())


def _metadata(program: Program, places: dict[str, int], argument_bytes: int, usage: Usage) -> Iterator[str]:
    threads = program.warps * program.lanes
    facts = {
        ".name": program.name,
        ".symbol": f"{program.name}.kd",
        ".kernarg_segment_size": argument_bytes,
        ".kernarg_segment_align": 8,
        ".group_segment_fixed_size": program.shared_bytes,
        ".private_segment_fixed_size": 0,
        ".wavefront_size": program.lanes,
        ".sgpr_count": usage.scalar + 6,  # vcc and the like count
        ".vgpr_count": usage.unified,
        ".agpr_count": usage.accumulation,
        ".max_flat_workgroup_size": threads,
    }
    yield "amdhsa.version: [1, 2]"
    yield f"amdhsa.target: {TRIPLE}--{program.target}"
    yield "amdhsa.kernels:"
    yield "  - .args:"
    for parameter in program.parameters:
        place = f".offset: {places[parameter.name]}, .size: {parameter.bytes}, .value_kind: by_value"
        yield f"      - {{.name: {parameter.name}, {place}}}"
    yield f"      - {{.offset: {places['']}, .size: {GRID_BYTES}, .value_kind: hidden_block_count_x}}"
    yield f"    .reqd_workgroup_size: [{threads}, 1, 1]"
    yield from (f"    {key}: {value}" for key, value in facts.items())
