"""The whole family on a GPU: the bits of the chip's arithmetic for every member and configuration, on any stream, from
threads and in graphs; and the shapes at which DeepGEMM is known to have failed."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kingpost as kp
from kingpost import formats, reference, registry
from kingpost.arrays import view
from kingpost.formats import BF16, E4M3, F32
from kingpost.registry import Problem
from kingpost.targets.nvidia.checks import PROBLEMS, groups_of
from kingpost.targets.samples import Sample, sample

from ..targets.nvidia.family_cases import MODEL, same_bits
from .on_gpu import run

pytestmark = pytest.mark.gpu

GPU = "cuda:0"


@pytest.fixture(scope="module")
def torch() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch was built without CUDA")
    return torch


@pytest.mark.parametrize("name", PROBLEMS)
def test_bits_of_the_model_in_every_configuration(name: str) -> None:
    problem = replace(PROBLEMS[name], n=264)
    for m in (152, 13) if problem.a_major == "k" else (152,):
        given = sample(problem, m, groups_of(problem, m))
        want, found = given.expected(MODEL), 0
        for candidate in registry.find(GPU).candidates(problem):
            if m > candidate.tile.loaded_rows and not (candidate.tile.whole or candidate.walk.partial):
                continue
            if m == 13 and candidate.tile.rows > 64:
                continue
            d = given.result()
            run(candidate.bind(given.operands(d)))
            assert same_bits(d, want), candidate.name
            found += 1
        assert found


# By the public calls, on torch tensors of the GPU


def on_gpu(torch: Any, x: np.ndarray) -> Any:
    """A numpy array as a tensor there, its strides kept."""
    order = sorted(range(x.ndim), key=lambda i: -x.strides[i])
    packed = np.ascontiguousarray(x.transpose(order))
    raw = torch.from_numpy(packed.view(np.uint8).reshape(*packed.shape[:-1], -1)).to(GPU)
    tensor = raw.view(getattr(torch, formats.of(x.dtype).dtype.name))
    return tensor.permute(*np.argsort(order).tolist()) if x.ndim > 1 else tensor


def back(tensor: Any) -> np.ndarray:
    return view(tensor.cpu().contiguous()).numpy()


def operands(torch: Any, given: Sample) -> dict[str, Any]:
    """a and b, as the calls take them, and what else the case has."""
    problem, arrays = given.problem, {name: on_gpu(torch, x) for name, x in given.arrays.items()}
    found = {name: x for name, x in arrays.items() if not name.startswith(("scale_", "a", "b")) or name == "bias"}
    for name in ("a", "b"):
        kind = getattr(problem, f"{name}_scaling")
        ends = arrays.get("ends") if problem.op == "grouped_mm_k" else None
        if kind is None:
            found[name] = arrays[name]
        else:
            found[name] = kp.ScaledTensor(arrays[name], arrays[f"scale_{name}"], kind, ends)
    found["b"] = found["b"].mT
    return found


def call(torch: Any, given: Sample, stream: Any = None) -> np.ndarray:
    problem, found = given.problem, operands(torch, given)
    more = {name: found[name] for name in ("c", "bias") if name in found} | dict(given.numbers)
    result = on_gpu(torch, given.result())
    if problem.in_place:
        more["c"] = result
    a, b = found["a"], found["b"]
    if problem.op == "mm":
        kp.mm(a, b, out=result, stream=stream, **more)
    elif problem.op == "grouped_mm_k":
        kp.grouped_mm_k(a, b, ends=found["ends"], out=result, stream=stream, **more)
    else:
        kp.grouped_mm(a, b, out=result, stream=stream, **{problem.by or "": found[problem.by or ""]}, **more)
    torch.cuda.synchronize()
    return back(result)


@pytest.mark.parametrize("name", [name for name, p in PROBLEMS.items() if p.op in ("mm", "grouped_mm", "grouped_mm_k")])
def test_bits_by_the_calls(torch: Any, name: str) -> None:
    """More tiles than multiprocessors, in sizes that fit no tile."""
    problem = replace(PROBLEMS[name], n=1032, k=656 if PROBLEMS[name].a_scaling else 336)
    m = 1016
    given = sample(problem, m, groups_of(problem, m), seed=3)
    assert same_bits(call(torch, given), given.expected(MODEL))


BY_NUMPY = ("all at once", "counts", "ends", "bfloat16, rows", "over K, in place", "bfloat16, over K",
            "bfloat16, M-major")  # fmt: skip


@pytest.mark.parametrize("name", BY_NUMPY)
def test_numpy_arrays_are_taken_there_and_back(name: str) -> None:
    """What belongs to no group keeps what the caller's array held."""
    problem = replace(PROBLEMS[name], n=136)
    m = 80 if problem.a_major == "mn" else 77
    given = sample(problem, m, groups_of(problem, m), seed=4)
    if problem.by == "rows":
        given.arrays["rows"][-1] = -1  # a group that there is not is refused where the call can see it
    arrays, result = given.arrays, given.result()
    scaled = problem.a_scaling is not None
    ends = arrays.get("ends") if problem.op == "grouped_mm_k" else None
    a, b = (
        kp.ScaledTensor(arrays[name], arrays[f"scale_{name}"], kind, ends) if scaled else arrays[name]
        for name, kind in (("a", problem.a_scaling), ("b", problem.b_scaling))
    )
    b = b.mT if scaled else b.swapaxes(-1, -2)
    more = {name: arrays[name] for name in ("c", "bias", "rows", "ends", "counts") if name in arrays}
    if problem.in_place:
        more["c"] = result
    multiply = getattr(kp, problem.op)
    assert multiply(a, b, out=result, device=GPU, **more, **dict(given.numbers)) is result
    assert same_bits(result, given.expected(MODEL))


