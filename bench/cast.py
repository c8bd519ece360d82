"""The portable casts against the rate at which the GPU copies: 8192 x 7168 bfloat16 to e4m3, in every way of scaling,
and the pass that transposes codes.

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
from kingpost import quantization, registry
from kingpost.arrays import view
from kingpost.portable import cast, masked_silu_mul_cast, silu_mul_cast, transpose, transposed_cast
from kingpost.targets.nvidia.targets import SM_90A

GOAL = 0.85  # of the copy's rate


@dataclass(frozen=True)
class Case:
    """A pass over sets of arrays, what is read first: the calls that do it, and the bytes that one moves."""

    sets: list[tuple[Any, ...]]
    calls: list[Callable[[], Any]]
    bytes: int


def case(kernel: Any, bytes: int, arrays: Callable[[], tuple[Any, ...]], **options: Any) -> Case:
    """arrays: new arrays for one call; there are as many sets as keep the caches from serving the next."""
    device = registry.find("cuda:0")
    sets, calls = [], []
    for _ in range(copies(bytes)):
        each = arrays()
        call = device.prepare(kernel.launch(SM_90A, *map(view, each), **options))
        sets.append(each)
        calls.append(lambda call=call: call(torch.cuda.current_stream().cuda_stream))
    return Case(sets, calls, bytes)


def numbers(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def codes(*shape: int) -> Any:
    return torch.empty(*shape, device="cuda", dtype=torch.float8_e4m3fn)


def scales(*shape: int) -> Any:
    return torch.empty(*shape, device="cuda")


def row_case(kernel: Any, rows: int, columns: int, wide: int, column_major: bool) -> Case:
    """Scaled "1x128", of rows of `wide` times `columns` numbers."""
    blocks = -(-columns // 128)

    def arrays() -> tuple[Any, ...]:
        of_rows = scales(blocks, rows).T if column_major else scales(rows, blocks)
        return numbers(rows, wide * columns), codes(rows, columns), of_rows

    return case(kernel, rows * (2 * wide * columns + columns + 4 * blocks), arrays)


def other_cases(rows: int, columns: int) -> dict[str, Case]:
    down, across, size = -(-rows // 128), -(-columns // 128), rows * columns
    groups, taken = 8, rows // 16  # of each group's rows, half are written

    def square() -> tuple[Any, ...]:
        return numbers(rows, columns), codes(rows, columns), scales(down, across)

    def turned() -> tuple[Any, ...]:
        return numbers(rows, columns), codes(columns, rows), scales(columns, down)

    def grouped() -> tuple[Any, ...]:
        ends = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * (rows // groups // 16 * 16)
        return numbers(rows, columns), ends, codes(columns, rows), scales(columns, rows // 128 + groups)

    def masked() -> tuple[Any, ...]:
        counts = torch.full((groups,), taken, device="cuda", dtype=torch.int32)
        each = rows // groups
        return (
            numbers(groups, each, 2 * columns),
            counts,
            codes(groups, each, columns),
            scales(groups, each, across),
        )

    def plain() -> tuple[Any, ...]:
        return numbers(rows, columns).view(torch.uint8)[:, :columns].contiguous(), codes(columns, rows).view(
            torch.uint8
        )

    return {
        "cast, 128x128": case(cast, 3 * size + 4 * down * across, square, scaling="128x128"),
        "transposed_cast": case(transposed_cast, 3 * size + 4 * columns * down, turned),
        "transposed_cast, 8 groups": case(transposed_cast, 3 * size + 4 * columns * down, grouped),
        "masked_silu_mul_cast, half": case(masked_silu_mul_cast, groups * taken * (5 * columns + 4 * across), masked),
        "transpose": case(transpose, 2 * size, plain),
    }


def copy_calls(bytes: int) -> list[Callable[[], Any]]:
    """torch's copies from one buffer to another, which read and write `bytes` together."""
    pairs = [torch.empty(2, bytes // 2, device="cuda", dtype=torch.uint8) for _ in range(copies(bytes))]
    return [lambda pair=pair: pair[1].copy_(pair[0]) for pair in pairs]


def check(name: str, case: Case) -> None:
    """The first set against torch: casts and codes to the bit, the fused ones to within a code."""
    x, *others = case.sets[0]
    case.calls[0]()
    if name == "transpose":
        assert torch.equal(others[0], x.T), name
        return
    data, scales = others[-2:]
    if "silu" in name:
        if x.ndim == 3:
            taken = int(others[0][0])
            x, data, scales = (each[0, :taken].contiguous() for each in (x, data, scales))
        gate, up = x.float().chunk(2, dim=1)
        product = torch.nn.functional.silu(gate) * up
        error = (kp.dequantize(kp.ScaledTensor(data, scales, "1x128")) - product).abs()
        assert (error <= product.abs() / 16 + scales.repeat_interleave(128, dim=1) * 2**-9).all(), name
        return
    if len(others) == 3:  # ends: the first group
        end = int(others[0][0])
        x, data, scales = x[:end], data[:, :end], scales[:, : -(-end // 128)]
    x = x.T if name.startswith("transposed") else x
    wanted = quantization.quantize(x, "128x128" if "128x128" in name else "1x128")
    assert torch.equal(data.contiguous().view(torch.uint8), wanted.data.view(torch.uint8)), name
    assert torch.equal(scales, wanted.scales), name


def main(rows: int = 8192, columns: int = 7168, out: Path = Path("bench/results/cast.json")) -> None:
    torch.manual_seed(0)
    cases = {
        "cast": row_case(cast, rows, columns, 1, column_major=False),
        "cast, scales column-major": row_case(cast, rows, columns, 1, column_major=True),
        "silu_mul_cast": row_case(silu_mul_cast, rows, columns, 2, column_major=False),
        "silu_mul_cast, scales column-major": row_case(silu_mul_cast, rows, columns, 2, column_major=True),
        **other_cases(rows, columns),
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
