"""From a program's text to a loadable binary: finding tools, running them, and the cache of what they made."""

from __future__ import annotations

from kingpost.assemble import cache, ptxas
from kingpost.assemble.binary import AssemblyError, Binary, Problem
from kingpost.assemble.tools import AssemblerNotFound, Tool, find_nvdisasm, find_ptxas

__all__ = [
    "AssemblerNotFound",
    "AssemblyError",
    "Binary",
    "Problem",
    "Tool",
    "build",
    "cache",
    "find_nvdisasm",
    "find_ptxas",
]


def build(text: str, target: str) -> Binary:
    """The binary of PTX `text` for `target` ("sm_90a"), from the cache or by ptxas.

    A machine without ptxas takes the cached binary of any ptxas. Raises AssemblerNotFound where there is none of
    either, and AssemblyError (see ptxas.assemble) for a text that is refused.
    """
    try:
        tool = find_ptxas()
    except AssemblerNotFound:
        if found := cache.load(text, target):
            return found
        raise
    return cache.get_or_build(text, target, str(tool), lambda: ptxas.assemble(text, target, tool))
