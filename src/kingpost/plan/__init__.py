"""From a problem to a launch: candidates, choice, and the cache on the call path."""

from kingpost.plan.cache import forget, planned, recalled, remember, run
from kingpost.plan.choice import Plan, Unsupported

__all__ = ["Plan", "Unsupported", "forget", "planned", "recalled", "remember", "run"]
