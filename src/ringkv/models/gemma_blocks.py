"""Blocks of the layers that `gemma_layers` describes: per-layer inputs, and streams.

N tokens, L layers, P elements of a layer's input, S streams.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.kernels.by_head import by_head
from ringkv.kernels.formats import rows_of
from ringkv.kernels.linear import linear
from ringkv.kernels.norm import wide_norm
from ringkv.models.blocks import Attend, NamedWeights, attention, feed_forward, transform
from ringkv.models.gemma_layers import AltUpLayer, PerLayerInputLayer, PerLayerInputs, Streams
from ringkv.models.layer import Layer, Norm
from ringkv.models.rotary import Rotation

MIN_MEAN_SQUARE = 1e-5  # of a stream whose magnitude is changed


class Embedded(NamedTuple):
    """Embedded tokens: x [N, stream], and the per-layer inputs of all layers [L, N, P] if the model has them."""

    x: Tensor
    inputs: Tensor | None = None

    def layer_argument(self, layer: int, x: Tensor) -> Tensor:
        """Return the argument of a layer: x and the per-layer input after it, [N, stream + P]."""
        return x if self.inputs is None else torch.cat((x, self.inputs[layer]), -1)


def per_layer_inputs(of: PerLayerInputs, tokens: Tensor, x: Tensor, weights: NamedWeights, norm: Norm) -> Tensor:
    """Return the per-layer inputs of all layers [L, N, P]. tokens: int [N]. x [N, hidden]: their scaled embeddings."""
    in_table = tokens.where(tokens < of.vocab, 0)  # Gemma 3n's last tokens, of images and sounds, have no row
    rows = rows_of(weights["inputs_embed"], in_table).float() * of.width**0.5
    projected = linear(x, weights["inputs_projection"], dtype=torch.float32) * of.hidden**-0.5
    normed = wide_norm(projected.unflatten(-1, (of.layers, -1)), weights["inputs_norm"], norm.eps, norm.offset)
    both: Tensor = (normed + rows.view_as(normed)) * 2**-0.5
    return both.to(x.dtype).transpose(0, 1).contiguous()


def gated_input(layer: Layer, x: Tensor, inputs: Tensor, weights: NamedWeights) -> Tensor:
    """Return what a layer adds for its per-layer inputs [N, P]: float32 [N, hidden]."""
    gate = F.gelu(linear(x, weights["input_gate"], dtype=torch.float32), approximate="tanh")
    product = linear((gate * inputs.float()).to(x.dtype), weights["input_projection"], dtype=torch.float32)
    return wide_norm(product, weights["input_norm"], layer.norm.eps, layer.norm.offset)


def per_layer_input_transform(
    layer: PerLayerInputLayer, argument: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend
) -> Tensor:
    """Run a layer of Gemma 4 on [N, hidden + P]; returns [N, hidden]."""
    x, inputs = argument.split((layer.attention.hidden, layer.inputs), -1)
    x = transform(layer, x.contiguous(), angles, weights, attend)
    wide = x.float() + gated_input(layer, x, inputs, weights) if layer.inputs else x.float()
    return (wide * weights["scalar"].float()).to(x.dtype)


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