def test_einsum(torch: Any) -> None:
    random = torch.Generator(device=GPU).manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device=GPU, generator=random)

    q, w = normal(37, 5, 528).bfloat16(), normal(5, 136, 528).bfloat16()
    for expression, a in (("bhr,hdr->bhd", q), ("bhd,hdr->bhr", q[..., :136].contiguous())):
        d = kp.einsum(expression, a, w)
        want = kp.einsum(expression, *(x.cpu() for x in (a, w)), device="emulated:sm_90a")
        assert same_bits(back(d), view(want).numpy())
    x, y = normal(70, 72, 40).bfloat16(), normal(70, 136, 40).bfloat16()
    c = normal(72, 136)
    want = kp.einsum("bmk,bnk->mn", x.cpu(), y.cpu(), c=c.cpu(), device="emulated:sm_90a", out_dtype="float32")
    for out in (None, c.clone()):
        d = kp.einsum("bmk,bnk->mn", x, y, c=c if out is None else out, out=out, out_dtype="float32")
        assert same_bits(back(d), view(want).numpy())
    codes = kp.quantize(q.reshape(-1, 528), "1x128")
    a = kp.ScaledTensor(codes.data.reshape(37, 5, 528), codes.scales.reshape(37, 5, 5), "1x128")
    weights = [kp.quantize(each.contiguous(), "128x128") for each in w]
    b = kp.ScaledTensor(torch.stack([t.data for t in weights]), torch.stack([t.scales for t in weights]), "128x128")
    d = kp.einsum("bhr,hdr->bhd", a, b)
    for head, weight in enumerate(weights):
        alone = kp.mm(kp.ScaledTensor(a.data[:, head], a.scales[:, head], "1x128"), weight.T)
        assert torch.equal(d[:, head], alone)


def test_codes_without_k_contiguous(torch: Any) -> None:
    given = sample(replace(PROBLEMS["block scales"], n=144, k=272), 80)
    found = operands(torch, given)
    for name in ("a", "b"):
        t = found[name]
        turned = t.data.view(torch.uint8).mT.contiguous().mT if name == "a" else t.data.view(torch.uint8).contiguous()
        found[name] = kp.ScaledTensor(turned.view(t.data.dtype), t.scales, t.scaling)
    assert same_bits(back(kp.mm(found["a"], found["b"])), given.expected(MODEL))


# Shapes at which DeepGEMM is known to have failed


def k_groups(torch: Any, m: int, n: int, sizes: list[int], scaled: bool) -> None:
    ends, depth = np.cumsum(sizes).tolist(), sum(sizes)
    if scaled:
        problem = Problem("grouped_mm_k", n, depth, E4M3, E4M3, "1x128", "1x128", F32, groups=len(sizes), c=True)
    else:
        problem = Problem("grouped_mm_k", n, depth, BF16, BF16, None, None, F32, groups=len(sizes), c=True)
        problem = replace(problem, a_major="mn", b_major="mn")
    given = sample(replace(problem, in_place=True), m, ends)
    assert same_bits(call(torch, given), given.expected(MODEL))


