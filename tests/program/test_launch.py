"""Tensor maps and launches as data: validated once, packed in the order of the parameters."""

from __future__ import annotations

import re
import struct

import ml_dtypes
import numpy as np
import pytest

from kingpost.arrays import View, view
from kingpost.formats import BF16, E4M3, F32, U8, Format
from kingpost.program import Builder, Launch, Program, TensorMap, TensorMapType, f32, pack, u64


def matrix(rows: int, columns: int, pitch: int | None = None, format: Format = E4M3, pointer: int = 1 << 20) -> View:
    size = format.itemsize
    return View(pointer, (rows, columns), (pitch or columns * size, size), format, "cpu", None)


# Tensor maps


@pytest.mark.parametrize("box, format, swizzle, row, bytes", [
    ((64, 128), E4M3, 128, 128, 64 * 128),
    ((256, 64), BF16, 128, 128, 256 * 128),
    ((8, 16), E4M3, 0, 16, 128),
    ((8, 32), E4M3, 32, 32, 256),
    ((8, 16), E4M3, 128, 16, 128),
    ((256,), F32, 0, 1024, 1024),
    ((2, 3, 4, 5, 16), E4M3, 0, 16, 2 * 3 * 4 * 5 * 16),
])  # fmt: skip
def test_boxes(box: tuple[int, ...], format: Format, swizzle: int, row: int, bytes: int) -> None:
    type = TensorMapType(format, box, swizzle)
    assert (type.row_bytes, type.bytes) == (row, bytes)


@pytest.mark.parametrize("box, format, swizzle, message", [
    ((257, 16), E4M3, 0, "box is (257, 16); 1 to 5 sides of 1 to 256 elements are wanted"),
    ((0, 16), E4M3, 0, "box is (0, 16)"),
    ((), E4M3, 0, "box is ()"),
    ((1,) * 5 + (16,), E4M3, 0, "1 to 5 sides"),
    ((8, 8), E4M3, 0, "a row of box (8, 8) has 8 bytes; a multiple of 16 is wanted"),
    ((8, 24), E4M3, 0, "24 bytes"),
    ((8, 256), E4M3, 128, "box (8, 256) has 256 bytes; a multiple of 16 is wanted, at most the swizzle's 128"),
    ((8, 64), F32, 128, "256 bytes"),
    ((8, 16), E4M3, 16, "swizzle is 16; one of (0, 32, 64, 128) is wanted"),
])  # fmt: skip
def test_boxes_that_no_copy_engine_takes(box: tuple[int, ...], format: Format, swizzle: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        TensorMapType(format, box, swizzle)


TYPE = TensorMapType(E4M3, (64, 128), 128)


@pytest.mark.parametrize("given", [
    matrix(100, 400), matrix(1, 16), matrix(100, 400, pitch=512), matrix(7, 48, format=U8), matrix(3, 7, pitch=16),
    matrix(1, 400, pitch=401), View(1 << 20, (64, 1), (16, 5), E4M3, "cpu", None),
])  # fmt: skip
def test_views_that_a_map_takes(given: View) -> None:
    assert TensorMap(TYPE, given).view is given


@pytest.mark.parametrize("given, message", [
    (matrix(100, 400, pointer=(1 << 20) + 8), "address 0x100008, strides (400, 1) bytes; multiples of 16 are wanted"),
    (matrix(100, 200), "strides (200, 1) bytes; multiples of 16 are wanted"),
    (matrix(400, 112).T, "strides (1, 112)"),
    (View(1 << 20, (64, 64), (128, 2), E4M3, "cpu", None), "contiguous elements are wanted in the last"),
    (matrix(100, 400, format=BF16), "a tensor map of e4m3 over a view of bfloat16"),
    (View(1 << 20, (64,), (1,), E4M3, "cpu", None), "a tensor map of 2 dimensions over a view of shape (64,)"),
])  # fmt: skip
def test_views_that_a_map_refuses(given: View, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        TensorMap(TYPE, given)


# Launches


def program() -> Program:
    k = Builder("many", "nowhere")
    k.parameter("count")
    k.tensor_map("a", E4M3, (64, 128), 128)
    k.parameter("eps", f32)
    k.parameter("address", u64)
    return k.finish({})


def arguments(**changes: object) -> dict:
    return {"count": 7, "a": TensorMap(TYPE, matrix(100, 400)), "eps": 0.1, "address": 1 << 40, **changes}


def test_parameters_are_packed_in_order() -> None:
    given = dict(reversed(arguments().items()))
    packed = pack(Launch(program(), 3, given), lambda map: map.view.shape[0].to_bytes(128, "little"))
    assert packed == [
        struct.pack("<I", 7), (100).to_bytes(128, "little"), struct.pack("<f", 0.1), struct.pack("<Q", 1 << 40)
    ]  # fmt: skip
    assert [parameter.bytes for parameter in program().parameters] == [len(each) for each in packed]


@pytest.mark.parametrize("changes, message", [
    ({"count": -1}, "argument count is -1; a u32 is wanted"),
    ({"count": 1 << 32}, "argument count is 4294967296; a u32 is wanted"),
    ({"count": 1.5}, "argument count is 1.5; a u32 is wanted"),
    ({"count": "7"}, "argument count is '7'; a u32 is wanted"),
    ({"count": np.int64(7)}, "a u32 is wanted"),
    ({"count": TensorMap(TYPE, matrix(1, 16))}, "a u32 is wanted"),
    ({"address": 1 << 64}, "a u64 is wanted"),
    ({"eps": None}, "argument eps is None; a f32 is wanted"),
    ({"a": 5}, "argument a is 5; a map of TensorMapType(format="),
    ({"a": TensorMap(TensorMapType(E4M3, (64, 64), 64), matrix(1, 16))}, "box=(64, 128), swizzle=128) is wanted"),
    ({"more": 5}, "are ['a', 'address', 'count', 'eps', 'more']; ['a', 'address', 'count', 'eps'] are wanted"),
])  # fmt: skip
def test_wrong_arguments(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Launch(program(), 1, arguments(**changes))


def test_missing_arguments() -> None:
    given = arguments()
    del given["eps"]
    with pytest.raises(ValueError, match=re.escape("arguments are ['a', 'address', 'count']")):
        Launch(program(), 1, given)


def test_a_map_over_an_array() -> None:
    array = np.zeros((5, 32), ml_dtypes.float8_e4m3fn)
    type = TensorMapType(E4M3, (8, 32), 32)
    assert TensorMap(type, view(array)).view.shape == (5, 32)
    assert TensorMap(type, view(array)) == TensorMap(type, view(array))
