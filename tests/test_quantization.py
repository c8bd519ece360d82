"""Quantising, dequantising, validating: the stated formulas, those of the frameworks, one answer of both libraries."""

import ml_dtypes
import numpy as np
import pytest

import kingpost.scaling as scaling
from kingpost import formats
from kingpost.arrays import view
from kingpost.quantization import dequantize, quantize, validate

LARGEST = np.float32(448)


def normal(*shape, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp(2 * rng.standard_normal(shape))).astype(dtype)


def test_quantize_follows_the_stated_formula():
    x = normal(130, 300)
    t = quantize(x, "1x128")
    for j in range(3):
        block = x[:, 128 * j : 128 * (j + 1)]
        scale = np.abs(block).max(axis=1) / np.float32(448)
        np.testing.assert_array_equal(t.scales[:, j], scale)
        np.testing.assert_array_equal(t.data[:, 128 * j : 128 * (j + 1)], formats.cast(block / scale[:, None], "e4m3"))
    assert np.abs(dequantize(t) - x).max() <= np.abs(x).max() * 2**-4
    assert quantize(np.zeros((2, 128), np.float32), "row", eps=448).scales.tolist() == [[1], [1]]
    assert quantize(np.zeros((2, 128), np.float32), "row", eps=0).scales.tolist() == [[1], [1]]


def test_powers_of_two_round_up_exactly():
    x = np.zeros((4, 128), np.float32)
    x[:, 0] = 448, 449, 448 * 2**-20, 1e-41
    t = quantize(x, "row", eps=0, power_of_two=True)
    assert t.scales[:, 0].tolist() == [1, 2, 2**-20, 2.0**-126]
    mantissas = quantize(normal(64, 256), "1x128", power_of_two=True).scales.view(np.int32) & 0x7FFFFF
    assert not mantissas.any()


