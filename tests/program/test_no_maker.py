"""The virtual machine names no maker, no chip and no maker's instruction."""

from __future__ import annotations

import re
from pathlib import Path

import kingpost.program

NAMES = r"nvidia|\bamd|cuda|hopper|blackwell|cdna|\bsm_?\d|gfx\d|wgmma|mbarrier|tcgen05|mfma"


def test_no_file_of_the_virtual_machine_names_a_maker() -> None:
    for path in Path(kingpost.program.__file__).parent.glob("*.py"):
        found = re.findall(NAMES, path.read_text(), re.IGNORECASE)
        assert not found, f"{path.name} names {found}"
