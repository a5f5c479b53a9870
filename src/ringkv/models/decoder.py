"""Decoder: the forward pass of any family, one function per layer.

N tokens, D head_dim. A layer is a pure function: its weights are arguments, so that one static graph serves all layers
of its kind, and it accesses the cache only through `attend`.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.kernels.collective import all_gather, all_reduce
from ringkv.kernels.formats import rows_of
from ringkv.kernels.linear import linear
from ringkv.models.base import CachePlace, ModelConfig
from ringkv.models.blocks import Attend, NamedWeights, transform
from ringkv.models.gemma_blocks import (
    Embedded,
    altup_transform,
    narrowed,
    per_layer_input_transform,
    per_layer_inputs,
    widened,
)
from ringkv.models.gemma_layers import AltUpLayer, PerLayerInputLayer
from ringkv.models.layer import Layer
from ringkv.models.rotary import Rotation, frequencies, rotation


class Decoder:
    """A model's forward pass. It holds no weights except the rotary frequencies.

    groups: the layers that share a cache layout. kinds, places: the kind of each layer, and where its cache is. Layers
    of one kind whose slots have several formats count as several kinds.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.dtype = config, dtype
        self.groups: tuple[LayerGroup, ...] = config.groups
        self.kinds: tuple[str, ...] = config.variants
        self.places: tuple[CachePlace, ...] = config.places
        variants = zip(self.kinds, config.kinds, strict=True)
        self.layers = {variant: config.computed(kind) for variant, kind in dict.fromkeys(variants)}
        self._ropes = {kind: _frequencies(layer, device) for kind, layer in self.layers.items()}
        self._embed_scale = float(torch.tensor(config.embed_scale, dtype=dtype))

    @property
    def argument_width(self) -> int:
        """Elements of a token in a layer's argument: those between layers, then the per-layer input."""
        inputs = self.config.per_layer_inputs
        return self.config.stream + (inputs.width if inputs else 0)

    def embed(self, tokens: Tensor, weights: NamedWeights) -> Embedded:
        """Embed int tokens [N]."""
        rows, sizes, streams = self._rows(tokens, weights), self.config.per_layer_inputs, self.config.streams
        x = rows if self._embed_scale == 1.0 else rows * self._embed_scale
        inputs = per_layer_inputs(sizes, tokens, x, weights, self.config.norm) if sizes else None
        return Embedded(widened(streams, x, weights) if streams else x, inputs)

    def _rows(self, tokens: Tensor, weights: NamedWeights) -> Tensor:
        """Look up the embedding's rows [N, hidden]. Each rank has some of them, and zeros for the others."""
        table, span = weights["embed"], self.config.vocab_spans[self.config.rank.index]
        if self.config.exchange == "none":
            return rows_of(table, tokens)
        is_here = (tokens >= span.start) & (tokens < span.stop)
        rows = rows_of(table, (tokens - span.start).clamp(0, len(span) - 1)) * is_here[:, None]
        return all_reduce(rows, self.config.exchange).to(rows.dtype)

    def rotation(self, kind: str, positions: Tensor) -> Rotation:
        """Return the angles of int positions [N] for the layers of a kind."""
        angles, scale = self._ropes[kind]
        return rotation(positions, angles, scale, self.dtype)

    def rotations(self, positions: Tensor) -> Mapping[str, Rotation]:
        """Return the angles of int positions [N] by kind; computed once a step."""
        return {kind: self.rotation(kind, positions) for kind in self.layers}

    def layer(self, kind: str, x: Tensor, angles: Rotation, weights: NamedWeights, attend: Attend) -> Tensor:
        """Run one layer of a kind on its argument x [N, argument_width]; returns [N, stream]."""
        of = self.layers[kind]
        return _TRANSFORMS[type(of)](of, x, angles, weights, attend)

    def logits(self, x: Tensor, weights: NamedWeights) -> Tensor:
        """Apply the final norm and the vocabulary projection: [N, stream] -> float32 [N, vocab]."""
        head, norm = weights["embed" if self.config.tied_embeddings else "head"], self.config.norm
        if streams := self.config.streams:
            x = narrowed(streams, x, weights)
        part = linear(x, head, None, weights["final_norm"], norm.eps, dtype=torch.float32, offset=norm.offset)
        logits = all_gather(part, [len(span) for span in self.config.vocab_spans], self.config.exchange)
        if cap := self.config.logit_cap:
            return torch.tanh(logits / cap) * cap
        return logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale


_TRANSFORMS: Mapping[type[Layer], Callable[..., Tensor]] = {
    Layer: transform,
    PerLayerInputLayer: per_layer_input_transform,
    AltUpLayer: altup_transform,
}


def _frequencies(layer: Layer, device: torch.device) -> tuple[Tensor, float]:
    """Return a layer's rotary frequencies and scale. One that does not rotate gets one frequency, which it ignores."""
    angles, scale = frequencies(layer.rope, layer.attention.cache.key.width) if layer.rope else (torch.zeros(1), 1.0)
    return angles.to(device), scale
