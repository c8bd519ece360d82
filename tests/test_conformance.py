"""Every device passes the suite, and the suite fails devices that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import kingpost as kp
from kingpost import cli, conformance, formats, ops, registry
from kingpost.conformance import NOT_OFFERED, PASSED, Result
from kingpost.formats import E4M3FNUZ, Format
from kingpost.registry import HostMemory
from kingpost.targets import portable_candidates

ON_HOST = [device.name for device in kp.devices() if isinstance(device, HostMemory)]
WITH_LANES = [name for name in ON_HOST if name != "cpu"]


@pytest.mark.parametrize("device", ON_HOST)
def test_every_device_conforms(device: str) -> None:
    results = conformance.run(device)
    assert [result for result in results if not result.good] == []
    assert {result.verdict for result in results if result.required} == {PASSED}


@pytest.mark.gpu
@pytest.mark.parametrize("device", [device.name for device in kp.devices() if not isinstance(device, HostMemory)])
def test_every_gpu_conforms(device: str) -> None:
    assert [result for result in conformance.run(device) if not result.good] == []


@pytest.mark.parametrize("device", WITH_LANES)
@pytest.mark.parametrize("power_of_two", [False, True])
def test_the_fused_cast_has_the_bits_of_numpy_on_every_chip(device: str, power_of_two: bool) -> None:
    target: Any = registry.find(device)
    x = formats.cast(np.random.default_rng(0).standard_normal((7, 2 * 272)) * 8, "bfloat16")
    options: dict[str, Any] = {"format": target.target.float8, "power_of_two": power_of_two, "layout": "deepgemm"}
    got, want = (ops.silu_mul_quantize(x, device=where, **options) for where in (device, "cpu"))
    assert np.array_equal(got.data.view(np.uint8), want.data.view(np.uint8))
    assert np.array_equal(got.scales, want.scales)
    assert got.scales.strides == (4, 32)


@pytest.mark.parametrize("device", WITH_LANES)
def test_products_have_the_bits_of_the_chips_arithmetic(device: str) -> None:
    chip: Any = registry.find(device)
    random = np.random.default_rng(0)
    a, weight = (random.standard_normal((rows, 272), dtype=np.float32) for rows in (9, 24))
    left = kp.quantize(a, "1x128", format=chip.target.float8)
    right = kp.quantize(weight, "128x128", format=chip.target.float8).T
    want = chip.model(left, right, "float32")
    for multiply in (kp.mm, ops.tile_product):
        got = multiply(left, right, out_dtype="float32", device=device)
        assert np.array_equal(got.view(np.uint32), want.view(np.uint32)), multiply


class Twisted(HostMemory):
    """numpy, and then something is done to the results."""

    def __init__(self, name: str, twist: Callable[[str, list[np.ndarray]], None]) -> None:
        self.name, self.description, self.twist = name, "wrong on purpose", twist

    def candidates(self, problem: registry.AnyProblem) -> Sequence[registry.Candidate]:
        return registry.find("cpu").candidates(problem)

    def prepare(self, launch: Any) -> Callable[[int], None]:
        def call(stream: int) -> None:
            launch(stream)
            results = [launch.operands[name].numpy() for name in launch.operands.results]
            self.twist(launch.problem.op, results)

        return call


def off_by_one_code(op: str, results: list[np.ndarray]) -> None:
    if op == "cast":
        results[0].view(np.uint8)[0, 5] += 1


def twice_as_much(op: str, results: list[np.ndarray]) -> None:
    if op == "mm":
        results[0] *= 2


def more_rows_more_bits(op: str, results: list[np.ndarray]) -> None:
    """As a kernel that adds in another order when there are more rows."""
    if op == "mm" and len(results[0]) > 1:
        results[0][...] = np.nextafter(results[0].astype(np.float32), np.float32(np.inf)).astype(results[0].dtype)


def nothing_written(op: str, results: list[np.ndarray]) -> None:
    if op == "relayout":
        results[0][...] = 0


@pytest.mark.parametrize(
    "twist, group, name",
    [
        (off_by_one_code, "cast", "bits of numpy"),
        (twice_as_much, "mm", "bound"),
        (more_rows_more_bits, "mm", "whatever other rows"),
        (nothing_written, "relayout", "every named layout"),
    ],
)
def test_a_wrong_device_fails(twist: Callable[[str, list[np.ndarray]], None], group: str, name: str) -> None:
    results = conformance.run(Twisted("twisted", twist))
    assert not conformance.passed(results)
    failed = [result for result in results if not result.good and result.group == group]
    assert any(name in result.name and "wrong" in result.detail for result in failed)


class Misreading(Twisted):
    """Takes codes of e4m3fnuz for those of e4m3."""

    def candidates(self, problem: registry.AnyProblem) -> Sequence[registry.Candidate]:
        return [_Misread(each) for each in super().candidates(problem)]


class _Misread:
    def __init__(self, candidate: Any) -> None:
        self.candidate, self.name = candidate, "misread"

    def microseconds(self, m: int) -> float:
        return 0.0

    def bind(self, operands: registry.Operands) -> Any:
        def read(view: Any) -> Any:
            if view.format is not E4M3FNUZ:
                return view
            array = view.numpy().view(formats.E4M3.dtype)
            return type(view)(view.pointer, view.shape, view.strides, formats.E4M3, view.device, array)

        return self.candidate.bind(operands.moved(read))


def test_misread_codes_are_found() -> None:
    results = conformance.run(Misreading("misreading", lambda op, results: None))
    assert [(r.group, r.name) for r in results if not r.good] == [
        ("errors", "the other chips' e4m3 is converted or refused, never misread")
    ]


class Lanes(HostMemory):
    """A chip with lanes and nothing else."""

    name, description, keeps_calls = "lanes", "a target, emulated", False

    def __init__(self, float8: Format) -> None:
        from kingpost.program import Target

        self.target = Target("lanes-1", lanes=16, float8=float8)

    def candidates(self, problem: registry.AnyProblem) -> Sequence[registry.Candidate]:
        return portable_candidates.candidates(problem, self.target)

    def prepare(self, launch: Any) -> Callable[[int], None]:
        from kingpost import emulate

        def call(stream: int) -> None:
            emulate.run(launch)

        return call


@pytest.mark.parametrize("float8", [formats.E4M3, E4M3FNUZ], ids=str)
def test_a_target_is_enough_for_all_but_products(float8: Format) -> None:
    results = conformance.run(Lanes(float8))
    assert not conformance.passed(results)
    verdicts = {group: {r.verdict for r in results if r.group == group} for group in {r.group for r in results}}
    assert verdicts.pop("product") == verdicts.pop("mm") == verdicts.pop("tile_product") == {NOT_OFFERED}
    assert all(verdict == {PASSED} for verdict in verdicts.values()), [r for r in results if not r.good]


def test_a_device_that_raises_is_a_failure_not_an_end() -> None:
    def burst(op: str, results: list[np.ndarray]) -> None:
        raise MemoryError("it is on fire")

    results = conformance.run(Twisted("burning", burst))
    assert any(result.detail == "MemoryError: it is on fire" for result in results)
    assert len(results) == len(conformance.run("cpu"))


def test_what_is_required() -> None:
    def result(verdict: str, required: bool) -> Result:
        return Result("cast", "", required, verdict, "", 0.0)

    assert conformance.passed([result(PASSED, True), result(NOT_OFFERED, False)])
    assert not conformance.passed([result(NOT_OFFERED, True)])
    assert not conformance.passed([result("failed", False)])


@pytest.fixture
def kingpost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["kingpost", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), capsys.readouterr().out

    return run


def test_the_command_for_a_program(kingpost: Callable[..., tuple[int, str]]) -> None:
    status, out = kingpost("conformance", "cpu", "--json")
    answer = json.loads(out)
    assert (status, answer["device"], answer["passed"]) == (0, "cpu", True)
    assert list(answer["checks"][0]) == ["group", "name", "required", "verdict", "detail", "seconds"]


def test_the_command_for_a_person(kingpost: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    status, out = kingpost("conformance", "cpu")
    assert status == 0 and "cpu conforms" in out and "failed" not in out
    monkeypatch.setattr(registry, "find", lambda device: Twisted("cpu", twice_as_much))
    status, out = kingpost("conformance", "cpu")
    assert status == 1 and "cpu does not conform" in out and "failed" in out


def test_the_command_on_no_device(kingpost: Callable[..., tuple[int, str]]) -> None:
    assert kingpost("conformance", "abacus")[0] == 2
