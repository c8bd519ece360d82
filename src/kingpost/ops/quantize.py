"""Quantising on a device: casts by its own kernels where it has them, and by the host's libraries elsewhere."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from kingpost import arrays, formats, plan, quantization, registry, scaling
from kingpost.arrays import View, view
from kingpost.formats import E4M3, F32, Format
from kingpost.ops.elementwise import CODES, FLOATS, check_codes, check_float, check_rows, check_shape, run
from kingpost.ops.operands import check_range, examined, known
from kingpost.registry import Device
from kingpost.scaling import BLOCK, SCALINGS, ScaledTensor, Scaling

BY_ROW, BY_BLOCK = SCALINGS["1x128"], SCALINGS["128x128"]
MOST_GROUPS = 512


def quantize(
    x: Any,
    scaling: str | Scaling,
    *,
    format: Any = E4M3,
    eps: float = 1e-10,
    power_of_two: bool = False,
    reciprocal_maximum: bool = False,
    reciprocal_scale: bool = False,
    layout: str = "row-major",
    transpose: bool = False,
    ends: Any = None,
    device: str | Device | None = None,
    stream: Any = None,
) -> ScaledTensor:
    """`x` with one scale per block, chosen so that the block's largest magnitude becomes the format's largest value.

    x: float32, bfloat16 or float16, numpy or torch, [rows, columns] or [batch, rows, columns], any strides. scaling:
    "1x128", "128x128", "1x32:ue8m0", "row", "tensor", ... Data and scales are new, in x's library and place. In
    float32, every operation rounded to nearest even:

        scale = max(amax, eps) / maximum                     (1 if that is 0, which needs eps=0)
        data  = cast(x / scale, format), saturating

    eps is the floor of amax, which decides what near-zero blocks become. power_of_two: the scale is rounded up to the
    next power of two, at least 2^-126, so that nothing saturates; always so in ue8m0. reciprocal_maximum: scale =
    max(amax, eps) * rn(1 / maximum), which differs in the last bit of some. reciprocal_scale: data = cast(x * rn(1 /
    scale)), which differs in some codes; the scale is at least 2^-126 then. What frameworks do, with power_of_two=True
    where they ask for ue8m0:

        DeepGEMM        eps=1e-4, reciprocal_scale=True; on a GPU reciprocal_maximum=True too, where torch divides by
                        a number by multiplying with its reciprocal
        vLLM            reciprocal_maximum=True
        SGLang, verl    the defaults
        TE              eps=0, power_of_two=True
        lmdeploy        eps=1e-6, reciprocal_maximum=True gives its scales; no setting its codes, x * rn(448 / amax)

    layout: of float32 scales' memory, "row-major", "column-major" or "deepgemm" (columns padded to 4); each matrix of
    a batch by itself.

    transpose: x.T is quantised, "1x128" along x's rows, in one pass: x [K, M] gives data [M, K], as the gradient of
    weights wants it. ends, with transpose: int32 [groups] where groups of K end; each starts a new block of scales
    (`ScaledTensor.ends`), sizes are multiples of 16.

    On a GPU, or where `device` names one, "1x128" and "128x128" of float32 or bfloat16 to e4m3 come from the device's
    own kernels, all other from torch or numpy; the bits are the same. What is transposed comes from the device's own
    kernel always, from float32 or bfloat16 with rows contiguous to e4m3. stream: as for `kingpost.mm`.
    Raises TypeError or ValueError naming the argument. NaN and infinity on the host are refused; on a GPU nothing is
    read back: a NaN stays a NaN, and an infinity makes its block's scale infinite.
    """
    kind, target = scaling_of(scaling), formats.named(format)
    rounding: dict[str, Any] = {
        "eps": eps,
        "power_of_two": power_of_two,
        "reciprocal_maximum": reciprocal_maximum,
        "reciprocal_scale": reciprocal_scale,
    }
    if ends is not None and not transpose:
        raise ValueError("ends are given without transpose; groups end along the rows of x, which it makes columns")
    if transpose:
        if kind != BY_ROW:
            raise ValueError(f"scaling is {kind} with transpose; '1x128' is wanted")
        return _transposed(x, target, rounding, ends, layout, device, stream)
    source = view(x, "x")
    where = registry.find(source.device if device is None else device)
    if kind in (BY_ROW, BY_BLOCK) and where.name != "cpu" and _is_plain(source, target):
        options = {"scaling": kind.name}
        with suppress(plan.Unsupported):  # e4m3 of another kind than the device's
            return _cast("cast", x, source, {}, source.shape, kind, target, rounding, layout, where, stream, options)
    with arrays.on_stream(x, stream):
        return _laid_out(quantization.quantize(x, kind, format=target, **rounding), layout)


def silu_mul_quantize(
    x: Any,
    *,
    counts: Any = None,
    format: Any = E4M3,
    eps: float = 1e-10,
    power_of_two: bool = False,
    reciprocal_maximum: bool = False,
    reciprocal_scale: bool = False,
    layout: str = "row-major",
    device: str | Device | None = None,
    stream: Any = None,
) -> ScaledTensor:
    """silu(gate) * up in float32, quantised "1x128", in one pass. x: float32 or bfloat16 [M, 2K], gate | up, rows
    contiguous; the result is [M, K]. The other arguments are those of `quantize`.

    counts: int32 [G] on x's device, for x [G, M, 2K]: only the first counts[g] rows of each x[g] are read and written;
    in the result, [G, M, K], the others hold whatever the memory held.
    """
    source, target = view(x, "x"), formats.named(format)
    check_shape("x", source, "[M, 2K]" if counts is None else "[G, M, 2K]", 2 if counts is None else 3)
    columns = source.shape[-1]
    if columns % 2:
        raise ValueError(f"x has {columns} columns; an even number, gate and up side by side, is wanted")
    rounding: dict[str, Any] = {
        "eps": eps,
        "power_of_two": power_of_two,
        "reciprocal_maximum": reciprocal_maximum,
        "reciprocal_scale": reciprocal_scale,
    }
    given = {}
    if counts is not None:
        given["counts"] = table = _index("counts", counts, source, source.shape[0])
        check_range("counts", known(table, examined()), 0, source.shape[1], "rows that each group has room for")
    where = registry.find(source.device if device is None else device)
    op, shape = "silu_mul_cast" if counts is None else "masked_silu_mul_cast", (*source.shape[:-1], columns // 2)
    return _cast(op, x, source, given, shape, BY_ROW, target, rounding, layout, where, stream, {})


def cast(
    x: Any,
    *,
    format: Any = E4M3,
    eps: float = 1e-10,
    power_of_two: bool = False,
    layout: str = "row-major",
    device: str | Device | None = None,
    stream: Any = None,
) -> ScaledTensor:
    """`quantize(x, "1x128")` by a kernel of the device's, whatever it is: to examine one. x: float32 or bfloat16
    [M, K], rows contiguous; format: e4m3, or e4m3fnuz where that is the device's."""
    source = view(x, "x")
    check_shape("x", source, "[M, K]", 2)
    where = registry.find(source.device if device is None else device)
    rounding = {"eps": eps, "power_of_two": power_of_two}
    target, shape = formats.named(format), source.shape
    return _cast("cast", x, source, {}, shape, BY_ROW, target, rounding, layout, where, stream, {"scaling": "1x128"})


