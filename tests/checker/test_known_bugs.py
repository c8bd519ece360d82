"""The known bugs of every maker: each found in the broken program, and gone from its repaired twin."""

from __future__ import annotations

import pytest

from . import known_bugs_amd, known_bugs_blackwell, known_bugs_hopper
from .known_bugs import SCHEDULES, Bug

NVIDIA = [*known_bugs_hopper.known_bug.bugs, *known_bugs_blackwell.known_bug.bugs]
BUGS = [*NVIDIA, *known_bugs_amd.known_bug.bugs]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_known_bug_is_found(bug: Bug, schedule: str) -> None:
    bug.assert_found(schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_its_repaired_twin_is_clean(bug: Bug, schedule: str) -> None:
    bug.assert_repaired(schedule)


@pytest.mark.parametrize("bug", [bug for bug in NVIDIA if bug.grid == 1], ids=str)
def test_no_order_of_its_repaired_twin_goes_wrong(bug: Bug) -> None:
    bug.assert_searched()
