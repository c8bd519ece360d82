"""Scalings: shapes, expansion, groups, transposing, layouts, and refusals."""

import ml_dtypes
import numpy as np
import pytest

import kingpost.scaling as scaling
from kingpost import formats
from kingpost.quantization import dequantize, quantize
from kingpost.scaling import ScaledTensor


def data(*shape):
    return np.ones(shape, ml_dtypes.float8_e4m3fn)


def normal(*shape, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp(2 * rng.standard_normal(shape))).astype(dtype)


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("1x128", (130, 3)),
        ("128x1", (2, 300)),
        ("128x128", (2, 3)),
        ("row", (130, 1)),
        ("column", (1, 300)),
        ("tensor", (1, 1)),
        ("1x32:ue8m0", (130, 10)),
        ("32x1:ue8m0", (5, 300)),
    ],
)
def test_shapes_and_expansion(name, wanted):
    it = scaling.named(name)
    assert it.scales_shape((130, 300)) == wanted
    assert it.scales_shape((5, 130, 300)) == (5, *wanted)
    assert it.transposed.scales_shape((300, 130)) == wanted[::-1]
    scales = np.arange(np.prod(wanted), dtype=np.float32).reshape(wanted)
    expanded = it.expand(scales, (130, 300))
    assert expanded.shape == (130, 300)
    rows, columns = it.block
    for i, j in ((0, 0), (127, 127), (128, 128), (129, 299), (129, 0)):
        assert expanded[i, j] == scales[i // (rows or 1000), j // (columns or 1000)]
    np.testing.assert_array_equal(it.transposed.expand(scales.T, (300, 130)), expanded.T)
    if columns != 1:
        np.testing.assert_array_equal(it.by_block(scales, (130, 300)), expanded[:, :: columns or 128])


def test_scales_that_are_powers_of_two():
    codes = np.array([[0, 1, 126], [127, 254, 255]], np.uint8)
    values = np.array([[2.0**-127, 2.0**-126, 0.5], [1, 2.0**127, np.nan]], np.float32)
    t = ScaledTensor(data(2, 80), codes.view(ml_dtypes.float8_e8m0fnu), "1x32:ue8m0")
    assert (t.scaling.format, t.scaling.transposed.format) == (formats.UE8M0, formats.UE8M0)
    assert (t.T.scaling.name, t.T.scales.shape) == ("32x1:ue8m0", (3, 2))
    np.testing.assert_array_equal(t.expanded(), np.repeat(values, 32, axis=1)[:, :80])
    np.testing.assert_array_equal(t.T.expanded(), t.expanded().T)
    np.testing.assert_array_equal(t.scaling.by_block(t.scales, t.shape), values)
    np.testing.assert_array_equal(dequantize(t), t.expanded())


def test_scales_that_are_powers_of_two_in_torch():
    torch = pytest.importorskip("torch")
    codes = torch.arange(256, dtype=torch.uint8).view(2, 128)
    ones = torch.ones((2, 128 * 32)).to(torch.float8_e5m2)
    t = ScaledTensor(ones, codes.view(torch.float8_e8m0fnu), "1x32:ue8m0")
    values = formats.decode(codes.numpy(), "ue8m0")
    np.testing.assert_array_equal(dequantize(t.T).numpy(), np.repeat(values, 32, axis=1).T)
    with pytest.raises(TypeError, match=r"scales are uint8; wanted ue8m0: .*view\(torch.float8_e8m0fnu\)"):
        ScaledTensor(ones, codes, "1x32:ue8m0")


def grouped(ends, columns, spare=0, rows=3):
    """Data of ones; the scale of row i in block j is 100 i + j."""
    ends = np.array(ends, np.int32)
    blocks = sum(-(-size // 128) for size in np.diff(ends, prepend=0)) + spare
    scales = 100 * np.arange(rows, dtype=np.float32)[:, None] + np.arange(blocks, dtype=np.float32)
    return ScaledTensor(data(rows, columns), scales, "1x128", ends)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("spare", [0, 1])
def test_groups_start_new_blocks(library, spare):
    """Of 80, 0, 256 and 144 columns; 32 are left."""
    t = grouped([80, 80, 336, 480], 512, spare)
    block_of_each = np.repeat([0, 1, 2, 3, 4], [80, 128, 128, 128, 16])
    wanted = np.zeros((3, 512), np.float32)
    wanted[:, :480] = 100 * np.arange(3)[:, None] + block_of_each
    if library == "torch":
        torch = pytest.importorskip("torch")
        codes = torch.from_numpy(t.data.view(np.uint8)).view(torch.float8_e4m3fn)
        t = ScaledTensor(codes, torch.from_numpy(t.scales), "1x128", torch.from_numpy(t.ends)).to("cpu")
    for turned, values in ((t, wanted), (t.T, wanted.T), (t.T.to("cpu").T, wanted)):
        assert turned.ends is t.ends
        np.testing.assert_array_equal(np.asarray(dequantize(turned)), values)
    assert [group.shape for group in t.groups()] == [(3, 80), (3, 0), (3, 256), (3, 144)]
    assert [group.scales.shape for group in t.T.groups()] == [(1, 3), (0, 3), (2, 3), (2, 3)]
    np.testing.assert_array_equal(np.asarray(dequantize(t.T.groups()[2])), wanted[:, 80:336].T)


def test_groups_without_columns():
    assert dequantize(grouped([0, 0], 0)).shape == (3, 0)
    np.testing.assert_array_equal(dequantize(grouped([0, 0], 128)), np.zeros((3, 128)))
    assert grouped([], 0).groups() == []


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"scales": np.ones((3, 4), np.float32)}, ValueError, r"scales have shape \(3, 4\); wanted \[3, 5 to 8\]"),
        ({"scales": np.ones((3, 9), np.float32)}, ValueError, r"scales have shape \(3, 9\); wanted \[3, 5 to 8\]"),
        ({"scales": np.ones((2, 5), np.float32)}, ValueError, r"scales have shape \(2, 5\); wanted \[3, 5 to 8\]"),
        ({"scales": np.ones(5, np.float32)}, ValueError, r"scales \(5,\), .*; wanted \[rows, columns\], \[rows, blo"),
        ({"scaling": "row"}, ValueError, r"scaling row; wanted .* and 1x128"),
        ({"ends": np.array([80, 81])}, TypeError, "ends are int64; wanted int32"),
        ({"ends": np.array([80, 64, 512], "i4")}, ValueError, r"ends are \[80, 64, 512\].*; wanted numbers that do"),
        ({"ends": np.array([80, 528], "i4")}, ValueError, r"ends are \[80, 528\].*, 512 at most"),
        ({"ends": [80]}, TypeError, "ends is builtins.list; wanted a numpy array"),
    ],
)
def test_refuses_groups(change, error, message):
    t = grouped([80, 80, 336, 480], 512)
    given = {"data": t.data, "scales": t.scales, "scaling": "1x128", "ends": t.ends} | change
    with pytest.raises(error, match=message):
        ScaledTensor(**given)


