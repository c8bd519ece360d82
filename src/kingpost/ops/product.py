"""One call of a product: from arguments to operands, a problem, and its run. Every product goes this way."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from kingpost import arrays, formats, plan, registry, scaling
from kingpost.arrays import View, library_of, view
from kingpost.formats import BF16, U8, Format
from kingpost.ops import operands as check
from kingpost.ops.operands import FLOATS, GRID, Factor, Signature, ordered
from kingpost.registry import Device, Elementwise, Operands, Problem

TRANSPOSE = Elementwise("transpose", (("source", U8), ("destination", U8)))

_problem = functools.lru_cache(maxsize=4096)(Problem)  # made once: the call path then hashes and compares what it knows


class Product:
    """A call of a product. An op makes one, says what is written, added and indexed by, and runs it.

    What it is given becomes views at once; `check` looks at them, unless the same call was made before. sizes: of the
    dimensions of the signature. out: the array that is written, once `write` has been called, and d its view.
    """

    def __init__(
        self, signature: Signature, a: Any, b: Any, order: str, device: str | Device | None, stream: Any
    ) -> None:
        """Raises TypeError or ValueError naming a or b if they are no arrays, or do not multiply."""
        if order not in ("ascending", "fast"):
            raise ValueError(f"order is {order!r}; 'ascending' or 'fast' is wanted")
        self.signature, self.order = signature, order
        self.a, self.b = left, right = check.factor("a", a), check.factor("b", b)
        self.sizes = signature.sizes(left.data.shape, right.data.shape)
        self.device = registry.find(left.data.device if device is None else device)
        self.given_stream = stream
        self.stream = self.device.stream(stream, not isinstance(left.array, np.ndarray))
        self.examined = check.examined()
        self.more: dict[str, View] = {}
        self.numbers: tuple[tuple[str, float], ...] = ()

    def index(self, name: str, x: Any) -> View:
        """Take rows, ends or counts."""
        self.more[name] = found = check.index(name, x)
        return found

    def write(self, out: Any, out_dtype: Any, like: Any = None, default: Format = BF16) -> None:
        """Take the array to write, or make it. The format is out_dtype, or that of `out` or of `like`, or `default`."""
        if out_dtype is None:
            out_dtype = getattr(like if out is None else out, "dtype", default)
        self.format = format = _out_format(out_dtype)
        self.shape = shape = tuple([self.sizes[label] for label in self.signature.d])
        self.is_new = out is None
        self.out = self.empty(shape, format) if self.is_new else out
        self.d = view(self.out, "out")

    def add(self, c: Any, alpha: Any, bias: Any = None) -> None:
        """Take what becomes of a total."""
        if alpha is not None:
            self.numbers = (("alpha", check.number(alpha)),)
        if c is not None:
            self.more["c"] = view(c, "c")
        if bias is not None:
            self.more["bias"] = view(bias, "bias")

    def run(self, rows: int) -> Any:
        """Solve it, for about `rows` rows, and return what was written."""
        key = self._key(rows)
        call = None if key is None else plan.recalled(key)
        if call is not None:
            call(self.stream)
        elif self.check():
            more, order = dict(self.more), self.signature.d_order
            if "c" in more:
                more["c"] = ordered(more["c"], order)
            problem, operands = self.described(rows, more, ordered(self.d, order), self.format)
            plan.run(problem, operands, self.device, self.stream)
            if key is not None and self.a.as_given and self.b.as_given:
                plan.remember(key, problem, operands, self.device)
        return self.out

    def _key(self, rows: int) -> tuple[object, ...] | None:
        """All that a call's checks and its launch depend on; None where they depend on values, or on the host."""
        device = self.device
        if not device.keeps_calls or self.examined or self.a.data.device != device.name:
            return None
        key = [self.signature, device, self.order, rows, self.numbers, self.is_new, *self.more]
        views = [self.d, *self.more.values()]
        for x in (self.a, self.b):
            views.append(x.data)
            if x.scales is not None:
                ends = x.given.ends
                key += (x.given.scaling.name, None if ends is None else tuple(ends.shape))
                views.append(x.scales)
        return (*key, *[(x.pointer, x.shape, x.strides, x.format.name, x.device) for x in views])

    def check(self) -> bool:
        """Whether there is anything to compute. Raises TypeError or ValueError naming what no device takes."""
        left, right, signature, sizes = self.a, self.b, self.signature, self.sizes
        check.check_pair(left, right, sizes)
        check.arrange(left, signature.a, signature.a_order)
        check.arrange(right, signature.b, signature.b_order)
        self.check_scales()
        if not self.is_new:
            self._check_out()
        if "c" in self.more:
            check.check_added("c", self.more["c"], self.shape, (self.format,), left)
        if "bias" in self.more:
            shape = (sizes["G"], sizes["N"]) if "G" in signature.b else (sizes["N"],)
            check.check_added("bias", self.more["bias"], shape, FLOATS, left)
        if 0 in self.shape:
            return False
        if not self.is_new:
            self._check_apart()
        self.check_values()
        return True

    def check_values(self) -> None:
        """Scales of the host are numbers, and all that is to be examined is."""
        for x in (self.a, self.b):
            check.check_values(x, self.examined)

    def check_scales(self) -> None:
        """The blocks of scales are those of this product."""
        for x in (self.a, self.b):
            if x.scales is not None and x.given.ends is not None:
                wanted = "kingpost.grouped_mm_k is wanted"
                raise ValueError(f"{x.name} has ends, where its blocks of scales start anew; {wanted}")

    def described(self, rows: int, more: dict[str, View], d: View, format: Format) -> tuple[Problem, Operands]:
        """The problem and its operands; what the device does not read as it is has then been copied."""
        self.a, self.b = a, b = self._readable(self.a), self._readable(self.b)
        bias = more.get("bias")
        problem = _problem(
            self.signature.op,
            b.data.shape[-2],
            b.data.shape[-1],
            a.data.format,
            b.data.format,
            a.scaling,
            b.scaling,
            format,
            self.order,
            self.signature.by,
            max(1, self.sizes.get("G", 1)),
            a.major,
            b.major,
            "c" in more,
            None if bias is None else bias.format,
            bool(self.numbers),
            "c" in more and _same(more["c"], d),
        )
        if a.scales is None or b.scales is None:
            views = {"a": a.data, "b": b.data, **more, "d": d}
        else:
            views = {"a": a.data, "scale_a": a.scales, "b": b.data, "scale_b": b.scales, **more, "d": d}
        return problem, Operands(views, ("d",), rows, self.numbers)

    def empty(self, shape: tuple[int, ...], format: Format) -> Any:
        """New memory from the caller's allocator, on the caller's stream."""
        with arrays.on_stream(self.a.array, self.given_stream):
            return arrays.empty(shape, format, like=self.a.array)

    def _readable(self, x: Factor) -> Factor:
        """x as kernels read it: with K contiguous, if its codes have 8 bits, and something to multiply."""
        if 0 in x.data.shape:
            return self._zeros(x)
        return self._k_major(x) if x.major == "mn" and x.scales is not None else x

    def _k_major(self, x: Factor) -> Factor:
        """x with a copy of its codes, transposed by a pass of the device's own."""
        copy = self.empty(x.data.shape, x.data.format)
        codes = view(copy)
        for source, destination in zip(_matrices(x.data), _matrices(codes)):
            views = {"source": source.T, "destination": destination}
            plan.run(TRANSPOSE, Operands(views, ("destination",), source.shape[1]), self.device, self.stream)
        return replace(x, data=codes, major="k", as_given=False)

    def _zeros(self, x: Factor) -> Factor:
        """For a factor with nothing to multiply, one whose products are zeros."""
        shape = (*[max(size, 1) for size in x.data.shape[:-1]], GRID)
        scales = None
        if x.scaling is not None:
            scales_shape = scaling.named(x.scaling).scales_shape(shape)
            scales = self._zeroed(scales_shape, scaling.named(x.scaling).format)
        return replace(x, data=self._zeroed(shape, x.data.format), scales=scales, major="k", as_given=False)

    def _zeroed(self, shape: tuple[int, ...], format: Format) -> View:
        with arrays.on_stream(self.a.array, self.given_stream):
            memory = arrays.empty((*shape[:-1], shape[-1] * format.itemsize), U8, like=self.a.array)
            memory[...] = 0
        found, size = view(memory), format.itemsize
        return View(found.pointer, shape, (*found.strides[:-1], size), format, found.device, memory)

    def _check_out(self) -> None:
        d, a, shape = self.d, self.a, self.shape
        if type(self.out) is not type(a.array) and library_of(self.out, "out") != library_of(a.array):
            raise TypeError(f"out is of {library_of(self.out)}, a of {library_of(a.array)}; one library is wanted")
        if d.shape != shape:
            raise ValueError(f"out has shape {list(d.shape)}; {list(shape)} is wanted")
        if d.format is not self.format:
            raise TypeError(f"out is {d.format.name}; {self.format.name} is wanted")
        check.check_place("out", d, a)
        if isinstance(self.out, np.ndarray) and not self.out.flags.writeable:
            raise ValueError("out is read-only; a writable array is wanted")
        if 0 in shape:
            return
        reach = shape[-1] * d.format.itemsize if d.adjacent(-1) else float("inf")
        for pitch, size in sorted(zip(d.strides[:-1], shape[:-1])):
            if size > 1 and (pitch % GRID or pitch < reach):
                reach = float("inf")
            reach += (size - 1) * pitch
        if reach == float("inf"):
            raise ValueError(
                f"out has strides {d.strides} bytes over shape {list(shape)}; contiguous rows, multiples of {GRID} "
                "bytes apart, in no memory of another row's, are wanted"
            )
        if d.pointer % GRID:
            raise ValueError(f"out starts at address {d.pointer:#x}; a multiple of {GRID} is wanted, as a copy has it")

    def _check_apart(self) -> None:
        """A result written over what is still to be read would be wrong, but in c exactly where it is read."""
        start, size = self.d.extent()
        read = {"a": self.a.data, "a.scales": self.a.scales, "b": self.b.data, "b.scales": self.b.scales, **self.more}
        for name, x in read.items():
            if x is None:
                continue
            low, length = x.extent()
            if low < start + size and start < low + length:
                if name == "c" and _same(x, self.d):
                    continue
                label = f"{name}.data" if name in ("a", "b") and self.a.scales is not None else name
                raise ValueError(f"out shares memory with {label}; memory of its own is wanted")


def _same(x: View, y: View) -> bool:
    """Whether the elements of both are the very same."""
    return (x.pointer, x.shape, x.strides) == (y.pointer, y.shape, y.strides)


def _matrices(x: View) -> list[View]:
    """Those of two or three dimensions, as bytes."""
    shape, strides = x.shape[-2:], x.strides[-2:]
    planes = [(0, 0)] if len(x.shape) == 2 else [(i, x.strides[0]) for i in range(x.shape[0])]
    return [View(x.pointer + i * stride, shape, strides, U8, x.device, x.owner) for i, stride in planes]


def _out_format(out_dtype: Any) -> Format:
    try:
        format = formats.named(out_dtype)
    except (ValueError, TypeError):
        format = None
    if format not in FLOATS:
        given, names = out_dtype if format is None else format.name, ", ".join(format.name for format in FLOATS)
        raise ValueError(f"out_dtype is {given}; one of {names} is wanted")
    return format
