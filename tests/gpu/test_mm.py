"""`kp.mm` on a GPU: the emulator's bits, whatever the shape, the library, the layout of scales, the stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kingpost as kp
from kingpost import emulate, ops, registry
from kingpost.formats import BF16, F32, Format

from ..targets.nvidia.product import Operands, operands, poisoned, same_bits

pytestmark = pytest.mark.gpu

GPU, EMULATED = "cuda:0", "emulated:sm_90a"
SHAPES = {
    "one row": (1, 256, 512),
    "ragged rows": (77, 136, 400),
    "K tail of 16": (128, 128, 144),
    "N of 136": (200, 136, 256),
    "smallest": (1, 8, 16),
    "ragged everywhere": (333, 264, 272),
    "long K": (5, 40, 2064),
    "64 rows": (64, 512, 384),
}
MODELLED = {
    "more than two tiles a multiprocessor": (2200, 4096, 528),
    "two tiles of rows for every block": (2100, 2056, 256),
}


def multiply(given: Operands, out: Format = BF16, device: str = GPU) -> np.ndarray:
    """numpy in, numpy out; what is not written stays NaN."""
    d = poisoned(given, out)
    assert kp.mm(*given.scaled(), out=d, device=device) is d
    return d


@pytest.mark.parametrize("out", [BF16, F32], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_of_the_emulator(shape: str, out: Format) -> None:
    given = operands(*SHAPES[shape], seed=sum(SHAPES[shape]))
    d = multiply(given, out)
    assert same_bits(d, multiply(given, out, EMULATED))
    assert same_bits(d, given.expected(out))


@pytest.mark.parametrize("shape", MODELLED)
def test_bits_of_the_model_and_of_emulated_blocks(shape: str) -> None:
    given = operands(*MODELLED[shape])
    d = multiply(given)
    assert same_bits(d, given.expected(BF16))
    emulated = poisoned(given, BF16)
    launch = ops.launch_mm(*given.scaled(), emulated, registry.find(EMULATED))
    tile = launch.program.config["tile"]
    rows, columns = tile.rows, tile.columns
    tiles = -(-d.shape[0] // rows) * -(-d.shape[1] // columns)
    assert tiles > (2 if shape.startswith("more") else 1) * launch.grid
    emulate.run(launch, blocks=[0, launch.grid - 1])
    written = ~np.isnan(emulated.astype(np.float32))
    assert written.sum() >= 2 * columns and not written.all()
    assert same_bits(emulated[written], d[written])


@pytest.mark.parametrize("n, k", [(136, 400), (4096, 1024)])
def test_bits_of_a_row_do_not_depend_on_m(n: int, k: int) -> None:
    given = operands(4096, n, k)
    all_rows = multiply(given)
    assert same_bits(multiply(given.rows(1)), all_rows[:1])
    assert same_bits(multiply(given.rows(7)), all_rows[:7])
    assert same_bits(given.rows(7).expected(BF16), all_rows[:7])


def test_every_code_but_nan() -> None:
    given = operands(130, 136, 272, any_code=True)
    assert same_bits(multiply(given, F32), given.expected(F32))


@pytest.mark.parametrize("out", [BF16, F32], ids=str)
def test_nan_codes_stay_in_their_row_and_column(out: Format) -> None:
    given = operands(70, 72, 272)
    given.a[3, 200] = given.b[5, 0] = np.nan
    d = multiply(given, out)
    nan = np.zeros(d.shape, bool)
    nan[3] = nan[:, 5] = True
    np.testing.assert_array_equal(np.isnan(d.astype(np.float32)), nan)
    assert same_bits(d, given.expected(out))


def test_two_runs_give_the_same_bits() -> None:
    given = operands(1000, 2048, 512)
    assert same_bits(multiply(given), multiply(given))


@pytest.mark.parametrize("m, n, k", [(0, 16, 32), (4, 0, 32), (4, 16, 0), (0, 0, 0)])
def test_empty_problems(m: int, n: int, k: int) -> None:
    d = kp.mm(*operands(m, n, k).scaled(), device=GPU)
    assert d.shape == (m, n) and d.dtype == ml_dtypes.bfloat16
    assert not d.astype(np.float32).any()


# torch tensors on the GPU


@pytest.fixture
def torch() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch was built without CUDA")
    return torch


class OnDevice:
    """Operands as torch tensors on the GPU."""

    def __init__(self, torch: Any, given: Operands) -> None:
        def moved(x: np.ndarray) -> Any:
            return torch.from_numpy(np.ascontiguousarray(x)).to(GPU)

        def codes(x: np.ndarray) -> Any:
            return moved(x.view(np.uint8)).view(torch.float8_e4m3fn)

        self.torch = torch
        self.a, self.b = codes(given.a), codes(given.b)
        self.scale_a, self.scale_b = moved(given.scale_a), moved(given.scale_b)
        self.shape = given.shape

    def scaled(self) -> tuple[kp.ScaledTensor, kp.ScaledTensor]:
        return kp.ScaledTensor(self.a, self.scale_a, "1x128"), kp.ScaledTensor(self.b, self.scale_b, "128x128").T

    def poisoned(self, dtype: str = "bfloat16") -> Any:
        m, n, _ = self.shape
        return self.torch.full((m, n), float("nan"), dtype=getattr(self.torch, dtype), device=GPU)

    def become(self, other: OnDevice) -> None:
        """Take another's values, in the order of the current stream."""
        for name in ("a", "b"):
            getattr(self, name).view(self.torch.uint8).copy_(getattr(other, name).view(self.torch.uint8))
        self.scale_a.copy_(other.scale_a)
        self.scale_b.copy_(other.scale_b)


