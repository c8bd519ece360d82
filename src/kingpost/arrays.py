"""Arrays of any library as Views: where the memory is and how to read it, nothing copied."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kingpost import formats
from kingpost.formats import Format


@dataclass(frozen=True, slots=True)
class View:
    """An array as memory.

    pointer: address of element [0, 0, ...]. strides: in bytes. device: "cpu" or "cuda:N". owner: whatever keeps the
    memory alive; hold the View and the memory stays.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: Format
    device: str
    owner: object = field(repr=False, compare=False)

    @property
    def T(self) -> View:
        """All dimensions in reverse order."""
        return View(self.pointer, self.shape[::-1], self.strides[::-1], self.format, self.device, self.owner)

    def adjacent(self, dimension: int) -> bool:
        """Whether neighbours along `dimension` are neighbours in memory (true of a dimension of one element)."""
        return self.shape[dimension] <= 1 or self.strides[dimension] == self.format.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie without gaps, last dimension fastest."""
        pitch = self.format.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size > 1 and stride != pitch:
                return 0 in self.shape
            pitch *= size
        return True

    def extent(self) -> tuple[int, int]:
        """The lowest address and the number of bytes from there that hold every element; (pointer, 0) if none."""
        below = above = 0
        for size, stride in zip(self.shape, self.strides):
            if size == 0:
                return self.pointer, 0
            if stride < 0:
                below += (size - 1) * stride
            else:
                above += (size - 1) * stride
        return self.pointer + below, above - below + self.format.itemsize

    def numpy(self) -> np.ndarray:
        """The same memory as a numpy array (ml_dtypes for float8 and bfloat16). Raises ValueError off the host."""
        if self.device != "cpu":
            raise ValueError(f"view is on {self.device}; wanted host memory")
        owner, itself = self.owner, (self.shape, self.strides, self.format.dtype)
        if isinstance(owner, np.ndarray) and (owner.shape, owner.strides, owner.dtype) == itself:
            return owner
        if 0 in self.shape:
            return np.empty(self.shape, self.format.dtype)
        return np.asarray(_Memory(self)).view(self.format.dtype)


class _Memory:
    """Host memory in numpy's array interface, keeping its owner alive. Raw bytes, since that knows no ml_dtypes."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.__array_interface__ = {
            "version": 3,
            "data": (view.pointer, False),
            "shape": view.shape,
            "strides": view.strides,
            "typestr": f"|V{view.format.itemsize}",
        }


def view(array: Any, name: str = "array") -> View:
    """`array` as a View: numpy, torch, or what offers __cuda_array_interface__ or, on the host, __dlpack__.

    name: what errors call it. Raises TypeError for anything that is no array, or of a dtype without a format, and
    ValueError for memory on a device that is neither the host nor a CUDA GPU.
    """
    reader = _READERS.get(type(array)) or _reader(type(array), name)
    return reader(array, name)


def library_of(x: Any, name: str = "array") -> str:
    """ "numpy" or "torch". Raises TypeError, calling it `name`, for anything else."""
    if isinstance(x, np.ndarray):
        return "numpy"
    if _is_torch(type(x)):
        return "torch"
    raise TypeError(f"{name} is {_type_name(type(x))}; wanted a numpy array or a torch tensor")


def empty(shape: tuple[int, ...], format: Format, like: Any, device: Any = None) -> Any:
    """A new array, contents undefined, in the library of `like`, and on its device unless `device` names another.

    torch's caching allocator serves torch; numpy arrays exist on "cpu" only (ValueError otherwise).
    """
    if library_of(like, "like") == "torch":
        torch = sys.modules["torch"]
        place = like.device if device is None else device
        return torch.empty(shape, dtype=getattr(torch, format.dtype.name), device=place)
    if device is not None and str(device) != "cpu":
        raise ValueError(f"device is {device!r}; numpy arrays exist on 'cpu' only, wanted a torch tensor")
    return np.empty(shape, format.dtype)


