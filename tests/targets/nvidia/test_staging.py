"""How a GPU's device takes arrays of the host there and back: packed, the order of their dimensions kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kingpost.arrays import view
from kingpost.targets.nvidia.device import LINE, CudaDevice


class Buffer:
    """Memory of a device that is not there."""

    def __init__(self, array: np.ndarray) -> None:
        room = np.empty(array.nbytes + 64, np.uint8)
        start = -room.ctypes.data % 64
        self.bytes = room[start : start + array.nbytes]
        self.bytes[...] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        self.pointer = self.bytes.ctypes.data

    @classmethod
    def holding(cls, array: np.ndarray, index: int, stream: int) -> Buffer:
        return cls(array)

    def read(self, array: np.ndarray, stream: int) -> None:
        array.view(np.uint8).reshape(-1)[...] = self.bytes


@pytest.fixture
def device() -> Any:
    return SimpleNamespace(driver=SimpleNamespace(DeviceBuffer=Buffer), index=0, name="cpu")


ARRAYS = {
    "rows": np.arange(60, dtype=np.float32).reshape(5, 12),
    "columns": np.arange(60, dtype=np.float16).reshape(12, 5).T,
    "one row": np.arange(12, dtype=np.float16).reshape(1, 12),
    "one column": np.arange(12, dtype=np.float32).reshape(12, 1),
    "planes turned": np.arange(120, dtype=np.uint8).reshape(5, 3, 8).swapaxes(0, 1),
    "gaps": np.arange(120, dtype=np.float16).reshape(10, 12)[::2, :7],
    "one for all": np.broadcast_to(np.float32(3), (4, 5)),
    "a vector": np.arange(5, dtype=np.int32),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_there_and_back(device: Any, name: str) -> None:
    array = ARRAYS[name]
    copy = CudaDevice._copied(device, view(array), 0)
    np.testing.assert_array_equal(copy.numpy(), array)
    along = [s for n, s in zip(copy.shape, copy.strides) if n > 1 and s != array.itemsize]
    assert copy.pointer % LINE == 0 and not any(s % LINE for s in along)
    back = np.zeros_like(array)
    CudaDevice._copy_back(device, copy, view(back), 0)
    np.testing.assert_array_equal(back, array)


def test_what_is_contiguous_stays_so(device: Any) -> None:
    for array in (ARRAYS["rows"], ARRAYS["columns"], ARRAYS["planes turned"], ARRAYS["one row"]):
        copy = CudaDevice._copied(device, view(array), 0)
        assert [copy.adjacent(i) for i in range(array.ndim)] == [view(array).adjacent(i) for i in range(array.ndim)]
