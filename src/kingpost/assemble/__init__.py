"""From a program's text to a loadable binary: finding tools, running them, and the cache of what they made."""

from __future__ import annotations

from typing import Any

from kingpost.assemble import amdgcn, cache, ptxas
from kingpost.assemble.binary import AssemblyError, Binary, Problem
from kingpost.assemble.tools import AssemblerNotFound, Tool, find_clang, find_nvdisasm, find_ptxas

__all__ = [
    "AssemblerNotFound",
    "AssemblyError",
    "Binary",
    "Problem",
    "Tool",
    "afresh",
    "build",
    "cache",
    "find_clang",
    "find_nvdisasm",
    "find_ptxas",
]


def build(text: str, target: str) -> Binary:
    """The binary of `text` for `target` ("sm_90a" from PTX, "gfx942" from AMDGCN), from the cache or by its assembler.

    A machine without the assembler takes the cached binary of any. Raises AssemblerNotFound where there is none of
    either, and AssemblyError (see ptxas.assemble, amdgcn.assemble) for a text that is refused.
    """
    find, assembler = _assembler(target)
    try:
        tool = find()
    except AssemblerNotFound:
        if found := cache.load(text, target):
            return found
        raise
    return cache.get_or_build(text, target, str(tool), lambda: assembler.assemble(text, target, tool))


def afresh(text: str, target: str) -> Binary:
    """The same without the cache: for texts that nobody will ask for again."""
    find, assembler = _assembler(target)
    binary: Binary = assembler.assemble(text, target, find())
    return binary


def _assembler(target: str) -> Any:
    """What finds the tool for a target, and the module that runs it."""
    return (find_clang, amdgcn) if target.startswith("gfx") else (find_ptxas, ptxas)