def on_stream(like: Any, stream: Any) -> AbstractContextManager[Any]:
    """While it lasts, torch allocates and fills on the caller's stream, if one is given and `like` is on a GPU.

    A result taken from the current stream's memory could still be in use there when another stream writes it. stream:
    a handle or a torch.cuda.Stream; what is neither is left to the device to refuse.
    """
    if stream is None or not _is_torch(type(like)) or not like.is_cuda:
        return nullcontext()
    cuda = sys.modules["torch"].cuda
    if isinstance(stream, int):
        stream = cuda.ExternalStream(stream, device=like.device) if stream else cuda.default_stream(like.device)
    return cuda.stream(stream) if hasattr(stream, "cuda_stream") else nullcontext()


_Reader = Callable[[Any, str], View]
_READERS: dict[type, _Reader] = {}  # which of the functions below reads a type
_TORCH_FORMATS: dict[Any, Format] = {}  # torch dtype to format, filled as they are seen
_TORCH_DEVICES: dict[Any, str] = {}


def _reader(type_: type, name: str) -> _Reader:
    reader: _Reader
    if issubclass(type_, np.ndarray):
        reader = _view_numpy
    elif _is_torch(type_):
        reader = _view_torch
    elif hasattr(type_, "__cuda_array_interface__"):
        reader = _view_cuda
    elif hasattr(type_, "__dlpack__"):
        reader = _view_dlpack
    else:
        raise TypeError(f"{name} is {_type_name(type_)}; wanted a numpy array or a torch tensor")
    _READERS[type_] = reader
    return reader


def _view_numpy(array: np.ndarray, name: str) -> View:
    format = formats._BY_DTYPE.get(array.dtype)
    if format is None:
        raise _no_format(array.dtype, name)
    return View(array.__array_interface__["data"][0], array.shape, array.strides, format, "cpu", array)


def _view_torch(tensor: Any, name: str) -> View:
    format = _TORCH_FORMATS.get(tensor.dtype) or _torch_format(tensor.dtype, name)
    device = _TORCH_DEVICES.get(tensor.device) or _torch_device(tensor, name)
    size = format.itemsize
    try:
        strides = tuple([stride * size for stride in tensor.stride()])
        return View(tensor.data_ptr(), tuple(tensor.shape), strides, format, device, tensor)
    except RuntimeError as error:  # torch's way to say that there are no strides, or no memory
        raise ValueError(f"{name} is {str(tensor.layout).removeprefix('torch.')}; wanted dense memory") from error


def _torch_format(dtype: Any, name: str) -> Format:
    try:
        found = formats.named(dtype)
    except ValueError:
        raise _no_format(dtype, name) from None
    _TORCH_FORMATS[dtype] = found
    return found


def _torch_device(tensor: Any, name: str) -> str:
    device = tensor.device
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {device}; wanted the host or a CUDA GPU")
    _TORCH_DEVICES[device] = str(device)
    return str(device)


def _view_cuda(array: Any, name: str) -> View:
    interface = array.__cuda_array_interface__
    try:
        format = formats.of(np.dtype(interface["typestr"]))
    except ValueError:
        raise _no_format(interface["typestr"], name) from None
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:  # the interface's way to say contiguous
        strides = tuple(format.itemsize * int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    if not hasattr(array, "__dlpack_device__"):
        raise TypeError(f"{name} is {_type_name(type(array))}, which does not name its GPU; wanted __dlpack_device__")
    _, ordinal = array.__dlpack_device__()
    return View(interface["data"][0], shape, tuple(strides), format, f"cuda:{ordinal}", array)


def _view_dlpack(array: Any, name: str) -> View:
    try:
        host = np.from_dlpack(array)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise TypeError(f"{name} is {_type_name(type(array))}, which numpy cannot read ({error})") from error
    return _view_numpy(host, name)


def _is_torch(type_: type) -> bool:
    torch = sys.modules.get("torch")  # an object can be a tensor only if torch is loaded
    return torch is not None and issubclass(type_, torch.Tensor)


def _no_format(dtype: Any, name: str) -> TypeError:
    return TypeError(f"{name} is {dtype}; wanted one of {', '.join(f.dtype.name for f in formats.ALL)}")


def _type_name(type_: type) -> str:
    return f"{type_.__module__}.{type_.__qualname__}"