def test_deepgemm_415_groups_over_k_of_an_odd_number_of_tiles(torch: Any) -> None:
    k_groups(torch, 192, 3072, [128, 256], scaled=True)


def test_deepgemm_429_bfloat16_groups_over_k(torch: Any) -> None:
    k_groups(torch, 1408, 1408, [384, 256], scaled=False)


@pytest.mark.parametrize("m, n", [(768, 1536), (1536, 768)])
def test_deepgemm_405_groups_over_k_of_768(torch: Any, m: int, n: int) -> None:
    k_groups(torch, m, n, [128, 0, 256], scaled=True)


@pytest.mark.parametrize("capacity", [8, 33, 63, 100])
@pytest.mark.parametrize("scaled", [True, False])
def test_deepgemm_268_capacity_that_is_no_multiple_of_a_tile(torch: Any, capacity: int, scaled: bool) -> None:
    counts = [capacity, 0, 1, capacity - 1, 5]
    problem = replace(PROBLEMS["counts" if scaled else "bfloat16, counts"], n=512, k=384, groups=5, bias=None)
    given = sample(problem, capacity, counts)
    assert same_bits(call(torch, given), given.expected(MODEL))


@pytest.mark.parametrize("m", [1, 16, 17, 32])
def test_scales_by_column_into_float32_with_few_rows(torch: Any, m: int) -> None:
    """DeepGEMM 2.6.1 cannot compile its kernel for "1x128" by "1x128", float32 accumulated, at 32 rows or fewer."""
    problem = replace(PROBLEMS["float32, in place, alpha"], b_scaling="1x128", n=512, k=7168, alpha=False)
    given = sample(problem, m)
    assert same_bits(call(torch, given), given.expected(MODEL))


# One answer


@pytest.mark.parametrize("name", ["block scales", "scales by column", "bfloat16", "ue8m0", "e5m2 by e4m3"])
def test_bits_of_a_row_do_not_depend_on_m(torch: Any, name: str) -> None:
    problem = replace(PROBLEMS[name], n=520, k=1040 if PROBLEMS[name].a_scaling else 1024, bias=None)
    found = operands(torch, sample(problem, 3000))
    whole = kp.mm(found["a"], found["b"], out_dtype="float32")
    for m in (1, 7, 16, 33, 64, 130, 1000):
        a = found["a"]
        some = a[:m] if problem.a_scaling is None else kp.ScaledTensor(a.data[:m], a.scales[:m], a.scaling)
        assert torch.equal(kp.mm(some, found["b"], out_dtype="float32"), whole[:m])


@pytest.mark.parametrize("scaled", [True, False])
def test_a_groups_rows_have_the_bits_of_the_product_alone(torch: Any, scaled: bool) -> None:
    problem = replace(
        PROBLEMS["ends" if scaled else "bfloat16, ends"], n=520, k=656, c=False, in_place=False, b_major="k"
    )
    ends = [700, 700, 713, 1500]
    found = operands(torch, sample(problem, 1500, ends))
    a, b = found["a"], found["b"]

    def part(x: Any, where: Any) -> Any:
        return kp.ScaledTensor(x.data[where], x.scales[where], x.scaling) if scaled else x[where]

    rows = torch.tensor([0] * 700 + [2] * 13 + [3] * 787, dtype=torch.int32, device=GPU)
    by_ends, by_rows = kp.grouped_mm(a, b, ends=found["ends"]), kp.grouped_mm(a, b, rows=rows)
    for group, (begin, end) in enumerate(zip([0, *ends], ends)):
        if end > begin:
            alone = kp.mm(part(a, slice(begin, end)), part(b, group))
            assert torch.equal(by_ends[begin:end], alone) and torch.equal(by_rows[begin:end], alone)


@pytest.mark.parametrize("scaled", [True, False])
def test_a_planes_rows_have_the_bits_of_the_product_alone(torch: Any, scaled: bool) -> None:
    """By counts, whatever capacity the planes have and however many rows are expected."""
    problem = replace(PROBLEMS["counts" if scaled else "bfloat16, counts"], n=520, k=656, groups=4, bias=None)
    counts = [300, 0, 17, 129]
    found = operands(torch, sample(problem, 300, counts))
    a, b = found["a"], found["b"]

    def part(x: Any, where: Any) -> Any:
        return kp.ScaledTensor(x.data[where], x.scales[where], x.scaling) if scaled else x[where]

    for expected in (None, 8, 300):
        d = kp.grouped_mm(a, b, counts=found["counts"], expected=expected)
        for group, count in enumerate(counts):
            if count:
                alone = kp.mm(part(a, (group, slice(0, count))), part(b, group))
                assert torch.equal(d[group, :count], alone)


