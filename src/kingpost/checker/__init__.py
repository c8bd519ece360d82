"""Programs checked on a CPU: under every schedule, against the chip's arithmetic. `kingpost check` and `kp.check`.

report = checker.check(launch)
checker.assert_clean(launch)          # in a test
"""

from kingpost.checker.cases import Case, Trial, cases
from kingpost.checker.check import SCHEDULES, Report, Run, assert_clean, check

__all__ = ["SCHEDULES", "Case", "Report", "Run", "Trial", "assert_clean", "cases", "check"]