def scaling_of(name: str | Scaling) -> Scaling:
    return scaling.named(name)


def _is_plain(x: View, format: Format) -> bool:
    """Whether devices have casts for such an array and format."""
    matrix = len(x.shape) == 2 and (0 in x.shape or x.adjacent(-1))
    return matrix and x.format in FLOATS and format in CODES


def _transposed(
    x: Any, format: Format, rounding: dict[str, Any], ends: Any, layout: str, device: str | Device | None, stream: Any
) -> ScaledTensor:
    source = view(x, "x")
    check_shape("x", source, "[K, M]", 2)
    where = registry.find(source.device if device is None else device)
    depth, columns = source.shape
    if ends is None:
        shape = columns, depth
        return _cast("transposed_cast", x, source, {}, shape, BY_ROW, format, rounding, layout, where, stream, {})
    table = _index("ends", ends, source, None)
    groups = table.shape[0]
    if groups > MOST_GROUPS:
        raise ValueError(f"ends has {groups} groups; {MOST_GROUPS} at most are wanted")
    if table.device == "cpu":
        sizes = scaling.group_sizes(table.numpy(), depth, "ends")
        if (sizes % 16).any():
            raise ValueError(f"ends are {table.numpy().tolist()[:8]}; sizes that are multiples of 16 are wanted")
    blocks = depth // BLOCK + groups
    given, shape = {"ends": table}, (columns, depth)
    return _cast(
        "transposed_cast", x, source, given, shape, BY_ROW, format, rounding, layout, where, stream, {}, ends, blocks
    )


