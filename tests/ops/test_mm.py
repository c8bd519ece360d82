"""`kp.mm` on the devices that every machine has: what it takes, what it refuses, and in which words."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import kingpost as kp
from kingpost import ops, registry

DEVICES = "cpu", "emulated:sm_90a"
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
M, N, K = 130, 64, 256

pytestmark = pytest.mark.parametrize("device", DEVICES)


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


def test_mapped_files_are_arrays(device: str, tmp_path: Path) -> None:
    a, b = operands()
    weight = np.memmap(tmp_path / "weight", np.uint8, "w+", shape=(N, K))
    weight[:] = b.T.data.view(np.uint8)
    mapped = kp.ScaledTensor(weight.view(E4M3), b.T.scales, "128x128").T
    out = np.memmap(tmp_path / "out", BF16, "w+", shape=(M, N))
    assert kp.mm(a, mapped, out=out, device=device) is out
    assert out.tobytes() == kp.mm(a, b, device=device).tobytes()


@pytest.mark.parametrize("m, n, k", [(m, n, k) for m in (0, 3) for n in (0, 8) for k in (0, 16) if 0 in (m, n, k)])
def test_nothing_times_anything(device: str, m: int, n: int, k: int) -> None:
    a, b = operands(m, n, k)
    out = np.full((m, n), np.nan, np.float32)
    assert kp.mm(a, b, out=out, device=device) is out and not out.any()
    fresh = kp.mm(a, b, device=device)
    assert fresh.shape == (m, n) and fresh.dtype == BF16 and not fresh.astype(np.float32).any()


def test_no_program_for_an_empty_product(device: str) -> None:
    with pytest.raises(ValueError, match="M, N, K are 3, 8, 0; at least 1 of each is wanted"):
        ops.launch_mm(*operands(3, 8, 0), np.empty((3, 8), BF16), registry.find(device))


def test_bits_of_a_row_do_not_depend_on_m(device: str) -> None:
    a, b = operands(300, 136, 400)
    whole = kp.mm(a, b, device=device)
    for rows in (1, 7):
        some = kp.ScaledTensor(a.data[:rows], a.scales[:rows], "1x128")
        assert kp.mm(some, b, device=device).tobytes() == whole[:rows].tobytes()


@pytest.mark.parametrize("which", ["a.data", "b.data"])
def test_codes_that_a_copy_engine_cannot_reach(device: str, which: str) -> None:
    a, b = operands()
    if which == "a.data":
        a = kp.ScaledTensor(shifted(a.data, 8), a.scales, "1x128")
    else:
        b = kp.ScaledTensor(shifted(b.T.data, 8), b.T.scales, "128x128").T
    with pytest.raises(ValueError, match=rf"{which}.* starts at address 0x.*8; a multiple of 16 is wanted"):
        kp.mm(a, b, device=device)


def test_a_result_that_a_copy_engine_cannot_reach(device: str) -> None:
    with pytest.raises(ValueError, match=r"out starts at address 0x.*2; a multiple of 16 is wanted"):
        kp.mm(*operands(), out=shifted(np.zeros((M, N), BF16), 2), device=device)


@pytest.mark.parametrize("which", ["a.scales", "b.scales"])
def test_scales_that_a_thread_cannot_load(device: str, which: str) -> None:
    a, b = operands()
    if which == "a.scales":
        a = kp.ScaledTensor(a.data, shifted(a.scales, 1), "1x128")
    else:
        b = kp.ScaledTensor(b.T.data, shifted(b.T.scales, 1), "128x128").T
    with pytest.raises(ValueError, match=rf"{which} start at address 0x.*1, .*; multiples of 4 are wanted"):
        kp.mm(a, b, device=device)


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
