"""NVIDIA devices: a GPU behind the driver, and the same target on the emulator."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from kingpost import formats
from kingpost.arrays import View
from kingpost.program import Launch, Program, TensorMap, pack
from kingpost.registry import AnyProblem, Candidate, Case, Device, Named, Operands
from kingpost.targets import portable_candidates
from kingpost.targets.emulated_chip import EmulatedChip
from kingpost.targets.nvidia import checks, planner
from kingpost.targets.nvidia.arithmetic import block_product, chain_bf16
from kingpost.targets.nvidia.chip import H200, Chip
from kingpost.targets.nvidia.ptx import ptx
from kingpost.targets.nvidia.targets import SM_90A

LINE = 16  # bytes


class CudaDevice(Named):
    """A GPU: programs assembled, loaded and launched through the driver."""

    keeps_calls = True

    def __init__(self, index: int) -> None:
        from kingpost.targets.nvidia import driver

        self.driver, self.index = driver, index
        self.name = f"cuda:{index}"
        self.properties = driver.properties(index)
        self.description = f"{self.properties.name}, {self.properties.target}"
        self.chip = Chip(self.properties.multiprocessors, self.properties.shared_bytes_per_block)
        self.loaded: dict[Program, Any] = {}

    def candidates(self, problem: AnyProblem) -> Sequence[Candidate]:
        return _candidates(problem, self.chip) if self.properties.target == planner.TARGET else []

    def prepare(self, launch: Launch) -> Callable[[int], None]:
        program = launch.program
        function = self.loaded.get(program)
        if function is None:
            image = self.driver.loadable(ptx(program), program.target)
            function = self.loaded[program] = self.driver.load(image, program.name, self.index)
        parameters = pack(launch, self._encode)
        return self.driver.Prepared(function, launch.grid, 32 * program.warps, program.shared_bytes, parameters)

    def stream(self, given: Any, torch_arrays: bool) -> int:
        if given is None:
            return self.driver.current_stream(self.index, torch_arrays)
        handle = getattr(given, "cuda_stream", given)
        if not isinstance(handle, int):
            raise TypeError(f"stream is {given!r}; a CUDA stream's handle or a torch.cuda.Stream is wanted")
        return handle

    @contextmanager
    def staged(self, operands: Operands, stream: int) -> Iterator[Operands]:
        where = {view.device for view in operands.views.values()}
        if where == {self.name}:
            yield operands
        elif where == {"cpu"}:
            copies = operands.moved(lambda view: self._copied(view, stream))
            yield copies
            for name in operands.results:
                self._copy_back(copies[name], operands[name], stream)
        else:
            raise ValueError(f"the operands are on {', '.join(sorted(where))}; {self.name} or the host is wanted")

    def _copied(self, view: View, stream: int) -> View:
        """The view's elements on the device, packed: dimensions in the order that they have in memory, lines from
        multiples of 16 bytes, as copy engines want them."""
        array = view.numpy()
        order = sorted(range(array.ndim), key=lambda i: -abs(array.strides[i]) if array.shape[i] > 1 else -math.inf)
        turned = array.transpose(order)
        length = turned.shape[-1]
        packed = np.zeros((*turned.shape[:-1], length + -length % (LINE // array.itemsize)), array.dtype)
        packed[..., :length] = turned
        strides = dict(zip(order, packed.strides))
        buffer = self.driver.DeviceBuffer.holding(packed, self.index, stream)
        placed = tuple(strides[i] for i in range(array.ndim))
        return View(buffer.pointer, view.shape, placed, view.format, self.name, buffer)

    def _copy_back(self, copy: View, view: View, stream: int) -> None:
        lines = [size + -size % (LINE // view.format.itemsize) if stride == view.format.itemsize else size
                 for size, stride in zip(copy.shape, copy.strides)]  # fmt: skip
        packed = np.empty(int(np.prod(lines)), view.format.dtype)
        copy.owner.read(packed, stream)  # type: ignore[attr-defined]
        view.numpy()[...] = np.ndarray(copy.shape, view.format.dtype, packed, strides=copy.strides)

    def _encode(self, map: TensorMap) -> bytes:
        view, type = map.view, map.type
        return self.driver.encode_tensor_map(
            view.pointer, view.format.name, view.shape, _row_strides(view), type.box, type.swizzle, self.index
        )


def _row_strides(view: View) -> tuple[int, ...]:
    """Strides that the driver takes: in a dimension of one element, any multiple of 16 does."""
    return tuple(s if size > 1 else 16 for size, s in zip(view.shape[:-1], view.strides[:-1])) + view.strides[-1:]


def _candidates(problem: AnyProblem, chip: Chip) -> Sequence[Candidate]:
    return planner.candidates(problem, chip) or portable_candidates.candidates(problem, SM_90A)


class EmulatedHopper(EmulatedChip):
    """sm_90a on the emulator: the H200's configurations, the bits of its tensor cores, on any CPU."""

    def candidates(self, problem: AnyProblem) -> Sequence[Candidate]:
        return _candidates(problem, H200)

    def cases(self) -> Sequence[Case]:
        return [*checks.cases(self), *super().cases()]

    def text(self, program: Program) -> str:
        return ptx(program)

    def block(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return block_product(a.view(np.uint8), b.view(np.uint8), formats.of(a.dtype), formats.of(b.dtype))

    def chain(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return chain_bf16(a, b)


class _Cuda:
    def present(self) -> Sequence[Device]:
        from kingpost.targets.nvidia import driver

        return [self.find(name.partition(":")[2]) for name in driver.available()]

    @functools.cache  # noqa: B019 - one object for the process
    def find(self, which: str) -> Device:
        from kingpost.targets.nvidia import driver

        name = f"cuda:{which or 0}"
        if name not in driver.available():
            present = (
                ", ".join(driver.available()) or "none (no NVIDIA driver, or the cuda-bindings package is missing)"
            )
            raise ValueError(f"device is {name!r}; present GPUs: {present}")
        return CudaDevice(int(which or 0))


EMULATED_HOPPER = EmulatedHopper(SM_90A, "Hopper")
CUDA = _Cuda()
