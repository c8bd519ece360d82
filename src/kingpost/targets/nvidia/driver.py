"""The CUDA driver through cuda-bindings: devices, tensor maps, loading, launching, memory.

Takes plain values only. The context is each device's primary one, which torch uses too; it is made current for the
length of a call and no longer, since torch derives its current device from it. Every failure raises DriverError.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kingpost.assemble import AssemblerNotFound, build

_ELEMENT_TYPES = {  # as cuTensorMapEncodeTiled names them; 8-bit floats are bytes to a copy engine
    **dict.fromkeys(("e4m3", "e4m3fnuz", "e5m2", "ue8m0", "uint8"), "UINT8"),
    "bfloat16": "BFLOAT16",
    "float16": "FLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "int32": "INT32",
    "uint32": "UINT32",
    "uint64": "UINT64",
}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_STREAMS_REMEMBERED = 64  # launch configurations that one Prepared keeps

_lock = threading.Lock()
_process: int | None = None  # that initialised the driver
_forked = False  # whether this process is a fork of it
_contexts: dict[int, Any] = {}
_functions: dict[tuple[int, bytes, str], Function] = {}


class DriverError(RuntimeError):
    """A call of the CUDA driver failed, or there is no driver to call."""


def _note_fork() -> None:
    global _forked
    _forked = _process is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)  # cheaper at each launch than os.getpid


def _bindings() -> Any:
    """cuda.bindings.driver, initialised in this process. Raises DriverError without a driver and after a fork."""
    global _process
    driver = _import_bindings()
    if _forked:
        raise DriverError(
            f"CUDA was initialised in process {_process}, of which this one ({os.getpid()}) is a fork: "
            "CUDA cannot be used here; start processes by the 'spawn' method instead"
        )
    if _process is not None:
        return driver
    try:
        (error,) = driver.cuInit(0)
    except RuntimeError as missing:  # cuda-bindings found no libcuda
        raise DriverError(f"no NVIDIA driver: {missing}") from missing
    _check(driver, "cuInit", error)
    _process = os.getpid()
    return driver


@functools.cache
def _import_bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DriverError("cuda-bindings is not installed; pip install kingpost[nvidia]") from error
    return driver


def _check(driver: Any, name: str, error: Any, about: str = "") -> None:
    if error:
        _, text = driver.cuGetErrorString(error)
        meaning = text.decode() if text else "no description"
        raise DriverError(f"{name}: {error.name} ({meaning})" + (f"; {about}" if about else ""))


def _call(name: str, *arguments: Any, about: str = "") -> Any:
    """One call of the driver: its one result or None. Raises DriverError, which ends with `about`."""
    driver = _bindings()
    error, *results = getattr(driver, name)(*arguments)
    _check(driver, name, error, about)
    return results[0] if results else None


@contextlib.contextmanager
def _entered(index: int) -> Iterator[None]:
    """Makes a device's context current, and calls that allocate or load legal while this thread captures a graph."""
    context, before = _context(index), _call("cuCtxGetCurrent")
    relaxed = _bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _call("cuCtxSetCurrent", context)
    mode = _call("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        _call("cuThreadExchangeStreamCaptureMode", mode)
        _call("cuCtxSetCurrent", before)


def _context(index: int) -> Any:
    """The primary context of a device, retained for the life of the process."""
    _bindings()
    with _lock:
        if index not in _contexts:
            device = _call("cuDeviceGet", index, about=f"device cuda:{index}")
            _contexts[index] = _call("cuDevicePrimaryCtxRetain", device)
        return _contexts[index]


# Devices


def available() -> list[str]:
    """The devices of the driver, "cuda:0" and so on; none where there is no driver or it cannot be used."""
    try:
        return [f"cuda:{index}" for index in range(_call("cuDeviceGetCount"))]
    except DriverError:
        return []


@dataclass(frozen=True)
class Properties:
    """What the driver says of a device. Sizes in bytes, clocks (the highest it may run at) in kHz."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes_per_block: int  # with opt-in
    shared_bytes_per_multiprocessor: int
    l2_bytes: int
    memory_bytes: int
    clock_khz: int
    memory_clock_khz: int
    driver_version: tuple[int, int]  # the newest CUDA it serves

    @property
    def target(self) -> str:
        """The assembler's name of the chip, "sm_90a"."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


@functools.cache
def properties(index: int) -> Properties:
    """The properties of device cuda:`index`. Raises DriverError where there is none."""
    device = _call("cuDeviceGet", index, about=f"device cuda:{index}")
    attributes = _bindings().CUdevice_attribute

    def attribute(name: str) -> int:
        return int(_call("cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    version = _call("cuDriverGetVersion")
    return Properties(
        name=_call("cuDeviceGetName", 256, device).partition(b"\0")[0].decode(),
        capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        shared_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        shared_bytes_per_multiprocessor=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        memory_bytes=int(_call("cuDeviceTotalMem", device)),
        clock_khz=attribute("CLOCK_RATE"),
        memory_clock_khz=attribute("MEMORY_CLOCK_RATE"),
        driver_version=(version // 1000, version % 1000 // 10),
    )


# Tensor maps


@functools.cache
def _tensor_map_kind(format: str, swizzle: int) -> tuple[Any, ...]:
    """What the driver calls a map's element type, interleaving, swizzle, L2 promotion and fill."""
    if format not in _ELEMENT_TYPES:
        raise ValueError(f"format is {format!r}: wanted one of {', '.join(_ELEMENT_TYPES)}")
    if swizzle not in _SWIZZLES:
        raise ValueError(f"swizzle is {swizzle!r}: wanted one of {', '.join(map(str, _SWIZZLES))} bytes")
    driver = _bindings()
    return (
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENT_TYPES[format]}"),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[swizzle]}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )


def encode_tensor_map(
    pointer: int,
    format: str,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int,
    index: int = 0,
) -> bytes:
    """The 128 bytes of a tensor map over memory of device cuda:`index`, as a kernel takes it by value.

    pointer: device address of the first element. format: of an element, "e4m3". shape, box: in elements, outermost
    first, as numpy has them; strides: in bytes, likewise, the last being one element. swizzle: span in bytes, 0, 32, 64
    or 128. Elements outside read as zero; L2 fetches 256 bytes at a time. Raises ValueError for what cannot be named to
    the driver, DriverError for what it refuses.
    """
    if not len(shape) == len(strides) == len(box):
        raise ValueError(f"shape {shape}, strides {strides}, box {box}: wanted one of each per dimension")
    element, interleave, span, promotion, fill = _tensor_map_kind(format, swizzle)
    driver = _bindings()
    arguments = (
        element,
        len(shape),
        pointer,
        [*map(driver.cuuint64_t, reversed(shape))],
        [*map(driver.cuuint64_t, reversed(strides[:-1]))],
        [*map(driver.cuuint32_t, reversed(box))],
        [driver.cuuint32_t(1)] * len(shape),
        interleave,
        span,
        promotion,
        fill,
    )
    error, encoded = driver.cuTensorMapEncodeTiled(*arguments)
    if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:  # no context is current on this thread yet
        with _entered(index):
            error, encoded = driver.cuTensorMapEncodeTiled(*arguments)
    if error:
        about = f"{format} at {pointer:#x}, shape {shape}, strides {strides} bytes, box {box}, swizzle {swizzle}"
        _check(driver, "cuTensorMapEncodeTiled", error, about)
    return ctypes.string_at(encoded.getPtr(), 128)


# Loading and launching


@dataclass(frozen=True, eq=False)
class Function:
    """A kernel loaded on a device; sizes in bytes, `local_bytes` per thread."""

    name: str
    index: int
    handle: Any
    registers: int
    shared_bytes: int
    local_bytes: int


def loadable(text: str, target: str) -> bytes | str:
    """The binary of PTX `text`, or the text itself, for the driver's own assembler, on a machine without any other.

    Raises assemble.AssemblyError for a text that is refused.
    """
    try:
        return build(text, target).image
    except AssemblerNotFound:
        return text


def load(image: bytes | str, name: str, index: int = 0) -> Function:
    """Kernel `name` of a binary, or of PTX text, on device cuda:`index`; loaded once per image, for good.

    It may be launched with all the shared memory that a block can have. Raises DriverError, with the log of the
    driver's assembler where a text is refused.
    """
    data = image.encode() + b"\0" if isinstance(image, str) else image
    key = (index, hashlib.sha256(data).digest(), name)
    if found := _functions.get(key):
        return found
    with _entered(index):
        module = _load_text(data) if isinstance(image, str) else _call("cuModuleLoadData", data, about=f"kernel {name}")
        handle = _call("cuModuleGetFunction", module, name.encode(), about=f"kernel {name}")
        attributes = _bindings().CUfunction_attribute

        def attribute(which: str) -> int:
            return int(_call("cuFuncGetAttribute", getattr(attributes, f"CU_FUNC_ATTRIBUTE_{which}"), handle))

        function = Function(
            name, index, handle, attribute("NUM_REGS"), attribute("SHARED_SIZE_BYTES"), attribute("LOCAL_SIZE_BYTES")
        )
        room = properties(index).shared_bytes_per_block - function.shared_bytes
        _call("cuFuncSetAttribute", handle, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, room)
    return _functions.setdefault(key, function)


def _load_text(text: bytes) -> Any:
    """Has the driver assemble PTX. What ptxas would be refused for (assemble.ptxas) is only warned of."""
    option = _bindings().CUjit_option
    errors, notes = bytearray(8192), bytearray(8192)
    options = {
        option.CU_JIT_ERROR_LOG_BUFFER: errors,
        option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: len(errors),
        option.CU_JIT_INFO_LOG_BUFFER: notes,
        option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: len(notes),
    }

    def log(buffer: bytearray) -> str:
        return buffer.partition(b"\0")[0].decode(errors="replace").strip()

    try:
        module = _call("cuModuleLoadDataEx", text, len(options), [*options], [*options.values()])
    except DriverError as error:
        raise DriverError(f"{error}\n{log(errors)}") from None
    if "(C75" in log(notes):
        warnings.warn(f"the driver's assembler made a slow kernel: {log(notes)}", RuntimeWarning, stacklevel=3)
    return module


class Prepared:
    """A launch with everything decided but the stream: call it with a stream's handle, from any thread.

    function: from load. grid: blocks along x, or along x, y, z. threads: of a block. shared_bytes: dynamic shared
    memory of a block. parameters: the bytes of each, in order, copied; the driver lays them out, since where an aligned
    one lies is the assembler's choice. A call neither waits nor allocates on the device, so it may be captured into a
    graph. Raises ValueError for an empty grid, DriverError if refused.
    """

    __slots__ = ("_configurations", "_context", "_current", "_driver", "_function", "_kept", "_launch", "_parameters")

    def __init__(
        self,
        function: Function,
        grid: int | tuple[int, ...],
        threads: int,
        shared_bytes: int,
        parameters: Sequence[bytes],
    ):
        sides = (grid,) if isinstance(grid, int) else tuple(grid)
        if not 1 <= len(sides) <= 3 or min(sides) < 1 or threads < 1:
            raise ValueError(f"grid is {grid}, threads {threads}: wanted 1 to 3 sides of at least 1, and a thread")
        block = ctypes.create_string_buffer(b"".join(parameters))
        at, places = ctypes.addressof(block), (ctypes.c_void_p * max(len(parameters), 1))()
        for index, parameter in enumerate(parameters):
            places[index] = at
            at += len(parameter)
        driver = _bindings()
        self._kept = (function, (*sides, 1, 1)[:3], threads, shared_bytes, block, places)
        self._parameters = ctypes.addressof(places)
        self._function = function.handle
        self._context = _context(function.index)
        self._driver, self._launch, self._current = driver, driver.cuLaunchKernelEx, driver.cuCtxGetCurrent
        self._configurations: dict[int, Any] = {}

    def __call__(self, stream: int = 0) -> None:
        if _forked:
            _bindings()  # says so
        # One configuration per stream, never changed, so that threads may launch at once.
        configuration = self._configurations.get(stream) or self._configure(stream)
        _, current = self._current()
        if current == self._context:
            (error,) = self._launch(configuration, self._function, self._parameters, 0)
        else:
            self._driver.cuCtxSetCurrent(self._context)
            try:
                (error,) = self._launch(configuration, self._function, self._parameters, 0)
            finally:
                self._driver.cuCtxSetCurrent(current)
        if error:
            function, grid, threads, shared_bytes, *_ = self._kept
            about = f"kernel {function.name}, grid {grid}, {threads} threads, {shared_bytes} bytes of shared memory"
            _check(self._driver, "cuLaunchKernelEx", error, about)

    def _configure(self, stream: int) -> Any:
        _, grid, threads, shared_bytes, *_ = self._kept
        configuration = self._driver.CUlaunchConfig()
        configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = grid
        configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ = threads, 1, 1
        configuration.sharedMemBytes = shared_bytes
        configuration.hStream = stream
        configuration.numAttrs = 0
        if len(self._configurations) >= _STREAMS_REMEMBERED:
            self._configurations = {}
        self._configurations[stream] = configuration
        return configuration


def launch(
    function: Function,
    grid: int | tuple[int, ...],
    threads: int,
    shared_bytes: int,
    parameters: Sequence[bytes],
    stream: int = 0,
) -> None:
    """Launches once; see Prepared, which is what to keep for launching again."""
    Prepared(function, grid, threads, shared_bytes, parameters)(stream)


# Streams and memory


def current_stream(index: int, torch_arrays: bool) -> int:
    """The stream a call without `stream=` runs on: torch's current one for torch's arrays, else the default one, 0."""
    torch = sys.modules.get("torch") if torch_arrays else None
    # torch.cuda.current_stream would build a Stream object at each call.
    return torch._C._cuda_getCurrentRawStream(index) if torch else 0


def synchronize(stream: int = 0, index: int = 0) -> None:
    """Waits until all work on a stream is done. Raises DriverError where any of it failed."""
    with _entered(index):
        _call("cuStreamSynchronize", stream)


class DeviceBuffer:
    """`size` bytes on device cuda:`index`, for callers whose arrays are numpy's; freed with the object."""

    def __init__(self, size: int, index: int = 0):
        self.size, self.index = size, index
        with _entered(index):
            self.pointer = int(_call("cuMemAlloc", max(size, 1), about=f"{size} bytes on cuda:{index}"))
        self._free = weakref.finalize(self, _free, self.pointer, index)

    @classmethod
    def holding(cls, array: np.ndarray, index: int = 0, stream: int = 0) -> DeviceBuffer:
        """A buffer with the contents of a C-contiguous array, put there in the order of `stream`."""
        buffer = cls(array.nbytes, index)
        buffer.write(array, stream)
        return buffer

    def write(self, array: np.ndarray, stream: int = 0) -> None:
        """Copies a C-contiguous array to the start of the buffer, in the order of `stream`; it may be changed after."""
        self._require(array)
        with _entered(self.index):
            _call("cuMemcpyHtoDAsync", self.pointer, array.ctypes.data, array.nbytes, stream)
            _call("cuStreamSynchronize", stream)

    def read(self, array: np.ndarray, stream: int = 0) -> None:
        """Fills a C-contiguous array from the start of the buffer once all earlier work on `stream` is done."""
        self._require(array)
        with _entered(self.index):
            _call("cuMemcpyDtoHAsync", array.ctypes.data, self.pointer, array.nbytes, stream)
            _call("cuStreamSynchronize", stream)

    def free(self) -> None:
        """Gives the memory back now; twice is once."""
        self._free()

    def _require(self, array: np.ndarray) -> None:
        if not array.flags.c_contiguous or array.nbytes > self.size:
            wanted = f"wanted C-contiguous, at most {self.size} bytes"
            raise ValueError(f"array of {array.nbytes} bytes, strides {array.strides}: {wanted}")


def _free(pointer: int, index: int) -> None:
    # At exit the context may be gone; a fork's copy of the object owns nothing.
    with contextlib.suppress(DriverError), _entered(index):
        _call("cuMemFree", pointer)
