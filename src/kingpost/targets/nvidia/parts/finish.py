"""From total to result: d = round(alpha * total + c + bias), each step rounded to float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kingpost.formats import BF16, F16, F32, Format
from kingpost.program import Builder, Operand, Register, Registers, f32, u32, u64
from kingpost.targets.nvidia.isa.common import unpack_f16
from kingpost.targets.nvidia.parts.block_tile import WARPS

FORMATS = (BF16, F16, F32)


@dataclass(frozen=True)
class Finish:
    """What is done to a total: multiplied by alpha, c (of d's format) and bias (of its own) added, rounded to out.

    in_place: c is d's own memory, and d is stored by bulk copies. Float32 is then added on its way out.
    """

    out: Format
    alpha: bool = False
    c: bool = False
    bias: Format | None = None
    in_place: bool = False

    @property
    def adds_by_copies(self) -> bool:
        return self.c and self.in_place and self.out is F32 and self.bias is None

    @property
    def loads_c(self) -> bool:
        return self.c and not self.adds_by_copies

    def over(self, k: Builder, columns: Register) -> Finisher:
        """Declare its parameters. columns: how many the result has, a multiple of 8."""
        return Finisher(k, self, columns)


class Finisher:
    """Finishes a warpgroup's accumulators: a thread holds columns 2 (lane mod 4) and the next of each 8, in rows lane/4
    and lane/4 + 8 of its warp's 16. Strides are in bytes: of c from plane to plane and row to row, of bias from plane
    to plane."""

    def __init__(self, k: Builder, finish: Finish, columns: Register) -> None:
        if any(format not in (*FORMATS, None) for format in (finish.out, finish.bias)):
            names = " or ".join(map(str, FORMATS))
            raise ValueError(f"out is {finish.out}, bias {finish.bias}; {names} are wanted")
        self.k, self.finish, self.columns = k, finish, columns
        if finish.alpha:
            self.alpha = k.parameter("alpha", f32)
        if finish.loads_c:
            self.c, self.c_plane_stride = k.parameter("c", u64), k.parameter("c_plane_stride")
            self.c_stride = k.parameter("c_stride")
        if finish.bias is not None:
            self.bias, self.bias_plane_stride = k.parameter("bias", u64), k.parameter("bias_plane_stride")

    def __call__(
        self, total: Registers, plane_d: Operand, plane_b: Operand, row: Register, end: Register, column: Register
    ) -> None:
        """Finish an accumulator whose first element stands at (row, column) of d's plane. Rows from `end` on get any c
        of the warp's own rows, or none, and columns past the result's nothing."""
        k, finish = self.k, self.finish
        if finish.alpha:
            k.emit_portable("mul", total, self.alpha, into=total)
        if finish.loads_c:
            with k.when(row + k.warp % WARPS * 16 < end):  # else others may be storing what c's last row holds
                self._add_c(total, plane_d, row, end, column)
        if finish.bias is not None:
            self._add_bias(total, plane_b, column)

    def _add_c(self, total: Registers, plane: Operand, row: Register, end: Register, column: Register) -> None:
        k, format = self.k, self.finish.out
        base = self.c if isinstance(plane, int) else k.address(self.c, plane, self.c_plane_stride)
        first = row + (k.warp % WARPS * 16 + k.lane // 4)
        own_column = (column + k.lane % 4 * 2) * format.itemsize
        for half in (0, 1):
            line = k.address(k.address(base, k.minimum(first + 8 * half, end - 1), self.c_stride), own_column)
            for group, inside in self._groups(total, column):
                own = total[4 * group + 2 * half : 4 * group + 2 * half + 2]
                with k.mask(inside):
                    own += _load_pair(k, format, line, offset=8 * group * format.itemsize)

    def _add_bias(self, total: Registers, plane: Operand, column: Register) -> None:
        k, format = self.k, self.finish.bias
        assert format is not None
        base = self.bias if isinstance(plane, int) else k.address(self.bias, plane, self.bias_plane_stride)
        line = k.address(base, (column + k.lane % 4 * 2) * format.itemsize)
        for group, inside in self._groups(total, column):
            with k.mask(inside):
                pair = _load_pair(k, format, line, offset=8 * group * format.itemsize)
                for half in (0, 1):
                    own = total[4 * group + 2 * half : 4 * group + 2 * half + 2]
                    own += pair

    def _groups(self, total: Registers, column: Register) -> Iterator[tuple[int, Register]]:
        """The groups of 8 columns of an accumulator, and whether they are among the result's."""
        for group in range(len(total) // 4):
            yield group, column + 8 * group < self.columns


def _load_pair(k: Builder, format: Format, address: Register, offset: int) -> Registers:
    """Two neighbours of global memory as float32, from an address that is a multiple of their size."""
    if format is F32:
        return k.load_vector(f32, address, 2, offset=offset)
    both, pair = k.load(u32, address, offset=offset), k.array(f32, 2)
    if format is BF16:
        k.emit_portable("from_bits", both << 16, into=pair[0])
        k.emit_portable("from_bits", both & 0xFFFF0000, into=pair[1])
    else:
        unpack_f16(k, both, half=0, into=pair[0])
        unpack_f16(k, both, half=1, into=pair[1])
    return pair
