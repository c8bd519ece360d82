"""From the operands of a call to the arguments of a kernel's parts."""

from __future__ import annotations

from dataclasses import replace

from kingpost.arrays import View
from kingpost.registry import Operands
from kingpost.targets.nvidia.parts.finish import Finish

LARGEST_EXTENT = 1 << 31  # bytes of a plane of scales that the kernels' 32-bit offsets reach
LARGEST_STRIDE = 1 << 32


def in_planes(view: View) -> View:
    """A matrix as one plane of three dimensions; three dimensions as they are."""
    if len(view.shape) == 3:
        return view
    return replace(view, shape=(1, *view.shape), strides=(0, *view.strides))


def plane_stride(view: View) -> int:
    """Bytes from one plane to the next; 0 where there is one. Raises ValueError for more than kernels can count."""
    stride = view.strides[0] if view.shape[0] > 1 else 0
    if stride >= LARGEST_STRIDE:
        raise ValueError(
            f"planes of shape {list(view.shape[1:])} of {view.format.name} are {stride} bytes apart; less than "
            f"{LARGEST_STRIDE} are wanted"
        )
    return stride


def row_stride(view: View) -> int:
    """Bytes from one row of a plane to the next; 0 where there is one."""
    return view.strides[1] if view.shape[1] > 1 else 0


def scale_arguments(operands: Operands, name: str, scaling: str | None) -> dict[str, View | int]:
    """The parameters of `StagedScales` for the operand `name`. Strides are bytes; of a dimension of one scale, 0."""
    given = operands[name]
    view = in_planes(given)
    plane = replace(view, shape=view.shape[1:], strides=view.strides[1:])
    if min(view.strides) < 0 or plane.extent()[1] >= LARGEST_EXTENT or view.strides[0] >= LARGEST_STRIDE:
        owner = name.removeprefix("scale_")
        raise ValueError(
            f"{owner}.scales have strides {given.strides} bytes over shape {given.shape}; strides of at least 0 "
            f"and an extent below {LARGEST_EXTENT} bytes are wanted"
        )
    stride, along = (stride if size > 1 else 0 for size, stride in zip(plane.shape, plane.strides))
    arguments: dict[str, View | int] = {
        name: given,
        f"{name}_plane_stride": plane_stride(view),
        f"{name}_stride": stride,
        f"{name}_block_stride": along,
    }
    if scaling == "1x32:ue8m0":
        arguments[f"{name}_blocks"] = plane.shape[1]
    return arguments


def finish_arguments(operands: Operands, finish: Finish) -> dict[str, View | int | float]:
    """The parameters of `Finish`, for what the call has of it."""
    arguments: dict[str, View | int | float] = dict(operands.numbers)
    if finish.loads_c and (c := operands.get("c")) is not None:
        planes = in_planes(c)
        arguments |= {"c": c, "c_plane_stride": plane_stride(planes), "c_stride": row_stride(planes)}
    if (bias := operands.get("bias")) is not None:
        arguments |= {"bias": bias, "bias_plane_stride": plane_stride(bias) if len(bias.shape) == 2 else 0}
    return arguments
