"""What `kingpost check` prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console

from kingpost.checker.check import VERSION, Report
from kingpost.checker.examine import Question, clean, examine


def run(question: Question, as_json: bool, out: Console, progress: Callable[[str], None]) -> bool:
    """Examine every case, print a line of each and a summary, or JSON; the verdict. progress: told how far it is."""
    total, reports = len(question.cases()), []
    for report in _counted(examine(question), total, progress):
        reports.append(report)
        if not as_json:
            _print(report, out)
    if as_json:
        out.file.write(as_text(question, reports) + "\n")
    else:
        _summarise(reports, out)
    return clean(reports)


def as_text(question: Question, reports: Sequence[Report]) -> str:
    """All reports as one JSON object."""
    head = {"version": VERSION, "what": question.what, "clean": clean(reports)}
    return json.dumps({**head, "cases": [report.as_dict() for report in reports]}, indent=2)


def _counted(reports: Iterable[Report], total: int, progress: Callable[[str], None]) -> Iterable[Report]:
    for done, report in enumerate(reports, 1):
        progress(f"{done} of {total}: {report.name}")
        yield report


def _print(report: Report, out: Console) -> None:
    verdict = "[green]clean[/]" if report.clean else "[red]not clean[/]"
    instructions = sum(run.counters.get("instructions", 0) for run in report.runs)
    out.print(verdict, end="  ")
    out.print(f"{report.name}  {instructions:,} instructions, {report.seconds:.2f} s", markup=False, soft_wrap=True)
    for run in report.runs:
        for finding in run.findings:
            out.print(f"  {run.schedule}: {finding}", markup=False, soft_wrap=True)


def _summarise(reports: Sequence[Report], out: Console) -> None:
    bad = sum(not report.clean for report in reports)
    runs = sum(len(report.runs) for report in reports)
    seconds = sum(report.seconds for report in reports)
    cases = f"{len(reports)} {'case' if len(reports) == 1 else 'cases'}"
    verdict = f"[red]{bad} of {cases} not clean[/]" if bad else f"[green]{cases} clean[/]"
    out.print(f"{verdict}, {runs} runs, {seconds:.1f} s of emulation")
