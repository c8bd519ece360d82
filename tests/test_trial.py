"""A product tried for every emulated chip: text that assembles."""

from __future__ import annotations

from pathlib import Path

import pytest

from kingpost.assemble import AssemblerNotFound
from kingpost.targets.emulated import DEVICES
from kingpost.trial import Trial

# Partial in M, N and K, so that every mask of a portable product is seen.
SIZES = (5, 24, 144)


@pytest.mark.parametrize("target", DEVICES)
def test_the_chosen_program_assembles(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINGPOST_CACHE", str(tmp_path))
    try:
        made = Trial(*SIZES, target=target).assemble()
    except AssemblerNotFound as error:
        pytest.skip(str(error))
    assert made.binary.spill_bytes == 0
    assert made.binary.target == target and made.text


def test_an_unknown_chip() -> None:
    with pytest.raises(ValueError, match="device is 'emulated:sm_1'; one of 'emulated:sm_90a'"):
        Trial(*SIZES, target="sm_1")
