"""The driver: what is packed for it (checked anywhere), and kernels loaded, launched and captured (on a GPU)."""

import ctypes
import multiprocessing
import struct
import threading

import numpy as np
import pytest

bindings = pytest.importorskip("cuda.bindings.driver")

from kingpost.assemble import AssemblerNotFound, build  # noqa: E402
from kingpost.targets.nvidia import driver  # noqa: E402
from kingpost.targets.nvidia.driver import DeviceBuffer, DriverError, Prepared, load  # noqa: E402

ADD = """\
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 sum, .param .u32 count)
{
.reg .pred outside; .reg .u32 i, block, threads, n; .reg .u64 x, y, z; .reg .f32 u, v;
mov.u32 i, %tid.x; mov.u32 block, %ctaid.x; mov.u32 threads, %ntid.x; mad.lo.u32 i, block, threads, i;
ld.param.u32 n, [count];
setp.ge.u32 outside, i, n;
@outside ret;
ld.param.u64 x, [a]; ld.param.u64 y, [b]; ld.param.u64 z, [sum];
mad.wide.u32 x, i, 4, x; mad.wide.u32 y, i, 4, y; mad.wide.u32 z, i, 4, z;
ld.global.f32 u, [x]; ld.global.f32 v, [y];
add.f32 u, u, v;
st.global.f32 [z], u;
ret;
}
"""

# Brings one 16 x 128-byte box into shared memory by tensor map and stores the bytes as they lie there.
COPY_BOX = """\
.version 8.0
.target sm_90
.address_size 64
.extern .shared .align 1024 .b8 dynamic[];
.visible .entry copy_box(.param .u64 out, .param .align 64 .b8 map[128], .param .u32 row, .param .u32 column)
.maxntid 128, 1, 1
{
.reg .pred p; .reg .u32 thread, box, barrier, r, c, x<4>; .reg .u64 m, o, state;
mov.u32 thread, %tid.x;
mov.u32 box, dynamic;
add.u32 barrier, box, 2048;
setp.ne.u32 p, thread, 0;
@p bra READY;
mbarrier.init.shared::cta.b64 [barrier], 1;
fence.mbarrier_init.release.cluster;
mov.u64 m, map; cvta.param.u64 m, m;
ld.param.u32 r, [row]; ld.param.u32 c, [column];
mbarrier.arrive.expect_tx.shared::cta.b64 state, [barrier], 2048;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [box], [m, {c, r}], [barrier];
READY:
bar.sync 0;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 p, [barrier], 0;
@!p bra WAIT;
mad.lo.u32 box, thread, 16, box;
ld.shared.v4.u32 {x0, x1, x2, x3}, [box];
ld.param.u64 o, [out]; mad.wide.u32 o, thread, 16, o;
st.global.v4.u32 [o], {x0, x1, x2, x3};
ret;
}
"""
COUNT = 100_000


def block_of(a: int, b: int, total: int) -> list[bytes]:
    return [*(struct.pack("<Q", pointer) for pointer in (a, b, total)), struct.pack("<I", COUNT)]