def _index(name: str, x: Any, like: View, size: int | None) -> View:
    found = view(x, name)
    if found.format is not formats.I32:
        raise TypeError(f"{name} is {found.format.name}; int32 is wanted")
    if len(found.shape) != 1 or size not in (None, found.shape[0]):
        raise ValueError(f"{name} has shape {list(found.shape)}; [{'any' if size is None else size}] is wanted")
    if found.device != like.device:
        raise ValueError(f"{name} is on {found.device}; {like.device}, where x is, is wanted")
    if not found.contiguous:
        raise ValueError(f"{name} has strides {found.strides} bytes; neighbours in memory are wanted")
    return found


def _cast(
    op: str,
    x: Any,
    source: View,
    given: dict[str, View],
    shape: tuple[int, ...],
    kind: Scaling,
    codes: Format,
    rounding: dict[str, Any],
    layout: str,
    device: Device,
    stream: Any,
    options: dict[str, Any],
    ends: Any = None,
    blocks: int | None = None,
) -> ScaledTensor:
    """Run a cast into new data of this shape, and new scales: as the scaling has them, or `blocks` for each row."""
    check_float("x", source)
    check_rows("x", source)
    check_codes("format", codes)
    floor = quantization.amax_floor(rounding["eps"])
    if source.device == "cpu" and "counts" not in given and not np.isfinite(source.numpy()).all():
        raise ValueError("x holds NaN or infinity; finite numbers are wanted")
    scales_shape = kind.scales_shape(shape) if blocks is None else (shape[0], blocks)
    with arrays.on_stream(x, stream):
        data = arrays.empty(shape, codes, like=x)
        scales = scaling.empty_scales(scales_shape, layout, like=x)
        if blocks is not None:
            scales[...] = 1  # blocks behind the last group's
    options = {"eps": float(floor), **{name: bool(rounding[name]) for name in rounding if name != "eps"}, **options}
    run(op, {"x": source, **given}, {"data": view(data), "scales": view(scales)}, options, device, stream)
    return ScaledTensor(data, scales, kind, ends)


def _laid_out(t: ScaledTensor, layout: str) -> ScaledTensor:
    """The tensor with its scales in another layout."""
    if layout not in scaling.LAYOUTS:
        raise ValueError(f"layout is {layout!r}; wanted one of {', '.join(scaling.LAYOUTS)}")
    if layout == "row-major":
        return t
    if t.scaling.format is not F32:
        raise ValueError(f"layout is {layout!r} with scaling {t.scaling}; 'row-major' is wanted")
    moved = scaling.empty_scales(tuple(t.scales.shape), layout, like=t.scales)
    moved[...] = t.scales
    return ScaledTensor(t.data, moved, t.scaling)
