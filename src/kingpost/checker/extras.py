"""What may be asked beyond a run under each schedule: a search of all orders, and whether mutants are noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kingpost.checker import mutation
from kingpost.checker.verdict import Verdict, verdict
from kingpost.emulate import search
from kingpost.registry import Case

ENOUGH = 0.95  # of the mutants that do something else: a kernel of which fewer are caught is not guarded


@dataclass(frozen=True)
class Wish:
    """Which extras are wanted, by their names. schedules: that mutants are run under. sample: how many of a case's
    mutants, drawn from `seed`; None for all."""

    names: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    sample: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Extra:
    """What came of one. summary: a few words; details: a line each; data: for JSON."""

    name: str
    good: bool
    summary: str
    details: tuple[str, ...]
    data: dict[str, Any]


def examined(case: Case, cases: Sequence[Case], wish: Wish) -> list[Extra]:
    """Every extra that is wanted, of a case that is clean. cases: of the same program, itself among them."""
    extras = (EXTRAS[name](case, cases, wish) for name in wish.names)
    return [extra for extra in extras if extra is not None]


def exhaustive(case: Case, cases: Sequence[Case], wish: Wish) -> Extra:
    """Every order in which the blocks can synchronise."""
    launch = case.make().launch
    if launch.program.cluster > 1:
        return Extra("exhaustive", False, "not searched: blocks in clusters are not", (), {})
    found = search.search_launch(launch)
    bad = [str(each) for each in found if isinstance(each.outcome, search.Found)]
    unfinished = [str(each) for each in found if isinstance(each.outcome, search.Unfinished) or not each.settled]
    states = sum(each.outcome.states for each in found)
    data = {"states": states, "skeletons": len(found), "found": bad, "unfinished": unfinished}
    summary = f"{len(bad)} orders go wrong" if bad else "no order goes wrong"
    if unfinished:
        summary += f", {len(unfinished)} of {len(found)} skeletons not searched to the end"
    return Extra("exhaustive", not bad, f"{summary} ({states:,} states)", (*bad, *unfinished), data)


def mutate(case: Case, cases: Sequence[Case], wish: Wish) -> Extra | None:
    """Every way that the program can be weakened by one decision, or a sample: each until one of its cases shows it.
    Asked once, of the program's first case that is for it; None of the others. Of a sample, a miss counts unless the
    case says why it does no harm."""
    cases = [each for each in cases if each.mutants]
    if not cases or case is not cases[0]:
        return None
    made = mutation.mutants(case.make().launch)
    chosen = made if wish.sample is None else mutation.sample(made, wish.sample, wish.seed)
    results = [(each, _verdict(cases, each, wish)) for each in chosen]
    caught = [each for each, found in results if found.caught]
    equivalent = [f"{each}: {found.equivalent}" for each, found in results if found.equivalent]
    missed = [each for each, found in results if not found.caught and not found.equivalent]
    sentences = [case.harmless.get(f"{each.what}, {Path(each.source.file).name}") for each in missed]
    share = len(caught) / (len(caught) + len(missed)) if caught or missed else 1.0
    data = {
        "mutants": len(made),
        "run": len(chosen),
        "caught": len(caught),
        "equivalent": equivalent,
        "missed": [str(each) for each in missed],
    }
    summary = (
        f"{len(caught)} of {len(caught) + len(missed)} mutants caught ({100 * share:.1f} %), "
        f"{len(equivalent)} that do the same"
    )
    good = share >= ENOUGH or (wish.sample is not None and all(sentences))
    details = (f"missed: {each}" + (f": {why}" if why else "") for each, why in zip(missed, sentences))
    return Extra("mutate", good, summary, tuple(details), data)


def _verdict(cases: Sequence[Case], mutant: mutation.Mutant, wish: Wish) -> Verdict:
    for case in cases:
        found = verdict(case, mutant, wish.schedules, wish.seed)
        if found.caught or found.equivalent:
            break
    return found


EXTRAS: dict[str, Callable[[Case, Sequence[Case], Wish], Extra | None]] = {"exhaustive": exhaustive, "mutate": mutate}
