"""Blocks: the computation that `layer` describes.

They are pure functions: weights are arguments, and the cache is accessed only through `attend`.

N tokens, H key-value heads, G query heads per key-value head, D head_dim.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from ringkv.kernels.linear import gated, linear
from ringkv.kernels.norm import rms_norm
from ringkv.models.layer import Attention, FeedForward, Layer, Norm
from ringkv.models.rotary import Rotation, rotate

NamedWeights = Mapping[str, Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q [N, H, G, D], k and v [N, H, D] -> [N, H, G, D]; the only access of a model to the cache."""


def transform(layer: Layer, x: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend) -> Tensor:
    """Run one layer on x [N, hidden]."""
    return _ARRANGED[layer.arrangement](layer, x, angles, weights, attend)


def attention(
    block: Attention,
    norm: Norm,
    x: Tensor,
    angles: Rotation,
    weights: NamedWeights,
    attend: Attend,
    residual: Tensor | None = None,
) -> Tensor:
    """Return attention over normalised x [N, hidden], plus the residual."""
    heads, width = block.kv_heads, block.head_dim
    qkv = linear(x, weights["qkv"], weights.get("qkv_bias"), weights["attention_norm"], norm.eps, offset=norm.offset)
    q, k, v = qkv.view(x.shape[0], -1, width).split((block.heads, heads, heads), dim=1)
    if block.qk_norm:
        q, k = (rms_norm(one, weights[f"{name}_norm"], norm.eps, norm.offset) for name, one in (("q", q), ("k", k)))
    out = attend(rotate(q, angles).reshape(x.shape[0], heads, -1, width), rotate(k, angles), v)
    return linear(out.reshape(x.shape[0], -1), weights["output"], weights.get("output_bias"), residual=residual)


def feed_forward(
    block: FeedForward, norm: Norm, x: Tensor, weights: NamedWeights, residual: Tensor | None = None
) -> Tensor:
    """Return the gated feed-forward of normalised x [N, hidden], plus the residual."""
    intermediate = gated(
        x,
        weights["gate_up"],
        weights.get("gate_up_bias"),
        weights["feed_forward_norm"],
        norm.eps,
        block.activation,
        norm.offset,
    )
    return linear(intermediate, weights["down"], weights.get("down_bias"), residual=residual)


def _pre(layer: Layer, x: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend) -> Tensor:
    x = attention(layer.attention, layer.norm, x, angles, weights, attend, residual=x)
    return feed_forward(layer.feed_forward, layer.norm, x, weights, residual=x)


def _sandwich(layer: Layer, x: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend) -> Tensor:
    norm = layer.norm
    out = attention(layer.attention, norm, x, angles, weights, attend)
    x = x + rms_norm(out, weights["attention_out_norm"], norm.eps, norm.offset)
    out = feed_forward(layer.feed_forward, norm, x, weights)
    return x + rms_norm(out, weights["feed_forward_out_norm"], norm.eps, norm.offset)


_ARRANGED = {"pre": _pre, "sandwich": _sandwich}
