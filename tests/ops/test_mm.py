"""`kp.mm` on the devices that every machine has: what it takes, what it refuses, and in which words."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kingpost as kp
from kingpost import ops, plan, reference, registry
from kingpost.formats import U8
from kingpost.registry import Elementwise

from .operands import in_order, normal, same, scaled, stored
from .recorder import Recorder

DEVICES = "cpu", "emulated:sm_90a"
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
M, N, K = 130, 64, 256

everywhere = pytest.mark.parametrize("device", DEVICES)


def operands(m: int = M, n: int = N, k: int = K) -> tuple[kp.ScaledTensor, kp.ScaledTensor]:
    """a [m, k], b [k, n]."""
    random = np.random.default_rng(0)
    a, weight = (random.standard_normal((rows, k), dtype=np.float32) for rows in (m, n))
    return kp.quantize(a, "1x128"), kp.quantize(weight, "128x128").T


def shifted(array: np.ndarray, bytes: int) -> np.ndarray:
    """A copy that starts so many bytes after a multiple of 64."""
    room = np.zeros(array.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + bytes
    moved = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@everywhere
def test_mapped_files_are_arrays(device: str, tmp_path: Path) -> None:
    a, b = operands()
    weight = np.memmap(tmp_path / "weight", np.uint8, "w+", shape=(N, K))
    weight[:] = b.T.data.view(np.uint8)
    mapped = kp.ScaledTensor(weight.view(E4M3), b.T.scales, "128x128").T
    out = np.memmap(tmp_path / "out", BF16, "w+", shape=(M, N))
    assert kp.mm(a, mapped, out=out, device=device) is out
    assert out.tobytes() == kp.mm(a, b, device=device).tobytes()


@everywhere
@pytest.mark.parametrize("m, n, k", [(m, n, k) for m in (0, 3) for n in (0, 8) for k in (0, 16) if 0 in (m, n, k)])
def test_nothing_times_anything(device: str, m: int, n: int, k: int) -> None:
    a, b = operands(m, n, k)
    out = np.full((m, n), np.nan, np.float32)
    assert kp.mm(a, b, out=out, device=device) is out and not out.any()
    fresh = kp.mm(a, b, device=device)
    assert fresh.shape == (m, n) and fresh.dtype == BF16 and not fresh.astype(np.float32).any()


@everywhere
def test_no_program_for_an_empty_product(device: str) -> None:
    with pytest.raises(ValueError, match="M, N, K are 3, 8, 0; at least 1 of each is wanted"):
        ops.launch_mm(*operands(3, 8, 0), np.empty((3, 8), BF16), registry.find(device))


@everywhere
def test_bits_of_a_row_do_not_depend_on_m(device: str) -> None:
    a, b = operands(70, 40, 272)
    whole = kp.mm(a, b, device=device)
    for rows in (1, 7):
        some = kp.ScaledTensor(a.data[:rows], a.scales[:rows], "1x128")
        assert kp.mm(some, b, device=device).tobytes() == whole[:rows].tobytes()


@everywhere
@pytest.mark.parametrize("which", ["a.data", "b.data"])
def test_codes_that_a_copy_engine_cannot_reach(device: str, which: str) -> None:
    a, b = operands()
    if which == "a.data":
        a = kp.ScaledTensor(shifted(a.data, 8), a.scales, "1x128")
    else:
        b = kp.ScaledTensor(shifted(b.T.data, 8), b.T.scales, "128x128").T
    with pytest.raises(ValueError, match=rf"{which}.* starts at address 0x.*8; a multiple of 16 is wanted"):
        kp.mm(a, b, device=device)


@everywhere
def test_a_result_that_a_copy_engine_cannot_reach(device: str) -> None:
    with pytest.raises(ValueError, match=r"out starts at address 0x.*2; a multiple of 16 is wanted"):
        kp.mm(*operands(), out=shifted(np.zeros((M, N), BF16), 2), device=device)


@everywhere
@pytest.mark.parametrize("which", ["a.scales", "b.scales"])
def test_scales_that_a_thread_cannot_load(device: str, which: str) -> None:
    a, b = operands()
    if which == "a.scales":
        a = kp.ScaledTensor(a.data, shifted(a.scales, 1), "1x128")
    else:
        b = kp.ScaledTensor(b.T.data, shifted(b.T.scales, 1), "128x128").T
    with pytest.raises(ValueError, match=rf"{which} start at address 0x.*1, .*; multiples of 4 are wanted"):
        kp.mm(a, b, device=device)


@everywhere
@pytest.mark.parametrize("which", ["a.data", "a.scales", "b.data", "b.scales"])
def test_a_result_over_an_operand(device: str, which: str) -> None:
    """The operand `which` lies in a room right behind the result, which then moves onto its first byte."""
    a, b = operands()
    arrays = {"a.data": a.data, "a.scales": a.scales, "b.data": b.T.data, "b.scales": b.T.scales}
    result = M * N * 2
    room = shifted(np.zeros(result + 16 + arrays[which].nbytes, np.uint8), 0)
    behind = room[result : result + arrays[which].nbytes].view(arrays[which].dtype).reshape(arrays[which].shape)
    behind[...] = arrays[which]
    arrays[which] = behind
    x = kp.ScaledTensor(arrays["a.data"], arrays["a.scales"], "1x128")
    w = kp.ScaledTensor(arrays["b.data"], arrays["b.scales"], "128x128")
    apart, over = (room[start : start + result].view(BF16).reshape(M, N) for start in (0, 16))
    with pytest.raises(ValueError, match=f"out shares memory with {which}; memory of its own is wanted"):
        kp.mm(x, w.T, out=over, device=device)
    assert kp.mm(x, w.T, out=apart, device=device).tobytes() == kp.mm(a, b, device=device).tobytes()


@everywhere
def test_parameters_of_modules_are_tensors(device: str) -> None:
    torch = pytest.importorskip("torch")
    random = torch.Generator().manual_seed(0)
    a = kp.quantize(torch.randn((M, K), generator=random), "1x128")
    weight = kp.quantize(torch.randn((N, K), generator=random), "128x128")
    keep = torch.nn.Parameter
    for grad in (False, True):
        x = kp.ScaledTensor(keep(a.data, grad), keep(a.scales, grad), "1x128")
        w = kp.ScaledTensor(keep(weight.data, grad), keep(weight.scales, grad), "128x128")
        assert torch.equal(kp.mm(x, w.T, device=device), kp.mm(a, weight.T, device=device))


SCALED = [(a, b) for a in ("1x128", "row", "tensor") for b in ("1x128", "128x128", "row", "tensor")]
PAIRS = [*SCALED, ("1x32:ue8m0", "1x32:ue8m0")]


@pytest.mark.parametrize("a_scaling, b_scaling", PAIRS)
@pytest.mark.parametrize("formats", ["e4m3 e4m3", "e5m2 e4m3", "e4m3fnuz e4m3fnuz"])
def test_scalings_and_formats_within_the_bound(a_scaling: str, b_scaling: str, formats: str) -> None:
    a_format, b_format = formats.split()
    a = scaled(5, 272, scaling=a_scaling, format=a_format)
    b = scaled(24, 272, scaling=b_scaling, format=b_format).T
    for out_dtype in ("bfloat16", "float16", "float32"):
        reference.check(kp.mm(a, b, out_dtype=out_dtype), a, b)


@given(m=st.integers(1, 40), n=st.integers(1, 6), k=st.integers(1, 40), how=st.sampled_from(["", "a", "b", "ab"]))
@settings(max_examples=40)
def test_bfloat16_of_any_size_and_order(m: int, n: int, k: int, how: str) -> None:
    """how: whose K is not contiguous."""
    a, b = normal(8 * m if "a" in how else m, 8 * k), normal(8 * k, 8 * n)
    a = in_order(a, 1, 0) if "a" in how else a
    b = b if "b" in how else in_order(b, 1, 0)
    d = kp.mm(a, b, out_dtype="float32")
    reference.check(d, a, b)
    assert same(kp.mm(a[:1].copy(), b, out_dtype="float32"), d[:1])


@pytest.mark.parametrize("scaling", ["1x128", "tensor", "1x32:ue8m0"])
def test_codes_in_any_order_give_the_same_bits(scaling: str) -> None:
    a, w = scaled(7, 144, scaling=scaling), scaled(24, 144, scaling=scaling)
    want = kp.mm(a, w.T)
    for left in (a, stored(a, 1, 0)):
        for right in (w, stored(w, 1, 0)):
            assert same(kp.mm(left, right.T), want)


def test_codes_are_copied_by_the_device_and_only_then() -> None:
    device = Recorder()
    a, w = scaled(48, 144), scaled(24, 144, scaling="128x128")
    kp.mm(a, w.T, device=device)
    assert [problem.op for problem, _ in device.asked] == ["mm"]
    turned = stored(w, 1, 0)
    kp.mm(a, turned.T, device=device)
    (problem, moved), (product, operands) = device.asked[1:]
    assert problem == Elementwise("transpose", (("source", U8), ("destination", U8)))
    assert moved["source"].pointer == turned.data.ctypes.data and moved["source"].shape == (144, 24)
    assert moved.results == ("destination",) and moved["destination"].shape == (24, 144)
    assert operands["b"].pointer == moved["destination"].pointer and operands["b"].strides == (144, 1)
    assert product == device.asked[0][0]


def test_what_a_device_is_asked() -> None:
    device = Recorder(orders=("ascending", "fast"))
    a, b = normal(16, 64), normal(64, 24)
    kp.mm(a, b, order="fast", device=device)
    problem, operands = device.last
    assert (problem.a_major, problem.b_major, problem.order, problem.n, problem.k) == ("k", "mn", "fast", 24, 64)
    assert list(operands.views) == ["a", "b", "d"] and operands.rows == 16
    assert operands["b"].shape == (24, 64) and operands["b"].strides == (2, 48)
    x = scaled(3, 64)
    kp.mm(x, scaled(8, 64, scaling="row").T, c=np.zeros((3, 8), BF16), alpha=2, bias=np.zeros(8, "f4"), device=device)
    problem, operands = device.last
    assert list(operands.views) == ["a", "scale_a", "b", "scale_b", "c", "bias", "d"] and operands.results == ("d",)
    assert (problem.a_scaling, problem.b_scaling, operands.numbers) == ("1x128", "row", (("alpha", 2.0),))


def test_another_order_of_sums_where_there_is_one() -> None:
    a, b = normal(16, 64), normal(64, 24)
    assert same(kp.mm(a, b, order="fast"), kp.mm(a, b))
    with pytest.raises(ValueError, match="order is 'any'; 'ascending' or 'fast' is wanted"):
        kp.mm(a, b, order="any")


@pytest.mark.parametrize("device", ["cpu", "emulated:sm_90a"])
@pytest.mark.parametrize(
    "a, b, message",
    [
        (normal(4, 32), normal(16, 8), r"a is \[4, 32\] and b is \[16, 8\]; \[M, K\] and \[K, N\] are wanted"),
        (normal(4, 32), normal(8, 32), r"with one K; pass a weight kept as \[N, K\] as w\.T"),
        (normal(4, 32), normal(32, 12), "N, the columns of b, is 12; a multiple of 8 is wanted"),
        (normal(4, 12), normal(12, 8), "K, the columns of a, is 12; a multiple of 8 is wanted"),
        (scaled(4, 24), scaled(8, 24).T, "K, the columns of a, is 24; a multiple of 16 is wanted"),
        (normal(2, 4, 32), normal(32, 8), r"a has shape \[2, 4, 32\]; \[M, K\] is wanted"),
        (normal(4, 32), scaled(8, 32).T, "b is a ScaledTensor, a an array; both or neither are wanted"),
        (normal(4, 32, dtype="f4"), normal(32, 8), "a is a ndarray of float32; a .*ScaledTensor .* or bfloat16"),
        (scaled(4, 32).data, scaled(8, 32).T, r"a is a ndarray of e4m3; a kingpost.ScaledTensor .* is wanted"),
        (normal(4, 64)[:, ::2], normal(32, 8), r"a has strides \(128, 4\) bytes over shape \[4, 32\]; one of K and M"),
        (normal(4, 33)[:, 1:], normal(32, 8), r"a has strides \(66, 2\) bytes .*positive multiples of 16 bytes apart"),
        (normal(4, 32)[::-1], normal(32, 8), r"a has strides \(-64, 2\) bytes .*positive multiples of 16 bytes apart"),
        (normal(4, 32), normal(32, 9)[:, 1:], r"b has strides \(18, 2\) bytes over shape \[32, 8\]; one of K and N"),
        ([[1.0]], normal(32, 8), r"a is builtins\.list; wanted a numpy array"),
    ],
)
def test_what_does_not_multiply(device: str, a: object, b: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        kp.mm(a, b, device=device)


def test_libraries_do_not_mix() -> None:
    torch = pytest.importorskip("torch")
    there = torch.zeros((32, 8), dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="a is of numpy, b of torch; one library is wanted"):
        kp.mm(normal(4, 32), there)
    with pytest.raises(TypeError, match="out is of torch, a of numpy; one library is wanted"):
        kp.mm(normal(4, 32), normal(32, 8), out=torch.zeros((4, 8), dtype=torch.bfloat16))


def test_scales_of_groups_are_for_products_of_groups() -> None:
    t = scaled(4, 256)
    grouped = kp.ScaledTensor(t.data, t.scales, "1x128", np.array([128, 256], np.int32))
    with pytest.raises(ValueError, match=r"a has ends, .*; kingpost\.grouped_mm_k is wanted"):
        kp.mm(grouped, scaled(8, 256).T)


def test_scalings_that_no_device_has() -> None:
    with pytest.raises(plan.Unsupported, match="cpu has no kernel for mm of e4m3 'column' by e4m3 '1x128'"):
        kp.mm(scaled(4, 128, scaling="column"), scaled(8, 128).T)


def test_values_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands()
    a.data[3, 5] = np.float32(np.nan)
    kp.mm(a, b)
    monkeypatch.setenv("KINGPOST_CHECK", "1")
    with pytest.raises(ValueError, match=r"data at \(3, 5\) are nan"):
        kp.mm(a, b)


def test_a_call_that_was_made_before_goes_straight_to_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Recorder(name="cpu", keeps_calls=True)
    (a, b), out, c = operands(), np.empty((M, N), BF16), np.zeros((M, N), BF16)
    for _ in range(3):
        kp.mm(a, b, out=out, device=device)
    assert len(device.asked) == 3 and device.prepared == 1
    a.scales[0, 0] = np.nan  # not looked at again: on a device that keeps calls, data are not the host's
    kp.mm(a, b, out=out, device=device)
    for other in ({"c": c}, {"alpha": 2}, {"alpha": 3}, {"c": out}, {"order": "fast"}):
        a.scales[0, 0] = 1
        kp.mm(a, b, out=out, device=device, **other)
    assert device.prepared == 6
    whole = kp.ScaledTensor(a.data, a.scales[:, :1].copy(), "row")
    kp.mm(whole, b, out=out, device=device)
    assert device.prepared == 7 and device.last[0].a_scaling == "row"
    monkeypatch.setenv("KINGPOST_CHECK", "1")
    a.scales[0, 0] = np.nan
    with pytest.raises(ValueError, match=r"a\.scales holds NaN"):
        kp.mm(a, b, out=out, device=device)


def test_copied_codes_are_copied_each_time() -> None:
    device = Recorder(name="cpu", keeps_calls=True)
    a, b = stored(scaled(48, 144), 1, 0), scaled(24, 144, scaling="128x128").T
    out = np.empty((48, 24), BF16)
    for _ in range(3):
        kp.mm(a, b, out=out, device=device)
    assert [problem.op for problem, _ in device.asked] == ["transpose", "mm"] * 3
