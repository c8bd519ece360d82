"""Every configuration that the planner may pick, beside its model's guess: `python bench/candidates.py OUT.json`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from harness import measure, record
from products import Product, product, torch_tensorwise_calls

import kingpost as kp
from kingpost.arrays import view
from kingpost.registry import Problem, find, product_operands

SHAPES = tuple(
    (m, n, k)
    for n, k in ((4096, 7168), (7168, 2048), (2112, 7168), (24576, 1536), (576, 7168))
    for m in (16, 128, 512, 4096)
)


def calls(candidate, p: Product):
    device = find("cuda:0")
    prepared = []
    for a, w, out in p.sets:
        operands = product_operands(*(view(x, "operand") for x in (a.data, a.scales, w.data, w.scales, out)))
        prepared.append(device.prepare(candidate.bind(operands)))
    return [lambda call=call: call(torch.cuda.current_stream().cuda_stream) for call in prepared]


def main(path: Path) -> None:
    results = []
    for m, n, k in SHAPES:
        p = product(m, n, k)
        format = kp.quantize(torch.zeros(1, 128), "1x128").format
        problem = Problem("mm", n, k, format, format, "1x128", "128x128", view(p.sets[0][2], "out").format)
        candidates = find("cuda:0").candidates(problem)
        implementations = {c.name: calls(c, p) for c in candidates}
        implementations["torch per-tensor fast"] = torch_tensorwise_calls(p)
        times = measure(implementations, sustained=False, rounds=5, milliseconds=3)
        guesses = {c.name: c.microseconds(m) for c in candidates}
        results.append(
            {"m": m, "n": n, "k": k, "us": {name: t.median for name, t in times.items()}, "model_us": guesses}
        )
        print(
            f"{m} {n} {k}: "
            + "; ".join(f"{name} {t.median:.2f} ({guesses.get(name, 0):.1f})" for name, t in times.items())
        )
    record(path, results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
