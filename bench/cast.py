"""The portable casts against the rate at which the GPU copies: 8192 x 7168 bfloat16 to e4m3, scaled "1x128".

Rates are bytes read and written over time; the copy moves as many bytes as the fused cast, in the same process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from harness import copies, measure, record

import kingpost as kp
from kingpost import registry
from kingpost.arrays import view
from kingpost.portable import cast, silu_mul_cast
from kingpost.targets.nvidia.targets import SM_90A

GOAL = 0.85  # of the copy's rate


@dataclass(frozen=True)
class Case:
    """A cast of sets of arrays: (x, data, scales) each, the calls that do it, and the bytes that one moves."""

    sets: list[tuple[Any, Any, Any]]
    calls: list[Callable[[], Any]]
    bytes: int


def case(kernel: Any, rows: int, columns: int, source_columns: int, column_major: bool) -> Case:
    device = registry.find("cuda:0")
    blocks = -(-columns // 128)
    moved = rows * (2 * source_columns + columns + 4 * blocks)
    sets, calls = [], []
    for _ in range(copies(moved)):
        x = torch.randn(rows, source_columns, device="cuda", dtype=torch.bfloat16)
        data = torch.empty(rows, columns, device="cuda", dtype=torch.float8_e4m3fn)
        scales = (
            torch.empty(blocks, rows, device="cuda").T if column_major else torch.empty(rows, blocks, device="cuda")
        )
        call = device.prepare(kernel.launch(SM_90A, view(x), view(data), view(scales)))
        sets.append((x, data, scales))
        calls.append(lambda call=call: call(torch.cuda.current_stream().cuda_stream))
    return Case(sets, calls, moved)


def copy_calls(bytes: int) -> list[Callable[[], Any]]:
    """torch's copies from one buffer to another, which read and write `bytes` together."""
    pairs = [torch.empty(2, bytes // 2, device="cuda", dtype=torch.uint8) for _ in range(copies(bytes))]
    return [lambda pair=pair: pair[1].copy_(pair[0]) for pair in pairs]


def check(name: str, case: Case) -> None:
    """The first set against torch: the cast to the bit, the fused one to within a code."""
    x, data, scales = case.sets[0]
    case.calls[0]()
    if name.startswith("silu"):
        gate, up = x.float().chunk(2, dim=1)
        product = torch.nn.functional.silu(gate) * up
        error = (kp.dequantize(kp.ScaledTensor(data, scales, "1x128")) - product).abs()
        assert (error <= product.abs() / 16 + scales.repeat_interleave(128, dim=1) * 2**-9).all(), name
    else:
        wanted = kp.quantize(x, "1x128")
        assert torch.equal(data.view(torch.uint8), wanted.data.view(torch.uint8)), name
        assert torch.equal(scales, wanted.scales), name


def main(rows: int = 8192, columns: int = 7168, out: Path = Path("bench/results/cast.json")) -> None:
    torch.manual_seed(0)
    cases = {
        "cast": case(cast, rows, columns, columns, column_major=False),
        "cast, scales column-major": case(cast, rows, columns, columns, column_major=True),
        "silu_mul_cast": case(silu_mul_cast, rows, columns, 2 * columns, column_major=False),
        "silu_mul_cast, scales column-major": case(silu_mul_cast, rows, columns, 2 * columns, column_major=True),
    }
    for name, each in cases.items():
        check(name, each)
    bytes = {name: each.bytes for name, each in cases.items()} | {"copy": cases["silu_mul_cast"].bytes}
    timings = measure({"copy": copy_calls(bytes["copy"])} | {n: c.calls for n, c in cases.items()}, sustained=False)
    rates = {name: bytes[name] / timing.median * 1e-6 for name, timing in timings.items()}
    for name, rate in rates.items():
        share = rate / rates["copy"]
        print(f"{name:<36} {timings[name].median:7.1f} us  {rate:5.2f} TB/s  {100 * share:5.1f} % of the copy")
    results = [
        {"name": name, "microseconds": timings[name].median, "bytes": bytes[name], "of_copy": rate / rates["copy"]}
        for name, rate in rates.items()
    ]
    record(out, results, rows=rows, columns=columns, goal=GOAL)


if __name__ == "__main__":
    typer.run(main)
