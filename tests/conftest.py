"""What every test shares: which tests need a GPU, and how long a generated example may take."""

import ctypes
from functools import cache

import pytest
from hypothesis import settings

# One seed for all machines: a red run is then red for everyone, and a slow machine is not a failure.
settings.register_profile("kingpost", deadline=None, derandomize=True)
settings.load_profile("kingpost")


@cache
def nvidia_gpus() -> int:
    """How many GPUs the NVIDIA driver reports; asked of the driver itself, so that nothing need be installed."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not nvidia_gpus():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
