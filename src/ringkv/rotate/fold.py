"""fold: a layer's weights, rotated so that the layer computes the same between rotated hidden states.

With Q on the hidden states, R on each head's values, and the rotations that run online (QuaRot, arXiv 2404.00456):

    queries, keys, gate, up   W diag(gain) Q      gain: of the norm before, whose weight becomes 1
    values                    R^T W diag(gain) Q  per key-value head, and their bias
    output, down              Q^T W R^T           R: of the heads, or online; their biases Q^T b

Weights are float64, by our names; matrices are [out, in].
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ringkv.kernels.mix import mixed
from ringkv.models.layer import Attention, FeedForward, Layer
from ringkv.rotate.orthogonal import Orthogonal

Weights = Mapping[str, Tensor]


def rotated_layer(layer: Layer, weights: Weights, residual: Orthogonal) -> dict[str, Tensor]:
    """Return a layer's weights. The layer has its online rotations; residual is Q."""
    rotated = dict(weights)
    for block, norm in (("qkv", "attention_norm"), ("gate_up", "feed_forward_norm")):
        gains, rotated[norm] = without_gains(rotated[norm], layer.norm.offset)
        rotated[block] = residual.rotated(rotated[block] * gains)
    _rotate_values(layer, rotated)
    for block, change in (("output", _after_heads), ("down", _after_gates)):
        rotated[block] = residual.rotated(change(layer, rotated[block]).T).T
        if f"{block}_bias" in rotated:
            rotated[f"{block}_bias"] = residual.rotated(rotated[f"{block}_bias"])
    return rotated


def without_gains(norm: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    """Return a norm's gains, and the weight of a norm without any."""
    return norm + offset, torch.full_like(norm, 1.0 - offset)


def _rotate_values(layer: Layer, weights: dict[str, Tensor]) -> None:
    """Rotate, in place of `weights`, the last rows of the matrix of queries, keys and values, and of its bias."""
    attention = layer.attention
    assert isinstance(attention, Attention)
    head, rows = Orthogonal.of(attention.head_dim), attention.kv_heads * attention.head_dim
    for name in ("qkv", "qkv_bias"):
        if name in weights:
            others, values = weights[name][:-rows], weights[name][-rows:]
            by_head = values.reshape(attention.kv_heads, attention.head_dim, -1).transpose(1, 2)
            weights[name] = torch.cat((others, head.rotated(by_head).transpose(1, 2).reshape(values.shape)))


def _after_heads(layer: Layer, output: Tensor) -> Tensor:
    """Rotate the inputs of the output projection: each head's elements, then elements of different heads."""
    attention = layer.attention
    assert isinstance(attention, Attention)
    head = Orthogonal.of(attention.head_dim)
    by_head = head.rotated(output.unflatten(1, (attention.heads, attention.head_dim)))
    return mixed(by_head.flatten(1), attention.rotated_heads, attention.head_dim)


def _after_gates(layer: Layer, down: Tensor) -> Tensor:
    """Rotate the inputs of the down projection."""
    assert isinstance(layer.feed_forward, FeedForward)
    return mixed(down, layer.feed_forward.rotated)