class Sum:
    """Two vectors on the device, their sum, and the launch that adds them."""

    def __init__(self, function: driver.Function, seed: int = 0):
        random = np.random.default_rng(seed)
        self.a, self.b = (random.standard_normal(COUNT, np.float32) for _ in range(2))
        self.buffers = [DeviceBuffer.holding(x) for x in (self.a, self.b, np.zeros(COUNT, np.float32))]
        parameters = block_of(*(buffer.pointer for buffer in self.buffers))
        self.launch = Prepared(function, -(-COUNT // 256), 256, 0, parameters)

    def check(self) -> None:
        result = np.empty(COUNT, np.float32)
        self.buffers[2].read(result)
        np.testing.assert_array_equal(result, self.a + self.b)


# Without a GPU


@pytest.fixture
def no_device(monkeypatch):
    """The bindings as though initialised, and a context that is never entered."""
    monkeypatch.setattr(driver, "_process", 1)
    monkeypatch.setattr(driver, "_contexts", {0: bindings.CUcontext(0x11)})


def test_launch_structures(no_device):
    """The configuration and the parameter block as cuda.h lays them out."""
    function = driver.Function("k", 0, bindings.CUfunction(0x33), 40, 0, 0)
    prepared = Prepared(function, (5, 3), 384, 1000, [b"first", b"", b"second"])
    raw = ctypes.string_at(prepared._configure(0xABCDEF0123).getPtr(), 56)
    assert struct.unpack("<7I4xQQI4x", raw) == (5, 3, 1, 384, 1, 1, 1000, 0xABCDEF0123, 0, 0)
    places = ctypes.cast(prepared._parameters, ctypes.POINTER(ctypes.c_size_t))
    assert ctypes.string_at(places[0], 5) == b"first" and ctypes.string_at(places[2], 6) == b"second"


def test_one_configuration_per_stream_and_not_without_end(no_device):
    prepared = Prepared(driver.Function("k", 0, bindings.CUfunction(0x33), 40, 0, 0), 1, 32, 0, [])
    first = prepared._configure(7)
    assert int(first.hStream) == 7 and prepared._configurations[7] is first
    for stream in range(1000):
        prepared._configure(stream)
    assert len(prepared._configurations) <= 64


@pytest.mark.parametrize(("grid", "threads"), [(0, 32), ((), 32), ((1, 1, 1, 1), 32), ((4, 0), 32), (1, 0)])
def test_grid_is_checked(no_device, grid, threads):
    with pytest.raises(ValueError, match="grid is"):
        Prepared(driver.Function("k", 0, bindings.CUfunction(0x33), 40, 0, 0), grid, threads, 0, [])


def test_tensor_map_arguments_are_named(no_device):
    with pytest.raises(ValueError, match="format is 'e3m4': wanted one of e4m3"):
        driver.encode_tensor_map(0, "e3m4", (8, 16), (16, 1), (8, 16), 0)
    with pytest.raises(ValueError, match="swizzle is 16: wanted one of 0, 32, 64, 128"):
        driver.encode_tensor_map(0, "e4m3", (8, 16), (16, 1), (8, 16), 16)
    with pytest.raises(ValueError, match="wanted one of each per dimension"):
        driver.encode_tensor_map(0, "e4m3", (8, 16), (16,), (8, 16), 0)


def test_names_are_the_bindings_own(no_device):
    assert all(driver._tensor_map_kind(name, 128) for name in driver._ELEMENT_TYPES)
    assert all(driver._tensor_map_kind("e4m3", swizzle) for swizzle in driver._SWIZZLES)
    assert len(ctypes.string_at(bindings.CUtensorMap().getPtr(), 128)) == 128


def in_a_fork(results, call):
    try:
        call()
    except DriverError as error:
        results.put(str(error))
    else:
        results.put("")


def test_a_fork_is_told(no_device):
    prepared = Prepared(driver.Function("k", 0, bindings.CUfunction(0x33), 40, 0, 0), 1, 32, 0, [])
    context = multiprocessing.get_context("fork")
    for call in (prepared, driver.synchronize, lambda: DeviceBuffer(16)):
        results = context.Queue()
        process = context.Process(target=in_a_fork, args=(results, call))
        process.start()
        assert "CUDA was initialised in process 1, of which this one" in results.get(timeout=60)
        process.join()


def test_available_never_raises():
    devices = driver.available()
    assert devices == [f"cuda:{index}" for index in range(len(devices))]


def test_numpy_callers_get_the_default_stream():
    assert driver.current_stream(0, torch_arrays=False) == 0


@pytest.mark.parametrize(("text", "target"), [(ADD, "sm_90a"), (COPY_BOX, "sm_90a")])
def test_kernels_of_this_page_assemble(text, target):
    try:
        assert build(text, target).spill_bytes == 0
    except AssemblerNotFound as error:
        pytest.skip(str(error))


# On a GPU


@pytest.fixture
def add():
    return load(driver.loadable(ADD, driver.properties(0).target), "add")


@pytest.mark.gpu
def test_properties():
    found = driver.properties(0)
    assert found.name and found.multiprocessors > 0 and found.clock_khz > 100_000 and found.l2_bytes > 1 << 20
    assert found.shared_bytes_per_block >= 48 << 10 and found.driver_version >= (12, 0)
    assert driver.available()[0] == "cuda:0"
    with pytest.raises(DriverError, match=r"cuDeviceGet: CUDA_ERROR_INVALID_DEVICE \(.+\); device cuda:1000"):
        driver.properties(1000)


@pytest.mark.gpu
def test_launch(add):
    work = Sum(add)
    work.launch()
    driver.synchronize()
    work.check()
    assert load(driver.loadable(ADD, driver.properties(0).target), "add") is add


@pytest.mark.gpu
def test_driver_assembles_text():
    function = load(ADD, "add")
    work = Sum(function)
    work.launch()
    work.check()
    assert function.registers > 0 and function.local_bytes == 0
    with pytest.raises(DriverError, match=r"cuModuleLoadDataEx: .*\n(.|\n)*bogus"):
        load(ADD.replace("add.f32 u, u, v;", "bogus.f32 u, u, v;"), "add")
    with pytest.raises(DriverError, match=r"cuModuleGetFunction: .*kernel no_such"):
        load(ADD, "no_such")


@pytest.mark.gpu
def test_all_shared_memory_and_no_more(add):
    most = driver.properties(0).shared_bytes_per_block
    work = Sum(add)
    parameters = block_of(*(buffer.pointer for buffer in work.buffers))
    Prepared(add, -(-COUNT // 256), 256, most, parameters)()
    work.check()
    with pytest.raises(DriverError, match=rf"cuLaunchKernelEx: .*kernel add.* {most + 1024} bytes of shared memory"):
        Prepared(add, 1, 256, most + 1024, parameters)()


@pytest.mark.gpu
@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (16, 128), (40, 384)])
def test_tensor_map_in_the_parameter_block(swizzle, row, column):
    if driver.properties(0).capability < (9, 0):
        pytest.skip("tensor maps came with Hopper")
    function = load(driver.loadable(COPY_BOX, driver.properties(0).target), "copy_box")
    matrix = np.random.default_rng(1).integers(1, 256, (50, 400), np.uint8)  # the last box is ragged both ways
    source, out = DeviceBuffer.holding(matrix), DeviceBuffer(2048)
    map = driver.encode_tensor_map(source.pointer, "e4m3", matrix.shape, matrix.strides, (16, 128), swizzle)
    parameters = [struct.pack("<Q", out.pointer), map, struct.pack("<I", row), struct.pack("<I", column)]
    Prepared(function, 1, 128, 2056, parameters)()
    result = np.empty((16, 8, 16), np.uint8)
    out.read(result)
    expected = np.zeros((16, 128), np.uint8)
    inside = matrix[row : row + 16, column : column + 128]
    expected[: inside.shape[0], : inside.shape[1]] = inside
    expected = expected.reshape(16, 8, 16)
    if swizzle:
        chunk = np.arange(8)
        expected = np.stack([expected[r][chunk ^ (r % 8)] for r in range(16)])
    np.testing.assert_array_equal(result, expected)


@pytest.mark.gpu
def test_refused_tensor_map():
    buffer = DeviceBuffer(4096)
    with pytest.raises(DriverError, match=r"cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE .*box \(8, 512\)"):
        driver.encode_tensor_map(buffer.pointer, "e4m3", (8, 512), (512, 1), (8, 512), 0)


@pytest.mark.gpu
def test_threads(add):
    works = [Sum(add, seed) for seed in range(2)]
    failures = []

    def run(work: Sum):
        try:
            for _ in range(200):
                work.launch()
            work.check()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.gpu
def test_current_context_is_left_alone(add):
    before = int(driver._call("cuCtxGetCurrent"))
    work = Sum(add)
    work.launch()
    work.check()
    assert int(driver._call("cuCtxGetCurrent")) == before


@pytest.mark.gpu
def test_buffers():
    data = np.arange(1000, dtype=np.int32)
    buffer = DeviceBuffer.holding(data)
    result = np.zeros_like(data)
    buffer.read(result)
    np.testing.assert_array_equal(result, data)
    with pytest.raises(ValueError, match="wanted C-contiguous, at most 4000 bytes"):
        buffer.read(np.zeros(1001, np.int32))
    with pytest.raises(ValueError, match="C-contiguous"):
        buffer.write(data[::2])
    buffer.free()
    buffer.free()
    with pytest.raises(DriverError, match="cuMemAlloc: CUDA_ERROR"):
        DeviceBuffer(1 << 50)
    DeviceBuffer(0)


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    return torch


@pytest.mark.gpu
def test_torch_stream(add, torch):
    a, b = torch.randn(2, COUNT, device="cuda")
    total = torch.empty_like(a)
    launch = Prepared(add, -(-COUNT // 256), 256, 0, block_of(a.data_ptr(), b.data_ptr(), total.data_ptr()))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert driver.current_stream(0, torch_arrays=True) == stream.cuda_stream
        launch(driver.current_stream(0, torch_arrays=True))
    stream.synchronize()
    assert torch.equal(total, a + b)


@pytest.mark.gpu
def test_graph_capture(torch):
    """Neither the launch nor a first load, which allocates, may break a capture."""
    a, b = torch.randn(2, COUNT, device="cuda")
    total = torch.zeros_like(a)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function = load(ADD + "// not loaded before\n", "add")
        parameters = block_of(a.data_ptr(), b.data_ptr(), total.data_ptr())
        driver.launch(function, -(-COUNT // 256), 256, 0, parameters, driver.current_stream(0, torch_arrays=True))
    torch.cuda.synchronize()
    assert not total.any()
    for _ in range(2):
        a.copy_(torch.randn_like(a))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(total, a + b)


@pytest.mark.gpu
def test_second_device(torch):
    if len(driver.available()) < 2:
        pytest.skip("needs two GPUs")
    function = load(ADD, "add", 1)
    a, b = torch.randn(2, COUNT, device="cuda:1")
    total = torch.empty_like(a)
    with torch.cuda.device(0):
        parameters = block_of(a.data_ptr(), b.data_ptr(), total.data_ptr())
        driver.launch(function, -(-COUNT // 256), 256, 0, parameters, driver.current_stream(1, torch_arrays=True))
        assert torch.cuda.current_device() == 0
    driver.synchronize(driver.current_stream(1, torch_arrays=True), 1)
    assert torch.equal(total, a + b)
