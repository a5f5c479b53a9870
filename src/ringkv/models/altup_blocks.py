"""Blocks of layers with several streams (`altup`). N tokens, S streams."""

import torch
from torch import Tensor

from ringkv.kernels.by_head import by_head
from ringkv.kernels.linear import linear
from ringkv.kernels.norm import wide_norm
from ringkv.models.altup import AltUpLayer, Streams
from ringkv.models.blocks import Attend, NamedWeights, attention, feed_forward
from ringkv.models.per_layer_input_blocks import gated_input
from ringkv.models.rotary import Rotation

MIN_MEAN_SQUARE = 1e-5  # of a stream whose magnitude is changed


def widened(of: Streams, x: Tensor, weights: NamedWeights) -> Tensor:
    """Return the streams [N, S * hidden] of embeddings x [N, hidden]: x, then projections of its magnitude."""
    others = linear(x, weights["widen"], dtype=torch.float32).unflatten(-1, (-1, of.hidden))
    return torch.cat((x, _sized(others, x[:, None].float()).flatten(1).to(x.dtype)), -1)


def narrowed(of: Streams, x: Tensor, weights: NamedWeights) -> Tensor:
    """Return the mean [N, hidden] of streams [N, S * hidden]. All but the first are projected to its magnitude."""
    first, others = x.unflatten(-1, (of.count, -1)).split((1, of.count - 1), 1)
    products = by_head(others.contiguous(), weights["narrow"]).float()
    return torch.cat((first.float(), _sized(products, first.float())), 1).mean(1).to(x.dtype)


def _sized(x: Tensor, like: Tensor) -> Tensor:
    """Return float32 x [N, S, hidden] with the magnitude of `like` [N, 1, hidden]."""
    square, wanted = (stream.pow(2).mean(-1, keepdim=True) for stream in (x, like))
    return x * wanted.sqrt() / square.clamp(min=MIN_MEAN_SQUARE).sqrt()


def altup_transform(
    layer: AltUpLayer, argument: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend
) -> Tensor:
    """Run a layer of Gemma 3n on [N, S * hidden + P]; returns [N, S * hidden]."""
    hidden, active = layer.attention.hidden, layer.active
    x, inputs = argument.split((layer.streams * hidden, layer.inputs), -1)
    streams = x.unflatten(-1, (layer.streams, hidden))
    predicted = _predicted(layer, streams, weights)
    x = _computed(layer, predicted[:, active].to(x.dtype), angles, weights, attend)
    factors = _modalities(layer, x, weights) @ weights["correct"].T + 1
    corrected = predicted + (x.float() - predicted[:, active])[:, None] * factors[..., None]
    scaled = corrected[:, active] * (weights["active_scale"].float() if layer.is_scaled else 1.0)
    others = corrected[:, 1:] + gated_input(layer, scaled.to(x.dtype), inputs, weights)[:, None]
    return torch.cat((corrected[:, :1], others), 1).flatten(1).to(x.dtype)


def _predicted(layer: AltUpLayer, streams: Tensor, weights: NamedWeights) -> Tensor:
    """Return float32 predictions of all streams [N, S, hidden], each a sum of all streams."""
    mixed = _modalities(layer, streams[:, layer.active].contiguous(), weights) @ weights["predict"].T
    predicted: Tensor = mixed.unflatten(-1, (layer.streams, -1)) @ streams.float()
    return predicted + streams.float()


def _modalities(layer: AltUpLayer, x: Tensor, weights: NamedWeights) -> Tensor:
    """Return the modality router's values: float32 [N, S]. Factors between streams are linear in them."""
    norm = layer.norm
    routed = linear(x, weights["router"], None, weights["router_norm"], norm.eps, dtype=torch.float32)
    return torch.tanh(routed / x.shape[-1])


def _computed(layer: AltUpLayer, x: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend) -> Tensor:
    """Run the blocks on one stream [N, hidden]: attention beside a low-rank branch, then feed-forward."""
    norm = layer.norm
    attended = wide_norm(attention(layer, x, angles, weights, attend), weights["attention_out_norm"], norm.eps)
    both = (x.float() + attended + _branch(layer, x, weights)) * 2**-0.5
    x = both.to(x.dtype)
    return (both + wide_norm(feed_forward(layer, x, weights), weights["feed_forward_out_norm"], norm.eps)).to(x.dtype)


def _branch(layer: AltUpLayer, x: Tensor, weights: NamedWeights) -> Tensor:
    """Return float32 normalised x plus its low-rank projection."""
    before, eps = weights["attention_norm"], layer.norm.eps
    product = linear(linear(x, weights["branch_in"], None, before, eps), weights["branch_out"], dtype=torch.float32)
    return wide_norm(x, before, eps) + wide_norm(product, weights["branch_norm"], eps)
