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

    sizes: of the dimensions of its signature. out: the array that is written, once `write` has been called.
    """

    def __init__(self, signature: Signature, a: Any, b: Any, device: str | Device | None, stream: Any) -> None:
        """Raises TypeError or ValueError naming a or b if they are no factors, or do not multiply."""
        a_order, b_order, self.order = signature.orders
        self.a, self.b = left, right = check.factor("a", a, a_order), check.factor("b", b, b_order)
        self.signature = signature
        self.sizes = signature.sizes(left.data.shape, right.data.shape)
        check.check_pair(left, right, self.sizes)
        check.arrange(left, signature.a, a_order)
        check.arrange(right, signature.b, b_order)
        if signature.op != "grouped_mm_k":
            check.check_whole(left)
            check.check_whole(right)
        self.device = registry.find(left.data.device if device is None else device)
        self.given_stream = stream
        self.stream = self.device.stream(stream, not isinstance(left.array, np.ndarray))
        self.more: dict[str, View] = {}
        self.numbers: tuple[tuple[str, float], ...] = ()

    def index(self, name: str, x: Any, size: int | None) -> View:
        """Take rows, ends or counts."""
        self.more[name] = found = check.index(name, x, size, self.a)
        return found

    def write(self, out: Any, out_dtype: Any, like: Any = None, default: Format = BF16) -> None:
        """Take the array to write, or make it. The format is out_dtype, or that of `out` or of `like`, or `default`."""
        shape = tuple([self.sizes[label] for label in self.signature.d])
        if out_dtype is None:
            out_dtype = getattr(like if out is None else out, "dtype", default)
        self.format = format = _out_format(out_dtype)
        self.is_new = out is None
        self.out = self.empty(shape, format) if self.is_new else out
        self.d = view(self.out, "out")
        if not self.is_new:
            self._check_out(shape)

    def add(self, c: Any, alpha: Any, bias: Any = None) -> None:
        """Take what becomes of a total. Comes after `write`."""
        if alpha is not None:
            self.numbers = (("alpha", check.number(alpha)),)
        if c is not None:
            self.more["c"] = check.added("c", c, self.d.shape, (self.format,), self.a)
        if bias is not None:
            columns = self.sizes["N"]
            shape = (self.sizes["G"], columns) if "G" in self.signature.b else (columns,)
            self.more["bias"] = check.added("bias", bias, shape, FLOATS, self.a)

    def ready(self) -> bool:
        """Check memory and values, last of all; False if there is nothing to write."""
        if 0 in self.d.shape:
            return False
        if not self.is_new:
            self._check_apart()
        check.check_values(self.a)
        check.check_values(self.b)
        return True

    def run(self, order: str, rows: int) -> Any:
        """Solve it, for about `rows` rows, and return what was written."""
        self.check_order(order)
        if self.ready():
            more = {name: ordered(x, self.order) if name == "c" else x for name, x in self.more.items()}
            self.solve(order, rows, more, ordered(self.d, self.order), self.format)
        return self.out

    def check_order(self, order: Any) -> None:
        if order not in ("ascending", "fast"):
            raise ValueError(f"order is {order!r}; 'ascending' or 'fast' is wanted")

    def solve(self, order: str, rows: int, more: dict[str, View], d: View, format: Format) -> None:
        """Run the problem on the device, into `d`."""
        problem, operands = self.described(order, rows, more, d, format)
        plan.run(problem, operands, self.device, self.stream)

    def described(
        self, order: str, rows: int, more: dict[str, View], d: View, format: Format
    ) -> tuple[Problem, Operands]:
        """The problem and its operands; what the device does not read as it is has then been copied."""
        a, b = self._readable(self.a), self._readable(self.b)
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
            order,
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
        return replace(x, data=codes, major="k")

    def _zeros(self, x: Factor) -> Factor:
        """For a factor with nothing to multiply, one whose products are zeros."""
        shape = (*[max(size, 1) for size in x.data.shape[:-1]], GRID)
        scales = None
        if x.scaling is not None:
            scales_shape = scaling.named(x.scaling).scales_shape(shape)
            scales = self._zeroed(scales_shape, scaling.named(x.scaling).format)
        return replace(x, data=self._zeroed(shape, x.data.format), scales=scales, major="k")

    def _zeroed(self, shape: tuple[int, ...], format: Format) -> View:
        with arrays.on_stream(self.a.array, self.given_stream):
            memory = arrays.empty((*shape[:-1], shape[-1] * format.itemsize), U8, like=self.a.array)
            memory[...] = 0
        found, size = view(memory), format.itemsize
        return View(found.pointer, shape, (*found.strides[:-1], size), format, found.device, memory)

    def _check_out(self, shape: tuple[int, ...]) -> None:
        d, a = self.d, self.a
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
    names = ", ".join(format.name for format in FLOATS)
    try:
        format = formats.named(out_dtype)
    except (ValueError, TypeError):
        raise ValueError(f"out_dtype is {out_dtype!r}; one of {names} is wanted") from None
    if format not in FLOATS:
        raise ValueError(f"out_dtype is {format.name}; one of {names} is wanted")
    return format