def test_two_threads_on_two_streams(torch: Any) -> None:
    cases = [sample(replace(PROBLEMS[name], n=520, k=400), 300, groups_of(PROBLEMS[name], 300), seed=i)
             for i, name in enumerate(("ends", "bfloat16, rows"))]  # fmt: skip
    wanted, wrong = [given.expected(MODEL) for given in cases], []

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            wrong.extend(i for _ in range(15) if not same_bits(call(torch, cases[i]), wanted[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thousand_replays_of_a_graph_with_changing_data(torch: Any) -> None:
    """A chain of a cast, a product of groups whose counts change, and a dense one."""
    random = torch.Generator(device=GPU).manual_seed(0)
    groups, m, n, k = 4, 72, 264, 400
    x = torch.randn(groups, m, 2 * k, device=GPU, generator=random).bfloat16()
    counts = torch.zeros(groups, dtype=torch.int32, device=GPU)
    w = [kp.quantize(torch.randn(n, k, device=GPU, generator=random), "128x128") for _ in range(groups)]
    b = kp.ScaledTensor(torch.stack([t.data for t in w]), torch.stack([t.scales for t in w]), "128x128").mT

    def chain() -> tuple[Any, Any]:
        a = kp.silu_mul_quantize(x, counts=counts)
        first = kp.ScaledTensor(a.data[0], a.scales[0], "1x128")
        return kp.grouped_mm(a, b, counts=counts, out=grouped), kp.mm(first, w[0].T, out=dense)

    grouped = torch.zeros(groups, m, n, dtype=torch.bfloat16, device=GPU)
    dense = torch.zeros(m, n, dtype=torch.bfloat16, device=GPU)
    counts.fill_(m)
    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for turn in range(1000):
        x.copy_(torch.randn(x.shape, device=GPU, generator=random))
        counts.copy_(torch.randint(0, m + 1, (groups,), device=GPU, generator=random))
        counts[0] = m
        graph.replay()
        if turn % 100 == 99:
            replayed = grouped.clone(), dense.clone()
            chain()
            for group, count in enumerate(counts.tolist()):
                assert torch.equal(replayed[0][group, :count], grouped[group, :count])
            assert torch.equal(replayed[1], dense) and torch.equal(grouped[0], dense)
            a = kp.silu_mul_quantize(x[0]).to("cpu")
            reference.check(dense.cpu(), a, w[0].to("cpu").T)


# Casts


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_casts_give_the_bits_of_the_host(torch: Any, dtype: str) -> None:
    random = torch.Generator(device=GPU).manual_seed(1)
    x = torch.randn(640, 392, device=GPU, generator=random).to(getattr(torch, dtype))
    host = x.cpu()
    for options in ({}, {"reciprocal_maximum": True}, {"reciprocal_scale": True, "eps": 1e-4}, {"power_of_two": True}):
        for scaling in ("1x128", "128x128"):
            for layout in ("row-major", "column-major", "deepgemm"):
                got, want = (kp.quantize(each, scaling, layout=layout, **options) for each in (x, host))
                assert torch.equal(got.data.cpu().view(torch.uint8), want.data.view(torch.uint8))
                assert torch.equal(got.scales.cpu(), want.scales)
        ends = torch.tensor([16, 16, 304, 640], dtype=torch.int32)
        for given in (None, ends):
            got = kp.quantize(x, "1x128", transpose=True, ends=None if given is None else given.to(GPU), **options)
            want = kp.quantize(host, "1x128", transpose=True, ends=given, **options)
            assert torch.equal(got.data.cpu().view(torch.uint8), want.data.view(torch.uint8))
            assert torch.equal(got.scales.cpu(), want.scales)
    gates = torch.randn(3, 100, 2 * 392, device=GPU, generator=random).to(getattr(torch, dtype))
    counts = torch.tensor([100, 0, 37], dtype=torch.int32)
    got, want = kp.silu_mul_quantize(gates, counts=counts.to(GPU)), kp.silu_mul_quantize(gates.cpu(), counts=counts)
    for group, count in enumerate(counts.tolist()):
        assert torch.equal(got.data[group, :count].cpu().view(torch.uint8), want.data[group, :count].view(torch.uint8))
        assert torch.equal(got.scales[group, :count].cpu(), want.scales[group, :count])
