"""floor: the least time that a machine needs for a decode step or a prefill, from bytes and operations alone.

    floor = max(bytes / bandwidth, operations / matrix rate)

A multiply-add is two operations. Norms, rotary angles, softmax and sampling are not counted, so no engine can be faster
than the floor.
"""

from dataclasses import dataclass

from ringkv.models.config import ModelConfig
from ringkv.plan.footprint import bits_of


@dataclass(frozen=True)
class Rates:
    """Bytes and operations per second of a machine."""

    bandwidth: float
    matrix: float


@dataclass(frozen=True)
class Cost:
    """The least bytes to move and operations to compute."""

    bytes: float
    operations: float

    def seconds(self, rates: Rates) -> float:
        return max(self.bytes / rates.bandwidth, self.operations / rates.matrix)


def step(config: ModelConfig, slots: int, live: float, entry_bytes: int, weights: str = "bfloat16") -> Cost:
    """The cost of a decode step, which reads every weight once and `live` entries of each slot.

    One embedding row per slot is too little to count. A tied embedding is read in full as the projection.
    """
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * live
    return Cost(
        bytes=weight_bytes(config, weights) + slots * live * entry_bytes,
        operations=slots * (2 * (layer_weights(config) + head_weights(config)) + attention),
    )


def prefill(config: ModelConfig, tokens: int, entry_bytes: int, weights: str = "bfloat16") -> Cost:
    """The cost of one prompt: weights read once, entries written, causal attention, logits of the last token only."""
    pairs = tokens * (tokens + 1) / 2  # a query attends to itself and to all tokens before it
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * pairs
    return Cost(
        bytes=weight_bytes(config, weights) + tokens * entry_bytes,
        operations=2 * (layer_weights(config) * tokens + head_weights(config)) + attention,
    )


def weight_bytes(config: ModelConfig, weights: str = "bfloat16") -> float:
    """Bytes of weights that a step reads: all layers and the vocabulary projection."""
    bits = bits_of(weights)
    return (layer_weights(config) * bits.layers + head_weights(config) * bits.tables) / 8


def layer_weights(config: ModelConfig) -> int:
    """Elements in the matrices of all layers."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = config.hidden_size * (2 * queries + 2 * keys)
    return config.num_layers * (attention + 3 * config.hidden_size * config.intermediate_size)


def head_weights(config: ModelConfig) -> int:
    """Elements in the vocabulary projection."""
    return config.vocab_size * config.hidden_size