def bits(tensor: Any) -> bytes:
    import torch

    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
def test_torch_tensors(torch: Any, out_dtype: str) -> None:
    given = operands(77, 136, 400)
    d = kp.mm(*OnDevice(torch, given).scaled(), out_dtype=out_dtype)
    assert d.dtype == getattr(torch, out_dtype) and str(d.device) == GPU
    assert bits(d) == given.expected(BF16 if out_dtype == "bfloat16" else F32).tobytes()


def test_torch_tensors_of_the_host(torch: Any) -> None:
    given = operands(77, 136, 400)
    a, b = OnDevice(torch, given).scaled()
    d = kp.mm(a.to("cpu"), b.to("cpu"), device=GPU)
    assert d.device.type == "cpu"
    assert bits(d) == given.expected(BF16).tobytes()


def strided(torch: Any) -> dict[str, Callable[[Any], Any]]:
    def inside(x: Any, rows: int, columns: int, where: tuple[slice, slice]) -> Any:
        larger = torch.full((rows, columns), float("nan"), device=x.device)
        larger[where] = x
        return larger[where]

    return {
        "transposed": lambda x: x.T.contiguous().T,
        "padded rows": lambda x: inside(x, x.shape[0], x.shape[1] + 3, np.s_[:, : x.shape[1]]),
        "padded and transposed": lambda x: inside(x.T, x.shape[1], x.shape[0] + 5, np.s_[:, : x.shape[0]]).T,
        "every third, every second": lambda x: inside(x, 3 * x.shape[0], 2 * x.shape[1], np.s_[::3, ::2]),
    }


@pytest.mark.parametrize("layout", ["transposed", "padded rows", "padded and transposed", "every third, every second"])
@pytest.mark.parametrize("m", [3, 300])
def test_scales_are_read_by_their_strides(torch: Any, layout: str, m: int) -> None:
    given = operands(m, 264, 656)
    device = OnDevice(torch, given)
    for name in ("scale_a", "scale_b"):
        setattr(device, name, strided(torch)[layout](getattr(device, name)))
    assert device.scale_a.stride() != OnDevice(torch, given).scale_a.stride()
    assert bits(kp.mm(*device.scaled())) == given.expected(BF16).tobytes()


