"""From a problem to a launch: candidates, choice, and the cache on the call path."""

from kingpost.plan.cache import forget, planned
from kingpost.plan.choice import Plan

__all__ = ["Plan", "forget", "planned"]
