"""What any device must show before its results are trusted: the suite behind `kingpost conformance DEVICE`.

results = conformance.run("emulated:sm_90a")
conformance.passed(results)
"""

from kingpost.conformance.check import NOT_OFFERED, PASSED, Result, passed, run

__all__ = ["NOT_OFFERED", "PASSED", "Result", "passed", "run"]
