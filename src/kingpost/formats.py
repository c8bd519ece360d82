"""Number formats: what they are called, how numpy stores them, how values become codes and back.

Sources: OCP 8-bit Floating Point Specification 1.0 (e4m3, e5m2), OCP Microscaling Formats 1.0 (e2m1, ue8m0),
and for the FNUZ variants the AMD CDNA3 instruction set architecture. The codes themselves are ml_dtypes'.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Format:
    """A number format.

    name: what users write. dtype: how numpy stores one element. bits: what one element carries (e2m1: 4, stored
    one to a byte). maximum: the largest finite value, None for integers.
    """

    name: str
    dtype: np.dtype[Any]
    bits: int
    maximum: float | None = None

    @property
    def itemsize(self) -> int:
        """Bytes that one element takes in memory."""
        return self.dtype.itemsize

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return named, (self.name,)  # another process's own, since formats are told apart by identity


def _float(name: str, scalar_type: Any, bits: int) -> Format:
    return Format(name, np.dtype(scalar_type), bits, float(ml_dtypes.finfo(scalar_type).max))


def _integer(name: str) -> Format:
    dtype = np.dtype(name)
    return Format(name, dtype, 8 * dtype.itemsize)


E4M3 = _float("e4m3", ml_dtypes.float8_e4m3fn, 8)
E4M3FNUZ = _float("e4m3fnuz", ml_dtypes.float8_e4m3fnuz, 8)
E5M2 = _float("e5m2", ml_dtypes.float8_e5m2, 8)
E2M1 = _float("e2m1", ml_dtypes.float4_e2m1fn, 4)
UE8M0 = _float("ue8m0", ml_dtypes.float8_e8m0fnu, 8)
BF16 = _float("bfloat16", ml_dtypes.bfloat16, 16)
F16 = _float("float16", np.float16, 16)
F32 = _float("float32", np.float32, 32)
F64 = _float("float64", np.float64, 64)
U8, U32, I32, U64 = _integer("uint8"), _integer("uint32"), _integer("int32"), _integer("uint64")

ALL = (E4M3, E4M3FNUZ, E5M2, E2M1, UE8M0, BF16, F16, F32, F64, U8, U32, I32, U64)
FLOAT8 = (E4M3, E4M3FNUZ, E5M2)

_BY_NAME = {f.name: f for f in ALL} | {f.dtype.name: f for f in ALL}  # "e4m3" and "float8_e4m3fn" alike
_BY_DTYPE = {f.dtype: f for f in ALL}


def named(name: Any) -> Format:
    """The format called `name`: a Format, its name, or a numpy, ml_dtypes or torch dtype (or that dtype's name).

    Raises ValueError, listing the known names, for anything else.
    """
    if isinstance(name, Format):
        return name
    if isinstance(name, str):
        text = name
    elif type(name).__module__ == "torch":
        text = str(name)
    else:
        return of(name)
    found = _BY_NAME.get(text.removeprefix("torch."))
    if found is None:
        raise ValueError(f"format is {name!r}; wanted one of {', '.join(f.name for f in ALL)}")
    return found


def of(dtype: Any) -> Format:
    """The format whose elements numpy stores as `dtype` (a numpy dtype or a scalar type).

    Raises ValueError, listing the known names, if there is none (a foreign byte order, for instance).
    """
    try:
        found = None if dtype is None else _BY_DTYPE.get(np.dtype(dtype))  # numpy reads None as float64
    except TypeError:
        found = None
    if found is None:
        raise ValueError(f"dtype is {dtype!r}; wanted one of {', '.join(f.dtype.name for f in ALL)}")
    return found


def cast(x: Any, format: Any, *, saturate: bool = True) -> np.ndarray:
    """`x` rounded to nearest, ties to even, once, whatever the input (no rounding on the way).

    x: array of any shape and of any known format. Returns an array of the same shape with dtype format.dtype.
    saturate: formats of 8 bits and fewer give their largest value for what lies beyond it, infinities included (as
    cvt.satfinite does on a GPU); without it they give NaN, or infinity where the format has one. Wider floats always
    overflow to infinity, as IEEE 754 says. NaN stays NaN; e2m1, which has none, refuses it with ValueError.
    ue8m0 holds powers of two only: ties go to the larger one, and zero and negative numbers become NaN.
    """
    target = named(format)
    x = np.asarray(x)
    if target.maximum is None:
        raise ValueError(f"format is {target.name}; wanted a floating-point format to round to")
    if x.dtype == target.dtype:
        return x
    is_integer = x.dtype.kind in "iu"
    with np.errstate(over="ignore", invalid="ignore"):
        if target is F64 or target is F32:
            return x.astype(target.dtype)
        wide = _odd_float32(x.astype(np.float64)) if is_integer or x.dtype == F64.dtype else x.astype(np.float32)
        if target is E2M1 and np.isnan(wide).any():
            raise ValueError("x holds NaN, which e2m1 cannot; wanted numbers")
        if target is UE8M0:
            return _power_of_two(wide, saturate)
        if saturate and target.bits <= 8:
            wide = np.clip(wide, -target.maximum, target.maximum)
        return wide.astype(target.dtype)


_NAN = np.uint32(0x7FFFFFFF).view(np.float32)


def canonical_nan(x: np.ndarray) -> np.ndarray:
    """float32 `x` with every NaN made 0x7fffffff, as portable operations give it; may be x itself."""
    nan = np.isnan(x)
    return np.where(nan, _NAN, x) if np.count_nonzero(nan) else x


def converted(x: np.ndarray, format: Format) -> np.ndarray:
    """float32 `x` as kernels store it in a format: NaN is 0x7fffffff in float32, 0x7fff in bfloat16 and float16."""
    if format is F32:
        return canonical_nan(x)
    result = cast(x, format, saturate=False)
    if format in (BF16, F16):
        result.view(np.uint16)[np.isnan(x)] = 0x7FFF
    return result


def _power_of_two(x: np.ndarray, saturate: bool) -> np.ndarray:
    """float32 `x` to ue8m0, whose codes are the exponent field of float32; ml_dtypes releases differ on ties."""
    bits = x.view(np.int32)
    codes = np.where(bits < 0x600000, 0, (bits + 0x400000) >> 23)  # 2^-127, code 0, lies among the subnormals
    if saturate:
        codes = np.minimum(codes, 254)
    return np.where(x > 0, codes, 255).astype(np.uint8).view(UE8M0.dtype)


def decode(codes: Any, format: Any = None, dtype: Any = np.float32) -> np.ndarray:
    """The values that codes stand for, exactly.

    codes: an array of a float format's own dtype, or of unsigned integers that hold its bits (uint8 for float8), any
    shape; the latter need `format`. dtype: float32 or float64. Returns an array of that dtype and the codes' shape.
    """
    codes = np.asarray(codes)
    source = of(codes.dtype) if format is None else named(format)
    if source.maximum is None:
        raise ValueError(f"codes are {source.name}; wanted a float format, or format= to say what the bits mean")
    if codes.dtype.itemsize != source.itemsize:
        raise ValueError(f"codes are {codes.dtype}; wanted {source.itemsize} bytes each for {source.name}")
    if source.itemsize == 1:  # a table beats converting each element, and indexing beats take
        return np.asarray(_values(source, np.dtype(dtype))[codes.view(np.uint8)])
    with np.errstate(invalid="ignore"):
        return codes.view(source.dtype).astype(dtype)


@cache
def _values(format: Format, dtype: np.dtype[Any]) -> np.ndarray:
    """The value of each of the 256 codes of a one-byte format."""
    table = np.arange(256, dtype=np.uint8).view(format.dtype).astype(dtype)
    table.flags.writeable = False
    return table


def ocp_to_fnuz(codes: Any) -> np.ndarray:
    """e4m3 codes (uint8, any shape) as e4m3fnuz codes of *half* the value: double the scale that goes with them.

    The same byte means half as much in FNUZ. Only negative zero moves (0x80 is NaN there, so it becomes 0x00), and
    the OCP NaN bytes 0x7f and 0xff, which FNUZ would read as 240, become 0x80. Exact for every other byte.
    """
    codes = _bytes(codes)
    converted = np.where(codes == 0x80, np.uint8(0x00), codes)
    return np.where(codes & 0x7F == 0x7F, np.uint8(0x80), converted)


def fnuz_to_ocp(codes: Any) -> np.ndarray:
    """e4m3fnuz codes (uint8, any shape) as e4m3 codes of *twice* the value: halve the scale that goes with them.

    FNUZ NaN 0x80 becomes 0x7f. The FNUZ numbers +-240 (0x7f, 0xff) would read as NaN and twice their value, 480, is
    beyond e4m3: they become 0x7e and 0xfe (448), the nearest there is. Exact for every other byte.
    """
    codes = _bytes(codes)
    converted = np.where(codes & 0x7F == 0x7F, codes - np.uint8(1), codes)
    return np.where(codes == 0x80, np.uint8(0x7F), converted)


def _bytes(codes: Any) -> np.ndarray:
    codes = np.asarray(codes)
    if codes.dtype.itemsize != 1:
        raise ValueError(f"codes are {codes.dtype}; wanted one byte each")
    return codes.view(np.uint8)


def fma32(a: Any, b: Any, c: Any) -> np.ndarray:
    """a * b + c in float32, rounded once to nearest even, as fma.rn.f32 does on a GPU.

    a, b, c: float32, broadcast together. Subnormals are kept, infinities follow IEEE 754, NaN gives some NaN (which
    one is the chip's affair). The product of two float32 is exact in float64, so only the sum can be rounded twice.
    """
    # converted up front, since numpy's mixed arithmetic converts in slow small pieces
    a, b, c = (np.asarray(operand).astype(np.float64) for operand in (a, b, c))
    with np.errstate(over="ignore", invalid="ignore"):
        return sum32(a * b, c)


def sum32(x: Any, y: Any) -> np.ndarray:
    """x + y of float64 arrays, broadcast together, rounded once to float32, to nearest even.

    Rounding their float64 sum once more is wrong only where that lies halfway between two float32 values or is
    subnormal in float32: those elements are summed again, to odd (Boldo and Melquiond, "Emulation of FMA and correctly
    rounded sums", 2008).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.asarray(x + y)
        suspect = (total.view(np.int64) & _BELOW_FLOAT32) == _HALFWAY
        suspect |= np.abs(total) < _SMALLEST_NORMAL
        if np.count_nonzero(suspect) and np.count_nonzero(suspect & (total != 0)):  # a sum of zero is exact
            x, y = np.broadcast_to(x, total.shape), np.broadcast_to(y, total.shape)
            total[suspect] = _sum_to_odd(x[suspect], y[suspect])
        return total.astype(np.float32)


def two_sum(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """x + y of float64 arrays, and exactly what that addition lost (Knuth)."""
    total = np.asarray(x + y)
    back = total - x
    return total, (x - (total - back)) + (y - back)


_BELOW_FLOAT32 = (1 << 29) - 1  # the bits of a float64 significand that float32 lacks
_HALFWAY = 1 << 28
_SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)


def _sum_to_odd(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y in float64, rounded to odd: rounding that to float32 is then the only rounding that counts."""
    return _odd(*two_sum(x, y))


def _odd_float32(x: np.ndarray) -> np.ndarray:
    """float64 `x` rounded to odd in float32: rounding that to 22 bits or fewer is rounding `x`."""
    nearest = np.asarray(x.astype(np.float32))
    return _odd(nearest, x - nearest)


def _odd(nearest: np.ndarray, error: np.ndarray) -> np.ndarray:
    """`nearest`, or, where it is inexact and its last bit is 0, its neighbour on the side of `error`."""
    bits = nearest.view(f"i{nearest.dtype.itemsize}")
    outward = (error > 0) != np.signbit(nearest)
    inexact = (error > 0) | (error < 0)  # false for NaN, unlike error != 0
    step = np.where(inexact & (bits & 1 == 0), np.where(outward, 1, -1), 0).astype(bits.dtype)
    return (bits + step).view(nearest.dtype)
