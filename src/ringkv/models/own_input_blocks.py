"""Blocks of layers that have embeddings of their own (`own_inputs`): how these are computed, and taken in.

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
from ringkv.models.own_inputs import OwnInputLayer, OwnInputs
from ringkv.models.rotary import Rotation


class Embedded(NamedTuple):
    """What tokens enter the layers with: x [N, stream], and the own inputs of all layers [L, N, P] if there are any."""

    x: Tensor
    inputs: Tensor | None = None

    def entering(self, layer: int, x: Tensor) -> Tensor:
        """Return the argument of a layer: x, and beside it the layer's own input, [N, stream + P]."""
        return x if self.inputs is None else torch.cat((x, self.inputs[layer]), -1)


def own_inputs(of: OwnInputs, tokens: Tensor, x: Tensor, weights: NamedWeights, norm: Norm) -> Tensor:
    """Return the own inputs of all layers [L, N, P]. tokens int [N]; x [N, hidden] are their embeddings, scaled."""
    known = tokens.where(tokens < of.vocab, 0)  # Gemma 3n's last tokens, of images and sounds, have no row
    rows = rows_of(weights["inputs_embed"], known).float() * of.width**0.5
    projected = linear(x, weights["inputs_projection"], dtype=torch.float32) * of.hidden**-0.5
    normed = wide_norm(projected.unflatten(-1, (of.layers, -1)), weights["inputs_norm"], norm.eps, norm.offset)
    both: Tensor = (normed + rows.view_as(normed)) * 2**-0.5
    return both.to(x.dtype).transpose(0, 1).contiguous()


def taken_in(layer: Layer, x: Tensor, given: Tensor, weights: NamedWeights) -> Tensor:
    """Return what a layer adds for its own input, given [N, P]: float32 [N, hidden]."""
    gate = F.gelu(linear(x, weights["input_gate"], dtype=torch.float32), approximate="tanh")
    product = linear((gate * given.float()).to(x.dtype), weights["input_projection"], dtype=torch.float32)
    return wide_norm(product, weights["input_norm"], layer.norm.eps, layer.norm.offset)


def own_input_transform(
    layer: OwnInputLayer, entering: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend
) -> Tensor:
    """Run a layer of Gemma 4 on [N, hidden + P]; returns [N, hidden]."""
    x, given = entering.split((layer.attention.hidden, layer.inputs), -1)
    x = transform(layer, x.contiguous(), angles, weights, attend)
    wide = x.float() + taken_in(layer, x, given, weights) if layer.inputs else x.float()
    return (wide * weights["scalar"].float()).to(x.dtype)
