"""Blocks: the computation that `layer` describes.

They are pure functions: weights are arguments, and the cache is accessed only through `attend`. Between operators they
compute in float32 and round once, as compiled graphs do, so that plain calls have the same bits.

N tokens, H key-value heads, G query heads per key-value head, D head_dim.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ringkv.kernels.attended import Attended
from ringkv.kernels.collective import all_reduce
from ringkv.kernels.expanded_attend import Expansion
from ringkv.kernels.expert_stack import ExpertStack
from ringkv.kernels.experts import experts
from ringkv.kernels.linear import ACTIVATIONS, gated, linear
from ringkv.kernels.mix import hadamard
from ringkv.kernels.norm import RMSNorm, unweighted_norm, wide_norm
from ringkv.kernels.route import route
from ringkv.kernels.sink_logits import add_sink_logits
from ringkv.models.experts import Experts, ParallelExperts, StackedExperts
from ringkv.models.latent import LATENT_EPS, LatentAttention
from ringkv.models.layer import Attention, FeedForward, GaussianTopK, Layer, Norm
from ringkv.models.rotary import Rotation, rotate

NamedWeights = Mapping[str, Tensor]


class Attend(Protocol):
    """The only access of a model to the cache."""

    def __call__(self, q: Tensor, k: Tensor | None, v: Tensor | None, latent: Expansion | None = None, /) -> Attended:
        """Return out [N, H, G, D] and lse [N, H, G] of q [N, H, G, D] with new k and v [N, H, D].

        k and v are None if an earlier layer has written them. If the cache holds latents, k is v, H is 1, and q is not
        absorbed: `latent` has the matrices of both forms, and out the values of each head.
        """


def transform(layer: Layer, x: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend) -> Tensor:
    """Run one layer on x [N, hidden]."""
    x = _added(layer, x, weights.get("attention_out_norm"), partial(attention, layer, x, angles, weights, attend))
    return _added(layer, x, weights.get("feed_forward_out_norm"), partial(feed_forward, layer, x, weights))


def attention(
    layer: Layer, x: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend, residual: Tensor | None = None
) -> Tensor:
    """Return attention over x [N, hidden], normalised if there is a norm before it, plus the residual."""
    out = _ATTENTION[type(layer.attention)](layer, x, angles, weights, attend).reshape(x.shape[0], -1)
    return linear(out, weights["output"], weights.get("output_bias"), residual=residual, dtype=_summed(layer))


def _grouped(layer: Layer, x: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend) -> Tensor:
    block, norm = layer.attention, layer.norm
    assert isinstance(block, Attention)
    width, kv = block.head_dim, () if block.shared else (block.kv_heads,) * (1 if block.keys_are_values else 2)
    before = weights.get("attention_norm")
    qkv = linear(x, weights["qkv"], weights.get("qkv_bias"), before, norm.eps, offset=norm.offset)
    q, *new = qkv.view(x.shape[0], -1, width).split((block.heads, *kv), dim=1)
    q = _rotated(layer, q, "q_norm", angles, weights).reshape(x.shape[0], block.kv_heads, -1, width)
    if block.shared:
        attended = attend(q, None, None)
    else:
        k, v = new[0], new[-1]
        v = unweighted_norm(v, norm.eps).to(x.dtype) if block.v_norm else v
        attended = attend(q, _rotated(layer, k, "k_norm", angles, weights), v)
    out = add_sink_logits(attended, weights["sinks"]) if "sinks" in weights else attended.out
    return out if block.rotated_heads == 1 else hadamard(out.flatten(1), block.rotated_heads, width)


def _rotated(layer: Layer, x: Tensor, norm: str, angles: Rotation, weights: NamedWeights) -> Tensor:
    """Normalise queries or keys [N, heads, D] if there is a norm, and rotate them if the layer does."""
    if isinstance(layer.attention, Attention) and layer.attention.qk_norm == "after_rope":
        assert layer.rope
        wide = unweighted_norm(rotate(x.float(), angles, layer.rope.interleaved), layer.norm.eps)
        # Queries have the weights of both norms.
        return (wide * weights["q_norm"].float() * weights["k_norm"].float() if norm == "q_norm" else wide).to(x.dtype)
    wide = _normed(x, weights[norm], layer.norm) if norm in weights else x
    return (rotate(wide, angles, layer.rope.interleaved) if layer.rope else wide).to(x.dtype)


def _latent(layer: Layer, x: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend) -> Tensor:
    """Pass plain queries, with the matrices that absorb them or expand latents."""
    block, norm, rope = layer.attention, layer.norm, layer.rope
    assert isinstance(block, LatentAttention)
    assert rope is not None  # torch.compile cannot trace an object as a condition
    before = weights.get("attention_norm")
    latents = linear(x, weights["latents"], weights.get("latents_bias"), before, norm.eps, offset=norm.offset)
    q, latent, key = latents.split((block.query_rank or block.query, block.rank, block.rope), dim=-1)
    if block.query_rank:
        q = linear(q, weights["query"], None, weights["query_norm"], LATENT_EPS)
    nope, rope_part = q.view(x.shape[0], block.heads, -1).split((block.nope, block.rope), dim=-1)
    rotated, key = (rotate(part, angles, rope.interleaved) for part in (rope_part, key[:, None]))
    query = torch.cat((nope, rotated), dim=-1)
    latent = wide_norm(latent, weights["latent_norm"], LATENT_EPS).to(x.dtype)
    entry = torch.cat((latent[:, None], key), dim=-1)
    return attend(query[:, None], entry, entry, Expansion(weights["key_up"], weights["value_up"])).out


_ATTENTION: Mapping[type, Callable[..., Tensor]] = {Attention: _grouped, LatentAttention: _latent}


def feed_forward(layer: Layer, x: Tensor, weights: NamedWeights, residual: Tensor | None = None) -> Tensor:
    """Return the feed-forward of x [N, hidden], normalised if there is a norm before it, plus the residual."""
    return _FEED_FORWARD[type(layer.feed_forward)](layer, x, weights, residual)


def _gated(layer: Layer, x: Tensor, weights: NamedWeights, residual: Tensor | None, prefix: str = "") -> Tensor:
    norm, before, bias = layer.norm, weights.get("feed_forward_norm"), weights.get(f"{prefix}gate_up_bias")
    activation = layer.feed_forward.activation
    between = gated(x, weights[f"{prefix}gate_up"], bias, before, norm.eps, activation, norm.offset)
    if isinstance(layer.feed_forward, FeedForward) and layer.feed_forward.rotated > 1:
        between = hadamard(between, layer.feed_forward.rotated)
    down, bias = weights[f"{prefix}down"], weights.get(f"{prefix}down_bias")
    return linear(between, down, bias, residual=residual, dtype=_summed(layer))


def _gaussian_top_k(layer: Layer, x: Tensor, weights: NamedWeights, residual: Tensor | None) -> Tensor:
    block, norm, before = layer.feed_forward, layer.norm, weights.get("feed_forward_norm")
    assert isinstance(block, GaussianTopK)
    both = linear(x, weights["gate_up"], None, before, norm.eps, dtype=torch.float32, offset=norm.offset)
    gate, up = both.chunk(2, dim=-1)
    least = gate.mean(-1, keepdim=True) + gate.std(-1, correction=0, keepdim=True) * block.deviations
    between = ACTIVATIONS[block.activation]((gate - least).relu(), up).to(x.dtype)
    return linear(between, weights["down"], residual=residual)


def _experts(layer: Layer, x: Tensor, weights: NamedWeights, residual: Tensor | None) -> Tensor:
    block, norm, before = layer.feed_forward, layer.norm, weights.get("feed_forward_norm")
    assert isinstance(block, Experts)
    bias = weights.get("router_bias")
    logits = linear(x, weights["router"], bias, before, norm.eps, dtype=torch.float32, offset=norm.offset)
    routed = route(logits, weights.get("router_correction"), block.router, gates=int(bool(block.shared_gate)))
    rest = torch.zeros_like(x) if residual is None else residual
    if block.shared_gate:
        rest = (rest.float() + _gated(layer, x, weights, None, "shared_").float() * routed.gates).to(x.dtype)
    elif block.shared:
        rest = _gated(layer, x, weights, rest, "shared_").to(x.dtype)
    first, count = block.held or (0, block.router.experts)
    chosen = routed.experts - first if block.held else routed.experts
    biases = weights.get("experts_gate_up_bias"), weights.get("experts_down_bias")
    stack = ExpertStack(weights["experts_gate_up"], weights["experts_down"], count, block.activation, *biases)
    return experts(x, chosen, routed.weights, stack, rest, RMSNorm(before, norm.eps, norm.offset))


def _parallel_experts(layer: Layer, x: Tensor, weights: NamedWeights, residual: Tensor | None) -> Tensor:
    """Return the sum of both feed-forwards of x [N, hidden], each normalised."""
    block, norm = layer.feed_forward, layer.norm
    assert isinstance(block, ParallelExperts)
    assert residual is None, "a norm follows the sum"
    logits = linear(x, weights["router"], None, weights["router_norm"], norm.eps, dtype=torch.float32)
    routed = route(logits * x.shape[-1] ** -0.5, None, block.router)
    factors = routed.weights * weights["router_factors"][routed.experts]
    matrices = weights["experts_gate_up"], weights["experts_down"]
    stack, before = ExpertStack(*matrices, block.router.experts, block.activation), weights["experts_norm"]
    sparse = experts(x, routed.experts, factors, stack, torch.zeros_like(x), RMSNorm(before, norm.eps, norm.offset))
    outs = (_gated(layer, x, weights, None), "dense_out_norm"), (sparse, "experts_out_norm")
    dense, sparse = (wide_norm(out, weights[name], norm.eps, norm.offset) for out, name in outs)
    return (dense + sparse).to(x.dtype)


_FEED_FORWARD: Mapping[type, Callable[..., Tensor]] = {
    FeedForward: _gated,
    GaussianTopK: _gaussian_top_k,
    Experts: _experts,
    StackedExperts: _experts,
    ParallelExperts: _parallel_experts,
}


def _added(layer: Layer, x: Tensor, norm: Tensor | None, block: Callable[..., Tensor]) -> Tensor:
    """Add a block's result to x. The block's last product adds it if nothing comes between."""
    if norm is None and layer.residual_scale == 1.0 and layer.exchange == "none":
        return block(residual=x)
    out = all_reduce(block(), layer.exchange).float()
    if norm is not None:
        out = wide_norm(out, norm, layer.norm.eps, layer.norm.offset)
    return (x.float() + (out if layer.residual_scale == 1.0 else out * layer.residual_scale)).to(x.dtype)


def _summed(layer: Layer) -> torch.dtype | None:
    """The dtype of a block's result: that of its input, unless ranks add theirs up."""
    return None if layer.exchange == "none" else torch.float32


def _normed(x: Tensor, weight: Tensor, norm: Norm) -> Tensor:
    """Return float32 x [N, heads, D], normalised by head or, if the weight is as long as all heads, together."""
    shape = x.shape if len(weight) == x.shape[-1] else (x.shape[0], len(weight))
    return wide_norm(x.reshape(shape), weight, norm.eps, norm.offset).view_as(x)
