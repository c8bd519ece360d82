"""The command line: what a person types, and what is printed for it. The work is done in the rooms below."""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

# What the library raises on purpose, and a machine too small; anything else is a bug of ours and keeps its traceback.
ERRORS = (ValueError, TypeError, RuntimeError, OSError, ModuleNotFoundError, MemoryError)
# What typer raises for a command line that it cannot read. Its place differs from release to release.
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="kingpost",
    help="FP8 matrix products, and what holds each one down.",
    epilog="An error is one line and exit status 2; with KINGPOST_TRACEBACK=1, all of its traceback.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="The assembled binaries on disk.")
app.add_typer(cache_app, name="cache")
out = Console(highlight=False)


class Schedule(str, Enum):
    """When the emulator lets asynchronous work happen."""

    late = "late"
    early = "early"
    random = "random"


class OutDtype(str, Enum):
    """What a product's result may be."""

    bfloat16 = "bfloat16"
    float32 = "float32"


def _size(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, min=0, max=2**31 - 1, show_default=False, help=help)


M = Annotated[int, _size("M", "Rows of the result.")]
N = Annotated[int, _size("N", "Columns; a multiple of 8.")]
K = Annotated[int, _size("K", "Terms of each sum; a multiple of 16.")]
WHAT = "all, a shape such as 77x136x400, a kernel or how a case begins, or file.py::function."
NUMBERS = {"ignore_unknown_options": True}  # so that -1 is a number out of range, not an option
Out = Annotated[OutDtype, typer.Option("--out", help="The result's type.")]
Target = Annotated[str, typer.Option("--for", help="The chip.")]
Seed = Annotated[int, typer.Option(min=0, help="Draws the operands, and the random schedule.")]


def main() -> None:
    """The console script."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], prog_name="kingpost", standalone_mode=False))
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "kingpost"
        _refuse(f"{error.format_message().rstrip('.')}; see {command} --help")
    except ERRORS as error:
        if os.environ.get("KINGPOST_TRACEBACK"):
            raise
        _refuse(str(error))


def _refuse(message: str) -> None:
    Console(stderr=True, highlight=False).print(f"error: {message}", markup=False, soft_wrap=True)
    sys.exit(2)


def _show_warning(message: Warning | str, *_: Any) -> None:
    """In one line, without the place in our code that warns."""
    Console(stderr=True, highlight=False).print(f"warning: {message}", markup=False, soft_wrap=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on standard error, so that standard output holds the answer alone."""
    with Console(stderr=True).status(what):
        yield


@app.command()
def demo(
    sentences: Annotated[list[str] | None, typer.Argument(help="Instead of the built-in few.")] = None,
    model: Annotated[Path | None, typer.Option(help="A folder with config.json, weights and tokenizer.")] = None,
    device: Annotated[str, typer.Option(help="Where the encoder's products run.")] = "cpu",
) -> None:
    """Embed sentences with a real transformer whose linear layers are FP8 products."""
    from kingpost.demo import show

    if not show.run(sentences or (), model, device, out):
        raise typer.Exit(1)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="For a program; the keys stay.")] = False) -> None:
    """Tell what kingpost finds on this machine."""
    from kingpost.doctor import examine

    facts = examine()
    if as_json:
        typer.echo(json.dumps(asdict(facts), indent=2))
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("kingpost", facts.kingpost)
    table.add_row("Python", f"{facts.python} on {facts.platform}")
    for name, version in facts.packages.items():
        table.add_row(name, version or "[dim]not installed[/]")
    table.add_row("NVIDIA driver", f"serves CUDA {facts.driver}" if facts.driver else "[dim]none[/]")
    table.add_row("ptxas", f"{facts.ptxas.version}, {facts.ptxas.origin}'s" if facts.ptxas else "[yellow]none[/]")
    writable = "writable" if facts.cache.writable else "[yellow]not writable[/]"
    table.add_row("cache", f"{facts.cache.path}, {writable}, {facts.cache.binaries} binaries")
    for device in facts.devices:
        table.add_row(device.name, device.description)
    out.print(table)


@app.command(context_settings=NUMBERS)
def run(
    m: M,
    n: N,
    k: K,
    on: Annotated[str, typer.Option(help="The device.")] = "cpu",
    out_dtype: Out = OutDtype.bfloat16,
    seed: Seed = 0,
) -> None:
    """Multiply random operands; say how long it took and how far the float64 truth is."""
    from kingpost.trial import Trial

    with waiting(f"{m} x {n} x {k} on {on}"):
        result = Trial(m, n, k, out_dtype.value, seed).run(on)
    out.print(f"[{m}, {k}] @ [{k}, {n}] on {on}, {out_dtype.value} out", markup=False)
    out.print(f"  first call   {result.first_seconds:.4f} s, wall time of kp.mm on arrays of the host")
    out.print(f"  second call  {result.seconds:.4f} s")
    out.print(f"  error        {result.error:.3f} of what is allowed{'' if result.error <= 1 else ': [red]wrong[/]'}")
    if result.error > 1:
        raise typer.Exit(1)


