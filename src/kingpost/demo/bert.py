"""A BERT sentence encoder in numpy. Whoever builds one supplies the products of its linear layers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Product = Callable[[str, Array], Array]
"""The name of a weight [outputs, inputs], and x [rows, inputs]; the answer is x @ weight.T in float32."""

# The linear layers of one encoder layer in the order in which they run: what they are called here, and in a checkpoint.
LINEAR_LAYERS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention out": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}


@dataclass(frozen=True)
class Config:
    """The sizes of the encoder, under the names that config.json gives them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float


@dataclass(frozen=True)
class Tokens:
    """Sentences as token ids, packed end to end: without padding, each row of a product is a real token."""

    ids: Array
    sentences: tuple[slice, ...]

    @classmethod
    def pack(cls, sentences: Sequence[Sequence[int]]) -> "Tokens":
        ends = np.cumsum([len(ids) for ids in sentences])
        return cls(
            ids=np.concatenate([np.asarray(ids, dtype=np.int64) for ids in sentences]),
            sentences=tuple(slice(int(end) - len(ids), int(end)) for ids, end in zip(sentences, ends, strict=True)),
        )

    @property
    def positions(self) -> Array:
        """Each token's place in its own sentence."""
        return np.concatenate([np.arange(rows.stop - rows.start) for rows in self.sentences])


class Encoder:
    """The encoder: token ids to hidden states, layer by layer, and hidden states to one unit vector a sentence."""

    def __init__(self, config: Config, weights: Mapping[str, Array], product: Product) -> None:
        self.config = config
        self.weights = weights
        self.product = product

    def layers(self, tokens: Tokens) -> Iterator[Array]:
        """The hidden states [tokens, hidden] after each layer in turn; the next layer runs when asked for."""
        x = self.embedding(tokens)
        for index in range(self.config.num_hidden_layers):
            x = self.layer(f"encoder.layer.{index}.", x, tokens.sentences)
            yield x

    def embedding(self, tokens: Tokens) -> Array:
        """Word, position and segment (always the first) of each token."""
        words, places, segments = (
            self.weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")
        )
        return self.norm("embeddings.LayerNorm", words[tokens.ids] + places[tokens.positions] + segments[0])

    def layer(self, prefix: str, x: Array, sentences: Sequence[slice]) -> Array:
        """One encoder layer: attention, then the two-layer perceptron, each added to what went in."""
        query, key, value = (self.linear(prefix + LINEAR_LAYERS[name], x) for name in ("query", "key", "value"))
        attended = np.concatenate([self.attention(query[rows], key[rows], value[rows]) for rows in sentences])
        x = self.norm(
            prefix + "attention.output.LayerNorm", x + self.linear(prefix + LINEAR_LAYERS["attention out"], attended)
        )
        wide = gelu(self.linear(prefix + LINEAR_LAYERS["up"], x))
        return self.norm(prefix + "output.LayerNorm", x + self.linear(prefix + LINEAR_LAYERS["down"], wide))

    def attention(self, query: Array, key: Array, value: Array) -> Array:
        """Every token of one sentence attends to every other, head by head; in float32, not in FP8."""
        heads = self.config.num_attention_heads
        q, k, v = (x.reshape(len(x), heads, -1).transpose(1, 0, 2) for x in (query, key, value))
        scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(q.shape[-1]))
        return (softmax(scores) @ v).transpose(1, 0, 2).reshape(query.shape)

    def linear(self, name: str, x: Array) -> Array:
        """x @ weight.T + bias: the product as supplied, the bias in float32."""
        return self.product(f"{name}.weight", x) + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: Array) -> Array:
        """Each row to mean 0 and variance 1, then scaled and shifted."""
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(self.config.layer_norm_eps))
        return centred / deviation * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def sentence_embeddings(hidden: Array, tokens: Tokens) -> Array:
    """One unit vector a sentence: the mean of its tokens' hidden states, normalised."""
    means = np.stack([hidden[rows].mean(axis=0) for rows in tokens.sentences])
    return means / np.linalg.norm(means, axis=-1, keepdims=True)


def softmax(x: Array) -> Array:
    """Exponentials over the last axis, summing to 1."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def gelu(x: Array) -> Array:
    """x times the normal distribution's probability of a value below x."""
    return np.float32(0.5) * x * (1 + erf(x / np.float32(np.sqrt(2))))


def erf(x: Array) -> Array:
    """The error function, to 1.5e-7 plus float32's rounding (Abramowitz and Stegun 7.1.26), since numpy has none."""
    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    polynomial = np.zeros_like(t)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        polynomial = (polynomial + np.float32(coefficient)) * t
    return np.sign(x) * (1 - polynomial * np.exp(-np.square(x)))
