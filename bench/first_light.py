"""Time of the block-scaled product over torch's per-tensor one: `python bench/first_light.py RESULT.json`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from harness import LARGE_FLOP, measure, record
from products import kingpost_calls, product, torch_tensorwise_calls, worst_error

SHAPES = (
    (4096, 4096, 7168),
    (4096, 7168, 16384),
    (4096, 24576, 1536),
    (4096, 2112, 7168),
    (64, 4096, 7168),
    (1, 7168, 2048),
)


def main(path: Path) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    results = []
    for m, n, k in SHAPES:
        p = product(m, n, k)
        sustained = p.flop > LARGE_FLOP
        error = worst_error(p)
        times = measure({"kingpost": kingpost_calls(p), "torch per-tensor fast": torch_tensorwise_calls(p)}, sustained)
        ours, theirs = times["kingpost"], times["torch per-tensor fast"]
        results.append(
            {
                "m": m,
                "n": n,
                "k": k,
                "load": "sustained" if sustained else "burst",
                "error": error,
                "kingpost_us": ours.median,
                "torch_us": theirs.median,
                "ratio": ours.median / theirs.median,
                "kingpost_rounds_us": ours.rounds,
                "torch_rounds_us": theirs.rounds,
                "sets": len(p.sets),
            }
        )
        print(
            f"{m:>6} {n:>6} {k:>6}  kingpost {ours.median:8.2f} us  torch {theirs.median:8.2f} us  "
            f"ratio {ours.median / theirs.median:.3f}  {p.flop / ours.median / 1e6:7.0f} TFLOP/s  error {error:.2e}"
        )
    record(path, results, method="graphs over rotating buffers, implementations interleaved, medians of rounds")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
