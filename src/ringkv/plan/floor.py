"""floor: the least time that a machine needs for a decode step or a prefill, from bytes and operations alone.

    floor = max(bytes / bandwidth, operations / matrix rate)

A multiply-add is two operations. Norms, rotary angles, softmax and sampling are not counted, so no engine can be faster
than the floor.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ringkv.models.config import ModelConfig
from ringkv.models.weights import Weight
from ringkv.plan.footprint import bits_of, distinct_share


@dataclass(frozen=True)
class Rates:
    """Bytes and operations per second of a machine."""

    bandwidth: float
    matrix: float


@dataclass(frozen=True)
class LeastWork:
    """The least bytes to move and operations to compute."""

    bytes: float
    operations: float

    def seconds(self, rates: Rates) -> float:
        return max(self.bytes / rates.bandwidth, self.operations / rates.matrix)


def step(config: ModelConfig, slots: int, live: float, entry_bytes: int, weights: str = "bfloat16") -> LeastWork:
    """The cost of a decode step, which reads every weight once and `live` entries of each slot.

    One embedding row per slot is too little to count. A tied embedding is read in full as the projection. Of a mixture
    of experts those are read that `slots` tokens choose, if all experts are equally likely.
    """
    multiplied = active_weights(config) + head_weights(config)
    return LeastWork(
        bytes=weight_bytes(config, weights, slots) + slots * live * entry_bytes,
        operations=slots * (2 * multiplied + attention(config) * live),
    )


def prefill(config: ModelConfig, tokens: int, entry_bytes: int, weights: str = "bfloat16") -> LeastWork:
    """The cost of one prompt: weights read once, entries written, causal attention, logits of the last token only."""
    pairs = tokens * (tokens + 1) / 2  # a query attends to itself and to all tokens before it
    return LeastWork(
        bytes=weight_bytes(config, weights, tokens) + tokens * entry_bytes,
        operations=2 * (active_weights(config) * tokens + head_weights(config)) + attention(config) * pairs,
    )


def attention(config: ModelConfig) -> int:
    """Operations of all layers for one query token and one entry."""
    readers = (config.groups[place.group] for place in config.places)
    widths = ((group, group.spec.key.width + group.spec.value_width) for group in readers)
    return sum(2 * group.spec.key.heads * group.queries * width for group, width in widths)


def weight_bytes(config: ModelConfig, weights: str = "bfloat16", rows: int = 1) -> float:
    """Bytes of weights that a step of so many rows reads: all layers and the vocabulary projection."""
    bits, layers = bits_of(weights), sum(_read(weight, rows) for weight in _matrices(config))
    return (layers * bits.layers + head_weights(config) * bits.tables) / 8


def active_weights(config: ModelConfig) -> int:
    """Elements in the matrices of all layers that one token is multiplied with."""
    return sum(weight.active for weight in _matrices(config))


def head_weights(config: ModelConfig) -> int:
    """Elements in the vocabulary projection."""
    return config.vocab_size * config.hidden_size


def _matrices(config: ModelConfig) -> Iterator[Weight]:
    """Yield the matrices of all layers, and of per-layer embeddings."""
    yield from (weight for weight in config.shared_weights().values() if weight.pack == "matrix")
    for layer in range(config.num_layers):
        yield from (weight for weight in config.layer_weights(layer).values() if len(weight.shape) > 1)


def _read(weight: Weight, rows: int) -> float:
    """Return the elements that so many rows read: of experts, the expected number of distinct ones."""
    if weight.chosen is None:
        return weight.elements
    return weight.elements * distinct_share(weight.chosen, weight.matrices, rows)
