"""Views: memory as it is, from numpy, torch and whoever speaks their protocols."""

import gc
from contextlib import nullcontext
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from kingpost import arrays, formats
from kingpost.arrays import View, view


def test_numpy_strides_are_read_in_bytes():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-1]
    v = view(x)
    assert (v.shape, v.strides, v.format, v.device) == ((2, 6), (48, -4), formats.F32, "cpu")
    assert v.numpy() is x
    lowest, size = v.extent()
    assert (v.pointer - lowest, size) == (20, 48 + 20 + 4)


@pytest.mark.parametrize("format", formats.ALL, ids=str)
def test_every_format_makes_the_round_trip(format):
    x = np.zeros((3, 5), format.dtype)
    x.view(np.uint8)[...] = np.arange(x.nbytes, dtype=np.uint8).reshape(3, -1)
    v = view(x.T)
    assert v.format is format
    again = View(v.pointer, v.shape, v.strides, v.format, v.device, x).numpy()
    assert again.dtype == x.dtype and np.shares_memory(again, x)
    assert again.T.tobytes() == x.tobytes()


def test_a_view_keeps_its_memory():
    v = view(np.full(1000, 7.0, np.float32))
    turned = View(v.pointer, (10, 100), (4, 40), v.format, v.device, v.owner).numpy()
    del v
    gc.collect()
    assert (turned == 7).all()


def test_contiguity():
    v = view(np.zeros((4, 6), np.float32))
    assert v.contiguous and v.adjacent(1) and not v.adjacent(0)
    assert not v.T.contiguous and v.T.adjacent(0)
    assert view(np.zeros((1, 6), np.float32).T).contiguous
    assert view(np.zeros((0, 6), np.float32)[:, ::2]).contiguous
    assert view(np.zeros((0, 6), np.float32)).extent()[1] == 0
    assert view(np.zeros((4, 6), np.float32)[:, :4]).contiguous is False


def test_torch():
    torch = pytest.importorskip("torch")
    x = torch.zeros(4, 6, dtype=torch.bfloat16)[:, 1:5].T
    v = view(x, "x")
    assert (v.pointer, v.shape, v.strides, v.format, v.device) == (x.data_ptr(), (4, 4), (2, 12), formats.BF16, "cpu")
    v.numpy()[0, 1] = 3
    assert x[0, 1] == 3
    assert view(torch.nn.Parameter(torch.zeros(3))).shape == (3,)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e8m0fnu", "uint8", "int32", "float64"):
        dtype = getattr(torch, name)
        assert view(torch.zeros(3, dtype=dtype)).format is formats.named(name)


def test_new_arrays_come_in_the_callers_library():
    x = arrays.empty((2, 3), formats.BF16, np.zeros(1))
    assert (x.shape, x.dtype) == ((2, 3), ml_dtypes.bfloat16)
    with pytest.raises(ValueError, match="device is 'cuda:0'; numpy arrays exist on 'cpu' only"):
        arrays.empty((2, 3), formats.BF16, np.zeros(1), "cuda:0")
    torch = pytest.importorskip("torch")
    y = arrays.empty((2, 3), formats.E4M3, torch.zeros(1), "cpu")
    assert (tuple(y.shape), y.dtype) == ((2, 3), torch.float8_e4m3fn)
    assert (arrays.library_of(x), arrays.library_of(y)) == ("numpy", "torch")


class Exported:
    """What a library that is neither numpy nor torch offers."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class OnGpu:
    """Memory of a second GPU, by protocol alone."""

    @property
    def __cuda_array_interface__(self):
        return {"typestr": "<f4", "shape": (2, 3), "data": (4096, False), "strides": None, "version": 3}

    def __dlpack_device__(self):
        return 2, 1


def test_protocols():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    v = view(Exported(x))
    assert v.pointer == view(x).pointer and v.strides == (12, 4)
    gpu = view(OnGpu())
    assert (gpu.pointer, gpu.strides, gpu.device) == (4096, (12, 4), "cuda:1")
    with pytest.raises(ValueError, match="view is on cuda:1; wanted host memory"):
        gpu.numpy()


def test_refusals_name_the_argument():
    with pytest.raises(TypeError, match=r"a is builtins.list; wanted a numpy array or a torch tensor"):
        view([1.0], "a")
    with pytest.raises(TypeError, match=r"a is complex64; wanted one of float8_e4m3fn"):
        view(np.zeros(3, np.complex64), "a")
    with pytest.raises(TypeError, match=r"a is >f4"):
        view(np.zeros(3, ">f4"), "a")
    with pytest.raises(TypeError, match=r"x is builtins.int"):
        arrays.library_of(3, "x")


def test_torch_refusals_name_the_argument():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"a is on meta; wanted the host or a CUDA GPU"):
        view(torch.zeros(3, device="meta"), "a")
    with pytest.raises(TypeError, match=r"a is torch.complex64"):
        view(torch.zeros(3, dtype=torch.complex64), "a")
    with pytest.raises(ValueError, match=r"a is sparse"):
        view(torch.zeros(3, 3).to_sparse(), "a")


class _Gpu:
    """A torch tensor that says it is on a GPU."""

    is_cuda, device = True, "cuda:0"


def test_on_stream_names_the_callers_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(arrays, "_is_torch", lambda type_: True)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: SimpleNamespace(cuda_stream=handle))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    for given, handle in ((7, 7), (0, 0), (SimpleNamespace(cuda_stream=5), 5)):
        with arrays.on_stream(_Gpu(), given) as entered:
            assert entered.cuda_stream == handle
    for given in (None, "fast"):  # the device refuses what is no stream
        with arrays.on_stream(_Gpu(), given) as entered:
            assert entered is None


def test_on_stream_leaves_the_host_alone() -> None:
    with arrays.on_stream(np.zeros(3), 7) as entered:
        assert entered is None
