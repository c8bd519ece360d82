"""What `kingpost check` prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console

from kingpost.checker.check import VERSION
from kingpost.checker.examine import Answer, Question, examine


def run(question: Question, as_json: bool, out: Console, progress: Callable[[str], None]) -> bool:
    """Examine every case, print a line of each and a summary, or JSON; the verdict. progress: told how far it is."""
    answers = []
    for answer in _counted(examine(question), len(question.cases()), progress):
        answers.append(answer)
        if not as_json:
            _print(answer, out)
    if as_json:
        out.file.write(as_text(question, answers) + "\n")
    else:
        _summarise(answers, out)
    return all(answer.clean for answer in answers)


def as_text(question: Question, answers: Sequence[Answer]) -> str:
    """All answers as one JSON object."""
    clean = all(answer.clean for answer in answers)
    head = {"version": VERSION, "what": question.what, "clean": clean}
    return json.dumps({**head, "cases": [answer.as_dict() for answer in answers]}, indent=2)


def _counted(answers: Iterable[Answer], total: int, progress: Callable[[str], None]) -> Iterable[Answer]:
    for done, answer in enumerate(answers, 1):
        progress(f"{done} of {total}: {answer.report.name}")
        yield answer


def _print(answer: Answer, out: Console) -> None:
    report = answer.report
    instructions = sum(run.counters.get("instructions", 0) for run in report.runs)
    out.print("[green]clean[/]" if answer.clean else "[red]not clean[/]", end="  ")
    out.print(f"{report.name}  {instructions:,} instructions, {report.seconds:.2f} s", markup=False, soft_wrap=True)
    for run in report.runs:
        for finding in run.findings:
            out.print(f"  {run.schedule}: {finding}", markup=False, soft_wrap=True)
    for extra in answer.extras:
        for line in (extra.summary, *extra.details):
            out.print(f"  {line}", markup=False, soft_wrap=True)


def _summarise(answers: Sequence[Answer], out: Console) -> None:
    bad = sum(not answer.clean for answer in answers)
    reports = [answer.report for answer in answers]
    runs = sum(len(report.runs) for report in reports)
    seconds = sum(report.seconds for report in reports)
    cases = f"{len(reports)} {'case' if len(reports) == 1 else 'cases'}"
    verdict = f"[red]{bad} of {cases} not clean[/]" if bad else f"[green]{cases} clean[/]"
    out.print(f"{verdict}, {runs} runs, {seconds:.1f} s of emulation")
