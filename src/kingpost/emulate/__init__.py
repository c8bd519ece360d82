"""The second reader: a program's result on a CPU, bit for bit, and what it did wrong."""

from kingpost.emulate.block import Action, Block
from kingpost.emulate.order import ASYNC, GENERIC
from kingpost.emulate.report import DeadlockError, EmulationError, Finding, Report
from kingpost.emulate.run import run
from kingpost.emulate.schedule import Early, Late, Random, Schedule, schedule
from kingpost.emulate.warp import ASYNCHRONOUS, Wait, Warp

__all__ = [
    "ASYNC",
    "ASYNCHRONOUS",
    "Action",
    "Block",
    "DeadlockError",
    "Early",
    "EmulationError",
    "Finding",
    "GENERIC",
    "Late",
    "Random",
    "Report",
    "Schedule",
    "Wait",
    "Warp",
    "run",
    "schedule",
]
