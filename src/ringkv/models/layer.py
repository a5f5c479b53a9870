"""layer: a layer's blocks and the weights that they declare, as plain data. No torch.

`blocks` computes what is described here. A family's file defines which blocks its layers have.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, NamedTuple, Protocol, Self

from ringkv.base.cache_spec import CacheSpec
from ringkv.base.ranks import AttentionParallel, Exchange, Rank
from ringkv.models.latent import LatentAttention
from ringkv.models.weights import CheckpointTensor, Declared, Heads, Weight, linear, parts, vector

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "proportional"]
Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]
Normed = Literal["none", "head", "all", "after_rope"]
"""What a norm of queries and keys covers: each head alone, or all heads together.

after_rope: each head alone, after rotation. The keys' weight multiplies the queries instead, so that layers that share
keys can have weights of their own.
"""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: base frequency and scaling to longer contexts. Unused fields keep their default.

    width: elements of a head that rotate; None is all. interleaved: the pairs are (2i, 2i + 1) instead of
    (i, i + width / 2). factor, original_context: used by all scaled kinds. low_freq_factor, high_freq_factor: llama3
    (Llama 3.1). beta_fast, beta_slow, mscale, mscale_all_dim, truncate: yarn (arXiv 2309.00071). attention_factor: yarn
    and longrope. divisors: longrope (arXiv 2402.13753), of each pair's frequency. fraction: proportional (Gemma 4), of
    the pairs that rotate; the others, with the lowest frequencies, do not.
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
    divisors: tuple[float, ...] = ()
    fraction: float = 1.0
    width: int | None = None
    interleaved: bool = False


def yarn_temperature(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's factor on scores, by its factor on the context (arXiv 2309.00071, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


@dataclass(frozen=True)
class Norm:
    """RMS normalisation: x / rms(x) * (offset + weight). Gemma's offset is 1."""

    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention of tokens with `hidden` elements.

    bias: queries, keys and values have one. qk_norm: RMS norm of queries and keys, and norm_names in the checkpoint.
    scale: factor on the scores before the softmax; None is head_dim ** -0.5. fused: the checkpoint has queries, keys
    and values as one matrix of this name. shared: keys and values are those of an earlier layer. sinks: each query head
    has a learned logit in the softmax's denominator. v_norm: RMS norm of values, without a weight. keys_are_values: one
    matrix gives both; values are not rotated. rotated_heads: query heads whose results a Hadamard matrix mixes, element
    by element, before the output projection; 1 is none.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    output_bias: bool = False
    qk_norm: Normed = "none"
    scale: float | None = None
    fused: str | None = None
    shared: bool = False
    sinks: bool = False
    v_norm: bool = False
    keys_are_values: bool = False
    rotated_heads: int = 1
    norm_names: tuple[str, str] = ("q_norm", "k_norm")

    @property
    def cache(self) -> CacheSpec:
        """What one token stores in a cache."""
        return CacheSpec.grouped(self.kv_heads, self.head_dim, self.scale)

    @property
    def queries(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.kv_heads

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`; tensor-parallel ranks split the heads."""
        module = f"{prefix}.self_attn"
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        new = () if self.shared else ("k_proj",) if self.keys_are_values else ("k_proj", "v_proj")
        queries = Heads(self.heads, self.kv_heads)
        rows, heads = {"q_proj": query, **dict.fromkeys(new, key)}, (queries, *[Heads(self.kv_heads)] * len(new))
        output = parts(module, {"o_proj": self.hidden}, heads=(queries,))
        sinks = CheckpointTensor(f"{module}.sinks", (self.heads,), heads=queries)
        return {
            **linear("qkv", parts(module, rows, self.fused, heads), self.hidden, self.bias, 0, "matrix"),
            **linear("output", output, query, self.output_bias, 1, "matrix"),
            **self._norms(module, query, key),
            **({"sinks": Weight((sinks,), "exact", 0)} if self.sinks else {}),
        }

    def of_rank(self, rank: Rank, parallel: AttentionParallel) -> Self:
        """Return the heads that a rank computes, of all slots."""
        assert parallel == "heads"
        return replace(self, heads=len(rank.heads(self.heads, self.kv_heads)), kv_heads=len(rank.heads(self.kv_heads)))

    def _norms(self, module: str, query: int, key: int) -> Declared:
        if self.qk_norm == "none":
            return {}
        widths = (query, key) if self.qk_norm == "all" else (self.head_dim, self.head_dim)
        each = zip(("q_norm", "k_norm"), self.norm_names, widths, strict=True)
        norms = {ours: vector(f"{module}.{name}.weight", width) for ours, name, width in each}
        if self.shared and self.qk_norm != "after_rope":
            del norms["k_norm"]
        return norms


@dataclass(frozen=True)
class FeedForward:
    """Gated feed-forward: down(activation(gate(x)) * up(x)), with `intermediate` elements between.

    module, down: their names in the checkpoint. fused: it has gate and up as one matrix of this name. rotated: elements
    that a Hadamard matrix mixes before the down projection; 1 is none.
    """

    hidden: int
    intermediate: int
    bias: bool = False
    activation: Activation = "silu"
    module: str = "mlp"
    down: str = "down_proj"
    fused: str | None = None
    rotated: int = 1

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`; ranks split the intermediate elements."""
        module = f"{prefix}.{self.module}"
        gate_up = parts(module, {"gate_proj": self.intermediate, "up_proj": self.intermediate}, self.fused)
        return {
            **linear("gate_up", gate_up, self.hidden, self.bias, 0, "gated"),
            **linear("down", parts(module, {self.down: self.hidden}), self.intermediate, self.bias, 1, "matrix"),
        }

    def of_rank(self, rank: Rank) -> Self:
        """Return the intermediate elements that a rank computes."""
        return replace(self, intermediate=len(rank.elements(self.intermediate)))


@dataclass(frozen=True)
class GaussianTopK(FeedForward):
    """A feed-forward with activation sparsity by statistical top-k (Gemma 3n).

    Gates below the mean plus a number of standard deviations become zero. If gates are normally distributed, these are
    the part `sparsity` of them, above 0 and below 1 (Spark Transformer, arXiv 2506.06644).
    """

    sparsity: float = 0.5

    @property
    def deviations(self) -> float:
        """Standard deviations above the mean below which gates become zero."""
        return NormalDist().inv_cdf(self.sparsity)

    def weights(self, prefix: str) -> Declared:
        """Declare gate and up as one plain matrix: gates are compared with each other before they multiply ups."""
        declared = super().weights(prefix)
        return {**declared, "gate_up": declared["gate_up"]._replace(pack="matrix")}


class FeedForwardBlock(Protocol):
    """What stands behind attention: a `FeedForward`, or a mixture of experts."""

    @property
    def activation(self) -> Activation:
        """Function of the gates."""

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`."""

    def of_rank(self, rank: Rank) -> Self:
        """Return what a rank computes."""


class Norms(NamedTuple):
    """Names in the checkpoint of a layer's norms: before a block, and after it, before the residual. None: no norm."""

    attention_norm: str | None = None
    attention_out_norm: str | None = None
    feed_forward_norm: str | None = None
    feed_forward_out_norm: str | None = None


PRE = Norms(attention_norm="input_layernorm", feed_forward_norm="post_attention_layernorm")
POST = Norms(attention_out_norm="post_attention_layernorm", feed_forward_out_norm="post_feedforward_layernorm")
SANDWICH = Norms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)


