"""A device that another package brings: found through its entry point, conforming, and told when it is misused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kingpost as kp
from kingpost import cli, conformance, ops, plan, registry
from kingpost.conformance import NOT_OFFERED, PASSED

PACKAGE = Path(__file__).parent / "plugin"


def install(into: Path) -> None:
    """Write the metadata that an installer makes of the package's pyproject.toml."""
    text = (PACKAGE / "pyproject.toml").read_text()
    entry = text.partition('[project.entry-points."kingpost.devices"]\n')[2].splitlines()[0]
    info = into / "kingpost_millrace-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kingpost-millrace\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[kingpost.devices]\n{entry.replace(chr(34), '')}\n")


@pytest.fixture(autouse=True)
def millrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package as if installed."""
    install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(PACKAGE))
    forget()
    yield
    forget()
    for module in [name for name in sys.modules if name.partition(".")[0] == "millrace"]:
        del sys.modules[module]


def forget() -> None:
    registry._entries.cache_clear()
    registry._family.cache_clear()
    registry._find.cache_clear()
    plan.forget()


def operands(m: int, n: int, k: int) -> tuple[kp.ScaledTensor, kp.ScaledTensor]:
    random = np.random.default_rng(0)
    a, weight = (random.standard_normal((rows, k), dtype=np.float32) for rows in (m, n))
    return kp.quantize(a, "1x128"), kp.quantize(weight, "128x128").T


def test_it_is_among_the_devices() -> None:
    assert "millrace" in {device.name for device in kp.devices()}


def test_it_conforms() -> None:
    results = conformance.run("millrace")
    assert [result for result in results if not result.good] == []
    assert {result.verdict for result in results if result.required} == {PASSED}
    assert {result.group for result in results if result.verdict == NOT_OFFERED} >= {"relayout", "vector_add"}


def test_the_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["kingpost", "conformance", "millrace"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert "millrace conforms" in capsys.readouterr().out


def test_what_it_has_no_kernel_for_is_refused() -> None:
    with pytest.raises(plan.Unsupported, match="millrace has no kernel for vector_add"):
        ops.add(np.ones(4, np.float32), np.ones(4, np.float32), device="millrace")


@pytest.mark.parametrize("given", [{"alpha": 2.0}, {"bias": np.ones(8, "f4")}, {"c": np.ones((8, 8), "f4")}], ids=str)
def test_it_does_not_offer_products_with_what_it_would_not_add(given: dict[str, Any]) -> None:
    a, b = operands(8, 8, 256)
    with pytest.raises(plan.Unsupported, match="millrace has no kernel for mm"):
        kp.mm(a, b, out_dtype="float32", device="millrace", **given)


@pytest.mark.parametrize("scaling", ["1x128", "128x128"])
@pytest.mark.parametrize("rounding", [{}, {"reciprocal_maximum": True}, {"reciprocal_scale": True}], ids=str)
def test_casts_that_it_does_not_know_are_the_hosts(scaling: str, rounding: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((200, 256), dtype=np.float32)
    got, want = (kp.quantize(x, scaling, **where, **rounding) for where in ({"device": "millrace"}, {}))
    assert np.array_equal(got.data.view(np.uint8), want.data.view(np.uint8))
    assert np.array_equal(got.scales, want.scales)


def test_a_missing_wait_is_a_hazard() -> None:
    from millrace.executor import Executor, Hazard
    from millrace.isa import Program, Wait

    a, b = operands(8, 8, 256)
    launch: Any = ops.launch_mm(a, b, np.empty((8, 8), np.float32), registry.find("millrace"))
    Executor(launch).run()
    waits = [i for i, each in enumerate(launch.instructions) if isinstance(each, Wait)]
    for missing in waits:
        shortened = launch.instructions[:missing] + launch.instructions[missing + 1 :]
        with pytest.raises(Hazard):
            Executor(Program(shortened, launch.arrays)).run()


def rename(tmp_path: Path, entry: str) -> None:
    (tmp_path / "kingpost_millrace-1.0.dist-info" / "entry_points.txt").write_text(f"[kingpost.devices]\n{entry}\n")
    forget()


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    rename(tmp_path, "cpu = millrace.device:FAMILY")
    with pytest.raises(ValueError, match=r"family 'cpu' of .* is taken"):
        kp.devices()


@pytest.mark.parametrize("place", ["millrace.nowhere:FAMILY", "millrace.device:NOTHING"])
def test_a_package_that_cannot_be_loaded_takes_no_other_device_with_it(tmp_path: Path, place: str) -> None:
    rename(tmp_path, f"millrace = {place}")
    assert registry.find("cpu").name == "cpu"
    with pytest.raises(RuntimeError, match=f"family 'millrace', {place}, cannot be loaded"):
        kp.devices()
