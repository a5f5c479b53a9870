"""Blocks of layers with per-layer embeddings (`per_layer_inputs`): how these are computed and added.

N tokens, L layers, P elements of a layer's input.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.kernels.formats import rows_of
from ringkv.kernels.linear import linear
from ringkv.kernels.norm import wide_norm
from ringkv.models.blocks import Attend, NamedWeights, transform
from ringkv.models.layer import Layer, Norm
from ringkv.models.per_layer_inputs import PerLayerInputLayer, PerLayerInputs
from ringkv.models.rotary import Rotation


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
