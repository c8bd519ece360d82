"""The family "emulated": every maker's chips, on this machine's CPU."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence

from kingpost.registry import Device

DEVICES = {
    "sm_90a": "kingpost.targets.nvidia.device:EMULATED_HOPPER",
    "sm_100a": "kingpost.targets.nvidia.blackwell_device:EMULATED_BLACKWELL",
    "gfx942": "kingpost.targets.amd.device:EMULATED_GFX942",
    "gfx950": "kingpost.targets.amd.device:EMULATED_GFX950",
}


@functools.cache
def _device(target: str) -> Device:
    module, _, attribute = DEVICES[target].partition(":")
    found: Device = getattr(importlib.import_module(module), attribute)
    return found


class _Family:
    def present(self) -> Sequence[Device]:
        return [_device(target) for target in DEVICES]

    def find(self, which: str) -> Device:
        if which not in DEVICES:
            wanted = ", ".join(f"'emulated:{target}'" for target in DEVICES)
            raise ValueError(f"device is 'emulated:{which}'; one of {wanted} is wanted")
        return _device(which)


FAMILY = _Family()
