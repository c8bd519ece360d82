"""The demo as a person sees it: progress, errors by layer, similarities, one product's bits on a chip, a check."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import kingpost as kp

from .bert import LINEAR_LAYERS, Array, Encoder, Tokens, sentence_embeddings
from .files import Model, load_model
from .products import Float32Product, Fp8Product, relative_error
from .weakened import show_weakened

SENTENCES = (
    "The cat is asleep.",
    "A kitten takes a nap.",
    "A post holds up the roof.",
    "One beam bears the ridge.",
    "Interest rates have gone up.",
    "Loans now cost more.",
)
EMULATED, GPU = "emulated:sm_90a", "cuda:0"


def run(sentences: Sequence[str], folder: Path | None, device: str, console: Console) -> bool:
    """Embed the sentences in FP8 and in float32 and show how close they are; False if two devices' bits differ or the
    checker errs."""
    sentences = sentences or SENTENCES
    model = load_model(folder)
    tokens = model.tokenize(sentences)
    fp8 = Fp8Product(model.weights, model.linear_names, device)
    hidden, truth, drift = embed(model, tokens, fp8, console)
    console.print(f"{len(sentences)} sentences, {len(tokens.ids)} tokens, {len(fp8.errors)} FP8 products on {device}")
    console.print(error_table(fp8.errors, drift))
    show_similarities(sentences, sentence_embeddings(hidden, tokens), sentence_embeddings(truth, tokens), console)
    same = compare_devices(model, tokens, fp8, console)
    return show_weakened(console) and same


def embed(model: Model, tokens: Tokens, fp8: Fp8Product, console: Console) -> tuple[Array, Array, list[float]]:
    """Both models side by side: the last hidden states in FP8 and float32, and how far apart each layer left them."""
    ours = Encoder(model.config, model.weights, fp8).layers(tokens)
    float32 = Encoder(model.config, model.weights, Float32Product(model.weights)).layers(tokens)
    drift = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("layers", total=model.config.num_hidden_layers)
        for hidden, truth in zip(ours, float32, strict=True):
            drift.append(relative_error(hidden, truth))
            progress.advance(task)
    return hidden, truth, drift


def error_table(errors: dict[str, float], drift: Sequence[float]) -> Table:
    """Each product's relative error for the same input, then that of the layer's output, in which they add up."""
    table = plain_table("Relative error against float32", "layer", *LINEAR_LAYERS, "output")
    for index, output in enumerate(drift):
        products = (errors[f"encoder.layer.{index}.{name}.weight"] for name in LINEAR_LAYERS.values())
        table.add_row(str(index + 1), *(f"{error:.2%}" for error in (*products, output)))
    return table


def show_similarities(sentences: Sequence[str], ours: Array, truth: Array, console: Console) -> None:
    """Cosines of the sentences' FP8 embeddings with float32's and with one another."""
    with_float32 = np.sum(ours * truth, axis=1)
    similarity = ours @ ours.T
    table = plain_table("Cosine with float32's embedding, and with each other's", "", "float32")
    table.add_column("sentence", min_width=16)
    for number in range(len(sentences)):
        table.add_column(str(number + 1), justify="right", min_width=5)
    for number, sentence in enumerate(sentences):
        others = (shade(float(cosine), own=number == other) for other, cosine in enumerate(similarity[number]))
        table.add_row(str(number + 1), f"{with_float32[number]:.5f}", escape(sentence), *others)
    console.print(table)
    console.print(
        f"Lowest cosine with float32 {with_float32.min():.5f}; "
        f"largest difference of a similarity {np.abs(similarity - truth @ truth.T).max():.4f}"
    )


def plain_table(title: str, *columns: str) -> Table:
    """A table without walls, numbers to the right: it must fit 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def shade(cosine: float, own: bool) -> str:
    """A cosine, the brighter the closer."""
    style = "dim" if own or cosine < 0.3 else "bold green" if cosine >= 0.6 else "green"
    return f"[{style}]{cosine:.2f}[/]"


def compare_devices(model: Model, tokens: Tokens, fp8: Fp8Product, console: Console) -> bool:
    """The first sentence's first product as the chip computes it, in the emulator and, where there is one, on a GPU."""
    name = model.linear_names[0]
    x = Encoder(model.config, model.weights, fp8).embedding(tokens)[tokens.sentences[0]]
    (rows, inputs), outputs = x.shape, len(model.weights[name])
    console.print(f"\nLayer 1's query of sentence 1 once more, [{rows}, {inputs}] @ [{inputs}, {outputs}]:")

    def product(device: str) -> Array:
        with console.status(device):
            start = perf_counter()
            y = fp8.on(device, name, x)
            seconds = perf_counter() - start
        digest = sha256(y.tobytes()).hexdigest()[:16]
        console.print(f"  {device:<16} {seconds:.2f} s, {y.nbytes:,} bytes, sha256 {digest}", highlight=False)
        return y

    emulated = product(EMULATED)
    if GPU not in (device.name for device in kp.devices()):
        console.print(f"  {GPU:<16} not on this machine, so there are no bits to compare")
        return True
    measured = product(GPU)
    differing = int(np.count_nonzero(emulated.view(np.uint32) != measured.view(np.uint32)))
    if differing:
        console.print(f"  [bold red]The bits differ in {differing:,} of {emulated.size:,} values.[/]")
    else:
        console.print(f"  [bold green]The bits of all {emulated.size:,} values agree.[/]")
    return not differing