def test_empty_shapes():
    assert scaling.named("128x128").scales_shape((0, 128)) == (0, 1)
    assert scaling.named("row").by_block(np.ones((5, 1), np.float32), (5, 0)).shape == (5, 0)
    for shape in ((0, 300), (300, 0)):
        for name in scaling.SCALINGS:
            assert dequantize(quantize(normal(*shape), name)).shape == shape


def test_transposing_is_a_view():
    t = quantize(normal(130, 300), "1x128")
    assert (t.T.shape, t.T.scaling.name, t.T.scales.shape) == ((300, 130), "128x1", (3, 130))
    assert np.shares_memory(t.T.data, t.data) and np.shares_memory(t.T.scales, t.scales)
    np.testing.assert_array_equal(dequantize(t.T), dequantize(t).T)
    batch = quantize(normal(2, 130, 300), "128x128")
    assert batch.mT.shape == (2, 300, 130)
    with pytest.raises(ValueError, match=r"\(2, 130, 300\); .T wants two dimensions"):
        batch.T  # noqa: B018


def test_transposing_in_torch_is_a_view():
    torch = pytest.importorskip("torch")
    t = quantize(torch.from_numpy(normal(130, 300)), "1x128")
    assert t.T.data.data_ptr() == t.data.data_ptr()
    assert t.T.T.shape == t.shape
    assert t.to("cpu").data is t.data


def test_scales_of_any_strides_are_kept_as_given():
    scales = np.ones((3, 132), np.float32)[:, :130].T
    t = ScaledTensor(data(130, 300), scales, "1x128")
    assert t.scales is scales
    assert repr(t) == "ScaledTensor(e4m3 [130, 300], scaling='1x128')"


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((data(4, 128).view(np.uint8), np.ones((4, 1), np.float32), "row"), TypeError, r"data is uint8.*\.view\("),
        (
            (np.ones((4, 128), np.float32), np.ones((4, 1), np.float32), "row"),
            TypeError,
            "data is float32; wanted e4m3",
        ),
        ((data(4, 128), np.ones((4, 1)), "row"), TypeError, "scales are float64; wanted float32"),
        (
            (data(4, 128), np.ones((1, 4), np.float32), "row"),
            ValueError,
            r"scales have shape \(1, 4\); wanted \(4, 1\)",
        ),
        ((data(128), np.ones((1, 1), np.float32), "row"), ValueError, r"data has shape \(128,\); wanted \[rows"),
        ((data(4, 128), np.ones((4, 1), np.float32), "1x64"), ValueError, "'1x64'; wanted one of 1x128, 128x1"),
        (([[1.0]], np.ones((1, 1), np.float32), "row"), TypeError, "data is builtins.list; wanted a numpy array"),
        ((data(4, 128), np.ones((4, 1), np.complex64), "row"), TypeError, "scales are complex64; wanted float32"),
        ((data(4, 64), np.ones((4, 2), np.uint8), "1x32:ue8m0"), TypeError, r"scales are uint8; wanted ue8m0: use"),
        ((data(4, 64), np.ones((4, 2), np.float32), "1x32:ue8m0"), TypeError, "scales are float32; wanted ue8m0"),
    ],
)
def test_refusals(arguments, error, message):
    with pytest.raises(error, match=message):
        ScaledTensor(*arguments)


def test_refuses_mixed_libraries():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="scales are a torch array and data a numpy one"):
        ScaledTensor(data(4, 128), torch.ones(4, 1), "row")
    with pytest.raises(ValueError, match="device is 'cuda:0'; numpy data stay"):
        ScaledTensor(data(4, 128), np.ones((4, 1), np.float32), "row").to("cuda:0")
