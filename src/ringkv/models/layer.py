"""layer: a layer's blocks and the weights that they declare, as plain data. No torch.

`blocks` computes what is described here. A family's file defines which blocks its layers have.
"""

from dataclasses import dataclass
from typing import Literal

from ringkv.base.cache_spec import CacheSpec
from ringkv.models.weights import Declared, linear, vector

RopeKind = Literal["default", "linear", "llama3", "yarn"]
Activation = Literal["silu", "gelu_tanh"]
Arrangement = Literal["pre", "sandwich"]
"""pre: a norm before attention and one before feed-forward. sandwich: also one after each, before the residual."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: base frequency and scaling to longer contexts. Unused fields keep their default.

    factor, original_context: used by all scaled kinds. low_freq_factor, high_freq_factor: llama3 (Llama 3.1).
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
    """Grouped-query attention of tokens with `hidden` elements.

    bias: queries, keys and values have one. qk_norm: RMS norm over head_dim of each query and key head. scale: factor
    on the scores before the softmax; None is head_dim ** -0.5.
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
        """What one token stores in a cache."""
        return CacheSpec.grouped(self.kv_heads, self.head_dim, self.scale)

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`; tensor-parallel ranks split the heads."""
        at = f"{prefix}.self_attn"
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
    """Gated feed-forward: down(activation(gate(x)) * up(x)), with `intermediate` elements between."""

    hidden: int
    intermediate: int
    bias: bool = False
    activation: Activation = "silu"

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`; ranks split the intermediate elements."""
        at = f"{prefix}.mlp"
        gate_up = ((f"{at}.gate_proj", self.intermediate), (f"{at}.up_proj", self.intermediate))
        return {
            **linear("gate_up", gate_up, self.hidden, self.bias, 0, "gated"),
            **linear("down", ((f"{at}.down_proj", self.hidden),), self.intermediate, self.bias, 1, "matrix"),
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
    """One kind of layer. window: tokens that each token attends to, including itself; None is all tokens."""

    attention: Attention
    feed_forward: FeedForward
    norm: Norm
    rope: RopeConfig
    arrangement: Arrangement = "pre"
    window: int | None = None

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`, such as "model.layers.3"."""
        hidden = self.attention.hidden
        norms = {ours: vector(f"{prefix}.{theirs}.weight", hidden) for ours, theirs in _NORMS[self.arrangement].items()}
        return {**norms, **self.attention.weights(prefix), **self.feed_forward.weights(prefix)}
