"""Devices as users name, find and print them."""

import pytest

import kingpost as kp
from kingpost import registry


def test_devices_print_their_names() -> None:
    printed = repr(kp.devices())
    assert "<cpu: numpy, " in printed and "<emulated:sm_90a: " in printed


def test_a_device_is_found_by_any_of_its_names() -> None:
    cpu = registry.find("cpu")
    assert registry.find(cpu) is cpu
    torch = pytest.importorskip("torch")
    assert registry.find(torch.device("cpu")) is cpu


@pytest.mark.parametrize("device", ["tpu", "", 0, None, ["cpu"], object])
def test_what_is_no_device(device: object) -> None:
    with pytest.raises(ValueError, match=r"device is .*; one of 'cpu', .*'emulated:sm_90a'.* is wanted"):
        registry.find(device)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cpu:0", "emulated", "emulated:sm_1", "cuda:99", "cuda:x", "cuda:-1"])
def test_what_is_no_device_of_its_family(device: str) -> None:
    with pytest.raises(ValueError, match=f"device is '{device}"):
        registry.find(device)