@pytest.mark.parametrize("name", scaling.SCALINGS)
@pytest.mark.parametrize("format", ["e4m3", "e4m3fnuz", "e5m2"])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_numpy_and_torch_give_the_same_bits(name, format, power_of_two):
    torch = pytest.importorskip("torch")
    for shape, dtype in (
        ((130, 300), "float32"),
        ((2, 257, 130), "bfloat16"),
        ((129, 64), "float16"),
        ((0, 7), "float32"),
    ):
        x = torch.from_numpy(np.clip(normal(*shape), -6e4, 6e4)).to(getattr(torch, dtype))
        x[..., : shape[-2] // 2, :64] = 0
        x = x.mT.contiguous().mT  # any strides
        host = x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if dtype == "bfloat16" else x.numpy()
        ours = quantize(host, name, format=format, power_of_two=power_of_two)
        theirs = quantize(x, name, format=format, power_of_two=power_of_two)
        assert theirs.data.is_contiguous() and theirs.scales.is_contiguous()
        np.testing.assert_array_equal(theirs.data.view(torch.uint8).numpy(), ours.data.view(np.uint8))
        assert view(theirs.scales).numpy().tobytes() == ours.scales.tobytes()
        np.testing.assert_array_equal(dequantize(theirs).numpy(), dequantize(ours))
        validate(ours)
        validate(theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("name", scaling.SCALINGS)
def test_a_gpu_gives_the_same_bits(name):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a torch that sees the GPU")
    x = normal(130, 300)
    ours, theirs = quantize(x, name), quantize(torch.from_numpy(x).cuda(), name)
    np.testing.assert_array_equal(theirs.scales.cpu().numpy().view(np.uint32), ours.scales.view(np.uint32))
    np.testing.assert_array_equal(theirs.data.view(torch.uint8).cpu().numpy(), ours.data.view(np.uint8))


# The casts of frameworks, each written down by itself. x: float32 [M, K], K a multiple of 128.


def magnitudes(x, floor):
    """x in blocks [M, K/128, 128], and the largest magnitude of each, at least `floor`."""
    blocks = x.reshape(len(x), -1, 128)
    return blocks, np.maximum(np.abs(blocks).max(axis=2, keepdims=True), np.float32(floor))


def power_of_two_above(scale):
    fraction, exponent = np.frexp(scale)
    return np.ldexp(np.float32(1), exponent - (fraction == 0.5)).astype(np.float32)


def written(x, scales, quotients):
    """Scales [M, K/128] and codes [M, K] as their bytes."""
    codes = np.clip(quotients, -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)
    return scales[..., 0], codes.reshape(x.shape).view(np.uint8)


def deepgemm(x, on_gpu, ue8m0):
    """`per_token_cast_to_fp8`: sf = amax / 448.0, x * (1.0 / sf); torch on a GPU divides by a number by multiplying."""
    blocks, largest = magnitudes(x, 1e-4)
    scale = largest * (np.float32(1) / LARGEST) if on_gpu else largest / LARGEST
    scale = power_of_two_above(scale) if ue8m0 else scale
    return written(x, scale, blocks * (np.float32(1) / scale))


def vllm(x, ue8m0):
    """`per_token_group_quant_fp8`."""
    blocks, largest = magnitudes(x, 1e-10)
    scale = largest * (np.float32(1) / LARGEST)
    scale = np.exp2(np.ceil(np.log2(scale.astype(np.float64)))).astype(np.float32) if ue8m0 else scale
    return written(x, scale, blocks / scale)


def sglang(x, ue8m0):
    """`sglang_per_token_group_quant_fp8`."""
    blocks, largest = magnitudes(x, 1e-10)
    scale = largest / LARGEST
    scale = power_of_two_above(scale) if ue8m0 else scale
    return written(x, scale, blocks / scale)


def te(x):
    """TransformerEngine's block quantiser with its defaults: what multiplies is rounded down to a power of two."""
    blocks, largest = magnitudes(x, 0)
    with np.errstate(divide="ignore"):
        _, exponent = np.frexp(LARGEST / largest)
    factor = np.where(largest == 0, np.float32(1), np.ldexp(np.float32(1), exponent - 1)).astype(np.float32)
    return written(x, 1 / factor, blocks * factor)


FRAMEWORKS = {
    "DeepGEMM, on a CPU": (lambda x: deepgemm(x, False, False), {"eps": 1e-4, "reciprocal_scale": True}),
    "DeepGEMM, on a CPU, ue8m0": (
        lambda x: deepgemm(x, False, True),
        {"eps": 1e-4, "reciprocal_scale": True, "power_of_two": True},
    ),
    "DeepGEMM, on a GPU": (
        lambda x: deepgemm(x, True, False),
        {"eps": 1e-4, "reciprocal_scale": True, "reciprocal_maximum": True},
    ),
    "vLLM": (lambda x: vllm(x, False), {"reciprocal_maximum": True}),
    "vLLM, ue8m0": (lambda x: vllm(x, True), {"reciprocal_maximum": True, "power_of_two": True}),
    "SGLang": (lambda x: sglang(x, False), {}),
    "SGLang, ue8m0": (lambda x: sglang(x, True), {"power_of_two": True}),
    "TE": (te, {"eps": 0, "power_of_two": True}),
}


def blocks_of_every_size():
    x = normal(300, 384, seed=1)
    x[:3], x[3:40] = 0, x[3:40] * np.float32(1e-8)  # below most floors
    x[40:80] = np.ldexp(x[40:80], np.random.default_rng(2).integers(-60, 60, (40, 1)))
    x[80, :4] = 448, -448, 0, -0.0
    return x


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_frameworks_casts_are_settings(name, library):
    cast, settings = FRAMEWORKS[name]
    x = blocks_of_every_size()
    scales, codes = cast(x)
    if library == "torch":
        torch = pytest.importorskip("torch")
        t = quantize(torch.from_numpy(x), "1x128", **settings)
        got = t.scales.numpy(), t.data.view(torch.uint8).numpy()
    else:
        t = quantize(x, "1x128", **settings)
        got = t.scales, t.data.view(np.uint8)
    np.testing.assert_array_equal(got[0], scales)
    np.testing.assert_array_equal(got[1], codes)


def test_settings_differ():
    """Each that is said to matter does, on the numbers of the test above."""
    x = blocks_of_every_size()
    casts = {name: b"".join(each.tobytes() for each in cast(x)) for name, (cast, _) in FRAMEWORKS.items()}
    same = [{a, b} for a in casts for b in casts if a < b and casts[a] == casts[b]]
    assert same == [{"SGLang, ue8m0", "vLLM, ue8m0"}]  # rounding up hides the last bit of a scale


@pytest.mark.parametrize("exponent", [-100, 0, 20])
def test_powers_of_two_do_not_depend_on_who_divides(exponent):
    """`te` multiplies by the reciprocal of the scale: around 448 2^n, where both jump, and at fractions' ends."""
    fractions = np.concatenate([np.arange(1 << 12) + start for start in (0, 0x600000 - 2048, 0x7FF000)])
    largest = np.ldexp((fractions.astype(np.uint32) | 127 << 23).view(np.float32), exponent)
    scales = quantize(np.repeat(largest[:, None], 2, axis=1), "row", eps=0, power_of_two=True).scales[:, 0]
    np.testing.assert_array_equal(1 / scales, np.ldexp(np.float32(1), np.frexp(LARGEST / largest)[1] - 1))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_reciprocals_of_small_scales_are_finite(library):
    """1e-42 / 448 has none in float32; zeros would become NaN."""
    x = np.zeros((1, 128), np.float32)
    x[0, :3] = 1e-42, 1e-39, -1e-36
    for row in (x, x * np.float32(1e-3), x * np.float32(1e-6)):
        given = row if library == "numpy" else pytest.importorskip("torch").from_numpy(row)
        t = quantize(given, "row", eps=0, reciprocal_scale=True)
        assert float(t.scales[0, 0]) == 2.0**-126
        np.testing.assert_array_equal(
            formats.decode(view(t.data).numpy()), formats.decode(formats.cast(row * np.float32(2.0**126), "e4m3"))
        )


@pytest.mark.gpu
def test_deepgemms_cast_on_a_gpu():
    """As torch computes it there, division by a number included."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a torch that sees the GPU")
    x = torch.from_numpy(blocks_of_every_size()).cuda()
    blocks = x.view(len(x), -1, 128)
    scales = blocks.abs().amax(dim=2).clamp(1e-4) / 448.0
    codes = (blocks * (1.0 / scales.unsqueeze(2))).to(torch.float8_e4m3fn).view(x.shape)
    t = quantize(x, "1x128", **FRAMEWORKS["DeepGEMM, on a GPU"][1])
    assert torch.equal(t.scales, scales) and torch.equal(t.data.view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize(
    "x, options, error, message",
    [
        (np.full((1, 2), np.nan, np.float32), {}, ValueError, "x holds NaN or infinity"),
        (np.full((1, 2), -np.inf, np.float32), {}, ValueError, "x holds NaN or infinity"),
        (np.ones((1, 2)), {}, TypeError, "x is float64; wanted float32 or bfloat16 or float16"),
        (np.ones((1, 2), ">f4"), {}, TypeError, "x is >f4; wanted float32 or bfloat16 or float16"),
        (np.ones(2, np.float32), {}, ValueError, r"x has shape \(2,\)"),
        (np.ones((1, 2), np.float32), {"format": "bfloat16"}, ValueError, "format is bfloat16; wanted one of e4m3"),
        (np.ones((1, 2), np.float32), {"format": None}, ValueError, "None; wanted one of"),
        *(
            (np.ones((1, 2), np.float32), {"eps": eps}, ValueError, "eps is .*; a finite number of at least 0 is")
            for eps in (-1, np.inf, 1e300, "1e-4", None)
        ),
    ],
)
def test_quantize_refuses(x, options, error, message):
    with pytest.raises(error, match=message):
        quantize(x, "row", **options)


def test_refuses_sparse_memory():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="x is sparse_coo; wanted dense memory"):
        quantize(torch.ones(4, 128).to_sparse(), "row")


def test_refuses_infinity_in_torch():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="x holds NaN"):
        quantize(torch.tensor([[float("inf")]]), "row")


@pytest.mark.parametrize("use", [dequantize, validate])
def test_only_scaled_tensors_have_scales(use):
    with pytest.raises(TypeError, match=r"t is a ndarray; a kingpost.ScaledTensor is wanted \(see kingpost.quantize\)"):
        use(normal(4, 256))


def test_validate_names_the_place():
    t = quantize(normal(4, 256), "1x128")
    t.scales[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"scales at \(2, 1\) are nan; wanted finite and positive"):
        validate(t)
    t.scales[2, 1] = 0
    with pytest.raises(ValueError, match=r"scales at \(2, 1\) are 0.0"):
        validate(t)
    t.scales[2, 1] = 1
    t.data.view(np.uint8)[3, 5] = 0x7F
    with pytest.raises(ValueError, match=r"data at \(3, 5\) are nan"):
        validate(t)