@app.command(context_settings=NUMBERS)
def asm(m: M, n: N, k: K, target: Target = "sm_90a", out_dtype: Out = OutDtype.bfloat16) -> None:
    """Print the assembly text that is chosen for a product, under what its assembler said of it."""
    from kingpost.trial import Trial

    with waiting(f"assembling for {target}"):
        made = Trial(m, n, k, out_dtype.value, target=target).assemble()
    by, lines = made.binary, len(made.text.splitlines())
    # Comments, so that all of the output is still a file that assembles.
    typer.echo(f"// {lines} lines, assembled for {target} by {by.tool} in {by.seconds:.2f} s")
    typer.echo(f"// registers {by.registers}, spilled bytes {by.spill_bytes}, shared bytes {made.shared_bytes}")
    typer.echo(made.text)


@app.command()
def check(
    what: Annotated[str, typer.Argument(metavar="WHAT", show_default=False, help=WHAT)],
    target: Annotated[str | None, typer.Option("--for", help="The chip. Default: all; of a shape, sm_90a.")] = None,
    schedule: Annotated[list[Schedule] | None, typer.Option(help="Some of them instead of all.")] = None,
    exhaustive: Annotated[bool, typer.Option(help="Search every order of synchronisation as well.")] = False,
    mutate: Annotated[bool, typer.Option(help="Weaken one decision at a time: is it noticed?")] = False,
    sample: Annotated[int | None, typer.Option(min=1, help="Of each case, so many mutants.")] = None,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="For a program; the keys stay.")] = False,
) -> None:
    """Emulate kernels under each schedule; compare with the chip's arithmetic."""
    from kingpost.checker import examine, show

    if sample and not mutate:
        raise ValueError("--sample is of mutants; --mutate is wanted with it")
    schedules = tuple(each.value for each in schedule or Schedule)
    extras = tuple(name for name, wanted in (("exhaustive", exhaustive), ("mutate", mutate)) if wanted)
    question = examine.Question(what, target, schedules, seed, extras, sample)
    with Console(stderr=True).status(f"checking {escape(what)}") as status:
        clean = show.run(question, as_json, out, lambda progress: status.update(escape(progress)))
    if not clean:
        raise typer.Exit(1)


@app.command()
def conformance(
    device: Annotated[str, typer.Argument(metavar="DEVICE", show_default=False, help="As in kingpost doctor.")],
    as_json: Annotated[bool, typer.Option("--json", help="For a program; the keys stay.")] = False,
) -> None:
    """Examine a device: formats, every operation, products against the truth, errors."""
    from kingpost import conformance

    with waiting(f"examining {device}"):
        results = conformance.run(device)
    passed = conformance.passed(results)
    if as_json:
        checks = [asdict(result) for result in results]
        typer.echo(json.dumps({"device": device, "passed": passed, "checks": checks}, indent=2))
    else:
        table = Table("of", "check", "", "s", box=box.SIMPLE_HEAD)
        for result in results:
            colour = "green" if result.verdict == conformance.PASSED else "yellow" if result.good else "red"
            what = f"{result.name}\n{result.detail}" if result.detail else result.name
            table.add_row(result.group, Text(what), f"[{colour}]{result.verdict}[/]", f"{result.seconds:.2f}")
        out.print(table)
        out.print(f"{device} {'conforms' if passed else 'does not conform'}", markup=False)
    if not passed:
        raise typer.Exit(1)


@app.command()
def products(
    devices: Annotated[list[str] | None, typer.Argument(help="Default: every device of this machine.")] = None,
) -> None:
    """Which products each device offers, of which formats and scalings.

    "any": operands with either dimension contiguous. "copied": K contiguous, others are copied first. "K": K
    contiguous only.
    """
    from kingpost import offers, registry

    chosen = [registry.find(name) for name in devices] if devices else registry.devices()
    table = Table("product", "of", *(device.name for device in chosen), box=box.SIMPLE)
    for call, kind, cells in offers.rows(chosen):
        table.add_row(Text(call), Text(kind), *cells)
    out.print(table)


@cache_app.command()
def path() -> None:
    """Print the folder."""
    from kingpost.assemble import cache

    typer.echo(cache.path())


@cache_app.command("list")
def list_entries() -> None:
    """List the binaries, oldest first."""
    from kingpost.assemble import cache

    table = Table("made", "target", "by", "registers", "bytes", "text", box=box.SIMPLE_HEAD)
    entries = cache.entries()
    for entry in entries:
        made = datetime.fromtimestamp(entry.made).isoformat(" ", "minutes")
        table.add_row(made, entry.target, entry.tool, str(entry.registers), f"{entry.size:,}", entry.key[:12])
    out.print(table if entries else f"no binaries in {cache.path()}")


@cache_app.command()
def clear() -> None:
    """Remove every binary."""
    from kingpost.assemble import cache

    typer.echo(f"removed {cache.clear()} binaries from {cache.path()}")
