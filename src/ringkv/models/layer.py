"""What a layer is made of, as plain data: its blocks with their arguments, and the weights they declare. No torch.

`blocks` computes what is described here. A family's file says which blocks its layers have.
"""

from dataclasses import dataclass
from typing import Literal

from ringkv.base.cache_spec import CacheSpec
from ringkv.models.weights import Declared, linear, vector

RopeKind = Literal["default", "linear", "llama3", "yarn"]
Activation = Literal["silu", "gelu_tanh"]
Arrangement = Literal["pre", "sandwich"]
"""pre: a norm before attention and one before feed-forward. sandwich: one after each, too, before the residual."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: base frequency and how it is stretched to longer contexts. Unused fields keep their default.

    factor, original_context: all scaled kinds. low_freq_factor, high_freq_factor: llama3 (Llama 3.1).
    beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim, truncate: yarn (arXiv 2309.00071).
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class Norm:
    """RMS normalisation: x / rms(x) * (offset + weight). Gemma's offset is 1."""

    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention over `hidden` numbers a token.

    bias: of queries, keys and values. qk_norm: RMS norm over head_dim of each query and key head. scale: factor on the
    scores before the softmax; None is head_dim ** -0.5.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    scale: float | None = None

    @property
    def cache(self) -> CacheSpec:
        """What one token leaves in a cache."""
        return CacheSpec.grouped(self.kv_heads, self.head_dim, self.scale)

    def weights(self, at: str) -> Declared:
        """Its weights in layer `at` of a checkpoint; ranks divide the heads."""
        at = f"{at}.self_attn"
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        qkv = ((f"{at}.q_proj", query), (f"{at}.k_proj", key), (f"{at}.v_proj", key))
        norms = {f"{x}_norm": vector(f"{at}.{x}_norm.weight", self.head_dim) for x in ("q", "k") if self.qk_norm}
        return {
            **linear("qkv", qkv, self.hidden, self.bias, 0, "matrix"),
            **linear("output", ((f"{at}.o_proj", self.hidden),), query, self.output_bias, 1, "matrix"),
            **norms,
        }


@dataclass(frozen=True)
class FeedForward:
    """Gated feed-forward: down(activation(gate(x)) * up(x)), `wide` numbers between."""

    hidden: int
    wide: int
    bias: bool = False
    activation: Activation = "silu"

    def weights(self, at: str) -> Declared:
        """Its weights in layer `at` of a checkpoint; ranks divide what is between."""
        at = f"{at}.mlp"
        both = ((f"{at}.gate_proj", self.wide), (f"{at}.up_proj", self.wide))
        return {
            **linear("gate_up", both, self.hidden, self.bias, 0, "gated"),
            **linear("down", ((f"{at}.down_proj", self.hidden),), self.wide, self.bias, 1, "matrix"),
        }


_NORMS: dict[Arrangement, dict[str, str]] = {
    "pre": {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"},
    "sandwich": {
        "attention_norm": "input_layernorm",
        "attention_out_norm": "post_attention_layernorm",
        "feed_forward_norm": "pre_feedforward_layernorm",
        "feed_forward_out_norm": "post_feedforward_layernorm",
    },
}


@dataclass(frozen=True)
class Layer:
    """One kind of layer. window: each token sees so many tokens, itself included; None sees all."""

    attention: Attention
    feed_forward: FeedForward
    norm: Norm
    rope: RopeConfig
    arrangement: Arrangement = "pre"
    window: int | None = None

    def weights(self, at: str) -> Declared:
        """The weights of layer `at` of a checkpoint, such as "model.layers.3"."""
        hidden = self.attention.hidden
        norms = {ours: vector(f"{at}.{theirs}.weight", hidden) for ours, theirs in _NORMS[self.arrangement].items()}
        return {**norms, **self.attention.weights(at), **self.feed_forward.weights(at)}
