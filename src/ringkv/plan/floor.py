"""floor: the least time that a machine needs for a decode step or a prompt, from bytes and arithmetic alone.

    floor = max(bytes / bandwidth, operations / matrix rate)

B slots, L layers, T prompt tokens, D head_dim; a multiply-add is two operations. Whatever an engine does besides
(norms, rotary angles, softmax, sampling) counts as nothing, so no engine can be faster.
"""

from dataclasses import dataclass

from ringkv.models.config import ModelConfig
from ringkv.plan.footprint import bits_of


@dataclass(frozen=True)
class Rates:
    """What a machine can do: bytes and operations a second."""

    bandwidth: float
    matrix: float


@dataclass(frozen=True)
class Need:
    """What must at least be moved and computed."""

    bytes: float
    operations: float

    def seconds(self, rates: Rates) -> float:
        return max(self.bytes / rates.bandwidth, self.operations / rates.matrix)


def step(config: ModelConfig, slots: int, live: float, entry_bytes: int, weights: str = "bfloat16") -> Need:
    """A decode step: every weight once, and `live` entries of each slot.

    An embedding row a slot is read besides, too little to count; a tied embedding is read as the projection.
    """
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * live
    return Need(
        bytes=weight_bytes(config, weights) + slots * live * entry_bytes,
        operations=slots * (2 * (layer_weights(config) + head_weights(config)) + attention),
    )


def prefill(config: ModelConfig, tokens: int, entry_bytes: int, weights: str = "bfloat16") -> Need:
    """One prompt: each weight at least once, each entry written; causal attention; logits of the last token only."""
    pairs = tokens * (tokens + 1) / 2  # each query sees itself and what is before it
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * pairs
    return Need(
        bytes=weight_bytes(config, weights) + tokens * entry_bytes,
        operations=2 * (layer_weights(config) * tokens + head_weights(config)) + attention,
    )


def weight_bytes(config: ModelConfig, weights: str = "bfloat16") -> float:
    """That a step reads: all layers and the vocabulary projection."""
    bits = bits_of(weights)
    return (layer_weights(config) * bits.layers + head_weights(config) * bits.tables) / 8


def layer_weights(config: ModelConfig) -> int:
    """Numbers in the matrices of all layers."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = config.hidden_size * (2 * queries + 2 * keys)
    return config.num_layers * (attention + 3 * config.hidden_size * config.intermediate_size)


def head_weights(config: ModelConfig) -> int:
    return config.vocab_size * config.hidden_size
