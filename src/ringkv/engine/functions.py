"""The static functions that become graphs: a layer of each kind in prefill, in a decode step and in both, and the head.

N rows of a pass, R of them slots. All arguments are tensors; a layer's weights come last, in `names` order. The bodies
are functions of the module with some arguments bound, so that another process can compile them.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.graphs.graph import StaticFunction
from ringkv.kernels.absorb import absorb, project_values
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.expanded_attend import Expansion
from ringkv.kernels.latent_attend import StagedLatents
from ringkv.kernels.latent_pass import mixed_attend_expanded, prefill_attend_expanded
from ringkv.kernels.latent_slots import Division, decode_attend_slots
from ringkv.kernels.partial import Partial
from ringkv.kernels.prefill_attend import Staged, prefill_attend
from ringkv.kernels.slots import Rows, Slots, filled, flat
from ringkv.models.blocks import Attend
from ringkv.models.decoder import Decoder
from ringkv.models.latent import LatentAttention
from ringkv.models.layer import Layer
from ringkv.models.rotary import Rotation

SEGMENTS = 3  # the argument with the segments; planes and the window follow


def prefill_layer(decoder: Decoder, kind: str, names: Sequence[str]) -> StaticFunction:
    """(x, cos, sin, segments, *planes, window, *weights) -> (x,). Writes keys and values to staging.

    planes: keys and values, or latents alone. It keeps each prompt's last queries in `window`. See `prefill_attend`.
    """
    body, dynamic = partial(_prefill, _Layers(decoder, kind, names)), _pieces(decoder.layers[kind])
    return StaticFunction(body, f"prefill {decoder.layers[kind]} {names}", dynamic, rows=(0, 1, 2))


class _Layers(NamedTuple):
    """The layers of a kind, with the names of their weights in the order of arguments."""

    decoder: Decoder
    kind: str
    names: Sequence[str]

    @property
    def layer(self) -> Layer:
        return self.decoder.layers[self.kind]

    def run(self, x: Tensor, angles: Rotation, weights: Sequence[Tensor], attend: Attend) -> tuple[Tensor, ...]:
        named = dict(zip(self.names, weights, strict=True))
        return (self.decoder.layer(self.kind, x, angles, named, attend),)


def _prefill(layers: _Layers, x: Tensor, cos: Tensor, sin: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    layer, segments = layers.layer, others[0]
    staged, weights = others[1 : 1 + _staged(layer)], others[1 + _staged(layer) :]
    return layers.run(x, Rotation(cos, sin), weights, partial(_attend_staged, layer, segments, staged))


def _attend_staged(
    layer: Layer,
    segments: Tensor,
    staged: tuple[Tensor, ...],
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    latent: Expansion | None = None,
) -> Partial:
    scale = layer.attention.cache.scale
    if layer.attention.cache.value is None:
        latents, window = staged
        assert k is not None
        assert latent is not None
        return prefill_attend_expanded(q, k, StagedLatents(latents, window, segments), scale, latent)
    keys, values, window = staged
    return prefill_attend(q, k, v, Staged(keys, values, window, segments), scale, layer.window or 0)


def _staged(layer: Layer) -> int:
    """Return how many tensors the staging of a layer has: its planes and the window."""
    return len(layer.attention.cache.planes) + 1


def _pieces(layer: Layer) -> dict[int, tuple[int, ...]]:
    """Return the dimensions that may differ between calls: pieces, staged entries and lanes."""
    window = SEGMENTS + _staged(layer)
    return {SEGMENTS: (0,), **dict.fromkeys(range(SEGMENTS + 1, window), (1,)), window: (0,)}


def mixed_layer(decoder: Decoder, kind: str, names: Sequence[str], form: Slots) -> StaticFunction:
    """(x, cos, sin, segments, *staged planes, window, slot, entry, live, *slots, *weights) -> (x,).

    Prefill and decode in one pass over the weights: each row belongs to a segment or to a slot. slot, entry, live [N];
    live is 0 for the rows of segments. Two attentions return 0 and -inf for the other's rows. Over latents there is
    one, because queries are absorbed and values projected for both together. form: see `kernels.slots.form`.
    """
    layer = decoder.layers[kind]
    key, numbers = f"mixed {layer} {names} {form}", SEGMENTS + 1 + _staged(layer)
    dynamic = _pieces(layer) | _dynamic_from(numbers + 3, form)
    rows = (0, 1, 2, *range(numbers, numbers + 3))
    return StaticFunction(partial(_mixed, _Layers(decoder, kind, names), form), key, dynamic, rows=rows)


def _mixed(layers: _Layers, form: Slots, x: Tensor, cos: Tensor, sin: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    layer, segments = layers.layer, others[0]
    first = 1 + _staged(layer)
    staged, rows, count = others[1:first], Rows(*others[first : first + 3]), len(flat(form))
    slots, weights = filled(form, others[first + 3 : first + 3 + count]), others[first + 3 + count :]

    def attend(q: Tensor, k: Tensor | None, v: Tensor | None, latent: Expansion | None = None) -> Partial:
        if latent is not None:
            return _attend_latents(layer, segments, staged, slots, rows, q, k, latent)
        decoded = _attend_slots(layer, slots, rows, q, k, v)
        pieces = _attend_staged(layer, segments, staged, q, k, v)
        return Partial(pieces.out + decoded.out, torch.maximum(pieces.lse, decoded.lse))

    return layers.run(x, Rotation(cos, sin), weights, attend)


def _attend_latents(
    layer: Layer,
    segments: Tensor,
    staged: tuple[Tensor, ...],
    slots: Slots,
    rows: Rows,
    q: Tensor,
    k: Tensor | None,
    latent: Expansion,
) -> Partial:
    assert k is not None
    latents, window = staged
    scale, division = layer.attention.cache.scale, _division(layer)
    here = StagedLatents(latents, window, segments)
    return mixed_attend_expanded(q, k, here, slots, rows, scale, latent, division)


def _attend_slots(layer: Layer, slots: Slots, rows: Rows, q: Tensor, k: Tensor | None, v: Tensor | None) -> Partial:
    scale = layer.attention.cache.scale
    if layer.attention.cache.value is None:
        assert k is not None
        return decode_attend_slots(q, k, slots, rows, scale, _division(layer))
    return decode_attend(q, k, v, slots, rows, scale)


def _division(layer: Layer) -> Division | None:
    """Return how ranks divide the slots of a layer with latents; None if each has all of them."""
    block = layer.attention
    assert isinstance(block, LatentAttention)
    return Division(block.shares, block.rank, layer.exchange) if block.shares else None


def _dynamic_from(place: int, form: Slots) -> dict[int, tuple[int, ...]]:
    """Return the dynamic dimensions of the slots' tensors, which start at this argument."""
    return dict(enumerate((tuple(sorted(dimensions)) for dimensions in flat(form)), place))