@dataclass(frozen=True)
class Layer:
    """One kind of layer.

    rope: None if queries and keys do not rotate (NoPE, arXiv 2305.19466). window: tokens that each token attends to,
    including itself; None is all tokens. residual_scale: factor on what each block adds. exchange: how ranks add up
    what each block computes.
    """

    attention: Attention | LatentAttention
    feed_forward: FeedForwardBlock
    norm: Norm
    rope: RopeConfig | None
    norms: Norms = PRE
    window: int | None = None
    residual_scale: float = 1.0
    exchange: Exchange = "none"

    def of_rank(self, rank: Rank, exchange: Exchange, parallel: AttentionParallel) -> Self:
        """Return what a rank computes."""
        attention, between = self.attention.of_rank(rank, parallel), self.feed_forward.of_rank(rank)
        return replace(self, attention=attention, feed_forward=between, exchange=exchange)

    def weights(self, prefix: str) -> Declared:
        """Declare the weights of the checkpoint's layer `prefix`, such as "model.layers.3"."""
        hidden = self.attention.hidden
        norms = {ours: vector(f"{prefix}.{name}.weight", hidden) for ours, name in self.norms._asdict().items() if name}
        return {**norms, **self.attention.weights(prefix), **self.feed_forward.weights(prefix)}
