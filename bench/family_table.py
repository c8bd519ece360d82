"""The results of family.py as a table in Markdown: `python bench/family_table.py bench/results/family_h200.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TIMES = "kingpost_us", "deepgemm_us"
NOT_SIZES = {"member", "flop", "bytes", "speed", "error", "differing", "elements", "load", "sets", "failed", "host"}


def sizes(entry: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in entry.items() if k not in NOT_SIZES and not k.endswith("_us"))


def row(entry: dict[str, Any]) -> str:
    """member | sizes | kingpost us | DeepGEMM us | speed | TFLOP/s | error against DeepGEMM"""
    cells = [entry["member"], sizes(entry)]
    cells += [f"{entry[name]:.1f}" if name in entry else "-" for name in TIMES]
    cells.append(f"{entry['speed']:.2f}" if "speed" in entry else "-")
    cells.append(
        f"{entry['flop'] / entry['kingpost_us'] / 1e6:.0f}" if {"flop", "kingpost_us"} <= entry.keys() else "-"
    )
    if "failed" in entry:
        cells.append("; ".join(f"{name}: {why.split(chr(10))[0][:80]}" for name, why in entry["failed"].items()))
    elif "error" in entry:
        cells.append(f"{entry['error']:.1e}" if entry["differing"] else "bits equal")
    else:
        cells.append("-")
    return f"| {' | '.join(cells)} |"


def main(path: Path) -> None:
    recorded = json.loads(path.read_text())
    print("| member | sizes | kingpost, us | DeepGEMM, us | speed | TFLOP/s | results |\n" + "|---" * 7 + "|")
    for entry in sorted(recorded["results"], key=lambda entry: entry["member"]):
        print(row(entry))
    print("\nThe host's time for a call:\n\n| member | sizes | kingpost, us | DeepGEMM, us |\n" + "|---" * 4 + "|")
    for entry in recorded["host"]:
        times = " | ".join(f"{entry[name]:.1f}" if name in entry else "-" for name in TIMES)
        print(f"| {entry['member']} | {sizes(entry)} | {times} |")
    for missing in recorded["not_run"]:
        print(f"\nNot run: {missing}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