def decode_layer(decoder: Decoder, kind: str, names: Sequence[str], form: Slots, tokens: int = 1) -> StaticFunction:
    """(x, cos, sin, slot, entry, live, *slots, *weights) -> (x,). Writes each row's new keys and values.

    R rows of T `tokens` each: x [R * T, hidden], slot [R], entry and live [R, T], or [R] if T is 1. The tokens of a row
    attend one after the other, each as it would in a step of its own.
    """
    key = f"decode {decoder.layers[kind]} {names} {form} {tokens}"
    body = partial(_decode, _Layers(decoder, kind, names), form, tokens)
    return StaticFunction(body, key, _dynamic_from(6, form), rows=tuple(range(6)))


def _decode(
    layers: _Layers, form: Slots, tokens: int, x: Tensor, cos: Tensor, sin: Tensor, *others: Tensor
) -> tuple[Tensor, ...]:
    rows, first = Rows(*others[:3]), 3 + len(flat(form))
    slots, weights = filled(form, others[3:first]), others[first:]
    attend_slots = partial(_attend_slots, layers.layer, slots)

    def attend(q: Tensor, k: Tensor | None, v: Tensor | None, latent: Expansion | None = None) -> Partial:
        q = absorb(q, k, latent)
        if tokens == 1:
            return project_values(attend_slots(rows, q, k, v), latent)
        assert k is not None
        vectors = zip(*(_by_token(vector, tokens) for vector in (q, k, v)), strict=True)
        # GPU kernels read rows' numbers as an array.
        numbers = zip(rows.entry.T.contiguous(), rows.live.T.contiguous(), strict=True)
        steps = (Rows(rows.slot, entry, live) for entry, live in numbers)
        attended = zip(*(attend_slots(step, *token) for step, token in zip(steps, vectors, strict=True)), strict=True)
        return project_values(Partial(*(torch.stack(part, 1).flatten(0, 1) for part in attended)), latent)

    return layers.run(x, Rotation(cos, sin), weights, attend)


def _by_token(vectors: Tensor | None, tokens: int) -> Sequence[Tensor | None]:
    """Divide vectors [R * T, ...] by their place among the T tokens of a row."""
    return [None] * tokens if vectors is None else vectors.unflatten(0, (-1, tokens)).unbind(1)


def head(decoder: Decoder, names: Sequence[str]) -> StaticFunction:
    """(x, *weights) -> (logits,), float32 [N, vocab]."""
    config = decoder.config
    key = f"head {config.norm} {config.logit_scale} {config.logit_cap} {names}"
    return StaticFunction(partial(_logits, decoder, names), key, rows=(0,))


def _logits(decoder: Decoder, names: Sequence[str], x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return (decoder.logits(x, dict(zip(names, weights, strict=True))),)