def test_scales_expanded_from_one(torch: Any) -> None:
    given = operands(100, 136, 400)
    given.scale_a[...] = given.scale_a[0, 0]
    device = OnDevice(torch, given)
    device.scale_a = device.scale_a[:1, :1].expand(100, 4)
    assert device.scale_a.stride() == (0, 0)
    assert bits(kp.mm(*device.scaled())) == given.expected(BF16).tobytes()


def test_gaps_between_rows(torch: Any) -> None:
    """Operands and result as columns of wider tensors, the gaps full of NaN and left alone."""
    given = operands(150, 136, 400)
    device = OnDevice(torch, given)
    for name in ("a", "b"):
        x = getattr(device, name).view(torch.uint8)
        wide = torch.full((x.shape[0], 512), 0x7F, dtype=torch.uint8, device=GPU)
        wide[:, 32:432] = x
        setattr(device, name, wide.view(torch.float8_e4m3fn)[:, 32:432])
    whole = torch.full((150, 200), float("nan"), dtype=torch.bfloat16, device=GPU)
    out = whole[:, 8:144]
    assert kp.mm(*device.scaled(), out=out) is out
    assert bits(out) == given.expected(BF16).tobytes()
    assert bool(whole[:, :8].isnan().all()) and bool(whole[:, 144:].isnan().all())


def test_graph_capture(torch: Any) -> None:
    first, second = operands(77, 136, 400, seed=1), operands(77, 136, 400, seed=2)
    device, out = OnDevice(torch, first), OnDevice(torch, first).poisoned()
    a, b = device.scaled()
    kp.mm(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kp.mm(a, b, out=out)
        allocated = kp.mm(a, b, out_dtype="float32")
    out.fill_(float("nan"))
    graph.replay()
    assert bits(out) == first.expected(BF16).tobytes()
    device.become(OnDevice(torch, second))
    graph.replay()
    assert bits(out) == second.expected(BF16).tobytes()
    assert bits(allocated) == second.expected(F32).tobytes()


@pytest.mark.parametrize("how", ["current", "torch's", "handle"])
def test_the_callers_stream(torch: Any, how: str) -> None:
    """The operands arrive late on a side stream: a product on any other stream would read the ones before."""
    old, new = operands(77, 136, 400, seed=1), operands(77, 136, 400, seed=2)
    device, later = OnDevice(torch, old), OnDevice(torch, new)
    out = device.poisoned()
    kp.mm(*device.scaled(), out=out)
    assert bits(out) == old.expected(BF16).tobytes()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about a tenth of a second
        device.become(later)
        if how == "current":
            kp.mm(*device.scaled(), out=out)
    if how != "current":
        kp.mm(*device.scaled(), out=out, stream=stream if how == "torch's" else stream.cuda_stream)
    assert not stream.query(), "the call waited for the stream"
    stream.synchronize()
    assert bits(out) == new.expected(BF16).tobytes()


def test_threads_on_streams_of_their_own(torch: Any) -> None:
    given = [operands(m, 136, 400, seed=m) for m in (1, 50, 77, 300)]
    wrong: list[int] = []

    def work(index: int) -> None:
        device, wanted = OnDevice(torch, given[index]), given[index].expected(BF16).tobytes()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            wrong.extend(index for _ in range(20) if bits(kp.mm(*device.scaled())) != wanted)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("how", ["torch's", "handle"])
def test_a_new_result_belongs_to_the_callers_stream(torch: Any, how: str) -> None:
    """Memory freed while its own stream still writes it must not become the result on another stream."""
    given = operands(64, 512, 384)
    device, stream = OnDevice(torch, given), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    busy = torch.empty(64, 512, dtype=torch.bfloat16, device="cuda")
    torch.cuda._sleep(200_000_000)
    busy.fill_(float("nan"))  # runs after the product, if that does not wait for it
    del busy
    d = kp.mm(*device.scaled(), stream=stream if how == "torch's" else stream.cuda_stream)
    torch.cuda.synchronize()
    assert bits(d) == given.expected(BF16).tobytes()
