"""The demo's last step: a kernel with one fence less, which the checker must notice."""

from dataclasses import replace
from linecache import getline
from pathlib import Path

from rich.console import Console

import kingpost
from kingpost.checker import mutation
from kingpost.checker.cases import Case, Trial, find
from kingpost.checker.check import check
from kingpost.program import Source

KERNEL = "sm90_fp8: block scales, 64x16, two stages"
FENCE, FILE = "delete fence.proxy.async.shared::cta", "epilogue.py"


def show_weakened(console: Console) -> bool:
    """Check Hopper's FP8 kernel, then without the fence before its bulk stores; False if either answer is another
    than it should be."""
    (case,) = (each for each in find(KERNEL, "sm_90a") if each.name == KERNEL)
    fence = next(
        each
        for each in mutation.mutants(case.make().launch)
        if each.what == FENCE and Path(each.source.file).name == FILE
    )
    console.print(f"\nThe checker reads Hopper's kernel, [bold]{case.kernel}[/], as written, and with one line gone:")
    whole = check(case)
    console.print(f"  as written       {'clean' if whole.clean else 'not clean'}, under late, early and random order")
    console.print(f"  without          {line(fence.source)}\n{'':19}{fence.source}", highlight=False)
    weak = check(weakened(case, fence), schedules=("early",))
    for finding in weak.findings:
        console.print(f"  [bold green]found[/]            {finding}", highlight=False)
    if weak.clean:
        console.print("  [bold red]Nothing was found.[/]")
    return whole.clean and not weak.clean


def weakened(case: Case, mutant: mutation.Mutant) -> Case:
    """The same operands for a weaker program."""

    def make() -> Trial:
        trial = case.make()
        return replace(trial, launch=mutant.apply(trial.launch))

    return replace(case, make=make)


def line(source: Source) -> str:
    """The text of a line of the repository's."""
    root = Path(kingpost.__file__).parents[1]
    return getline(str(root / source.file), source.line).strip()
