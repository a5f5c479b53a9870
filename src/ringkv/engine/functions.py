"""The static functions that become graphs: a layer of each kind in prefill, in a decode step and in both, its
queries, and the head.

N rows of a pass, R of them slots. All arguments are tensors; a layer's weights come last, in `names` order. The bodies
are functions of the module with some arguments bound, so that another process can compile them.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ringkv.base.cache_spec import SlotKind
from ringkv.cache.formats.registry import FORMATS
from ringkv.graphs.graph import StaticFunction
from ringkv.kernels.absorb import absorb, project_values
from ringkv.kernels.expanded_attend import Expansion
from ringkv.kernels.latent_pass import Slots, mixed_attend_expanded, prefill_attend_expanded
from ringkv.kernels.latent_slots import Division, decode_attend_slots
from ringkv.kernels.partial import Partial
from ringkv.kernels.prefill_attend import prefill_attend
from ringkv.models.decoder import Decoder
from ringkv.models.latent import LatentAttention
from ringkv.models.layer import Layer
from ringkv.models.rotary import Rotation

SEGMENTS = 3  # the argument with the segments; planes and the window follow


def prefill_layer(decoder: Decoder, kind: str, names: Sequence[str]) -> StaticFunction:
    """(x, cos, sin, segments, *planes, window, *weights) -> (x,). Writes keys and values to staging.

    planes: keys and values, or latents alone. It keeps each prompt's last queries in `window`. See `prefill_attend`.
    """
    body, dynamic = partial(_prefill, decoder, kind, names), _pieces(decoder.layers[kind])
    return StaticFunction(body, f"prefill {decoder.layers[kind]} {names}", dynamic, rows=(0, 1, 2))


def _prefill(
    decoder: Decoder, kind: str, names: Sequence[str], x: Tensor, cos: Tensor, sin: Tensor, *others: Tensor
) -> tuple[Tensor, ...]:
    layer, segments = decoder.layers[kind], others[0]
    staged, weights = others[1 : 1 + _staged(layer)], others[1 + _staged(layer) :]
    attend = partial(_attend_staged, layer, segments, staged)
    return (decoder.layer(kind, x, Rotation(cos, sin), dict(zip(names, weights, strict=True)), attend),)


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
        return prefill_attend_expanded(q, k, latents, window, segments, scale, latent)
    keys, values, window = staged
    return prefill_attend(q, k, v, keys, values, window, segments, scale, layer.window or 0)


def _staged(layer: Layer) -> int:
    """Return how many tensors the staging of a layer has: its planes and the window."""
    return len(layer.attention.cache.planes) + 1


def _pieces(layer: Layer) -> dict[int, tuple[int, ...]]:
    """Return the dimensions that may differ between calls: pieces, staged entries and lanes."""
    window = SEGMENTS + _staged(layer)
    return {SEGMENTS: (0,), **dict.fromkeys(range(SEGMENTS + 1, window), (1,)), window: (0,)}


def mixed_layer(decoder: Decoder, kind: str, names: Sequence[str], format: SlotKind) -> StaticFunction:
    """(x, cos, sin, segments, *staged planes, window, slot, entry, live, *planes, *weights) -> (x,).

    Prefill and decode in one pass over the weights: each row belongs to a segment or to a slot. slot, entry, live [N];
    live is 0 for the rows of segments. Two attentions return 0 and -inf for the other's rows. Over latents there is
    one, because queries are absorbed and values projected for both together.
    """
    layer = decoder.layers[kind]
    key, numbers = f"mixed {layer} {names} {format}", SEGMENTS + 1 + _staged(layer)
    dynamic = _pieces(layer) | _slots_from(numbers + 3, layer, format)
    rows = (0, 1, 2, *range(numbers, numbers + 3))
    return StaticFunction(partial(_mixed, decoder, kind, names, format), key, dynamic, rows=rows)


def _mixed(
    decoder: Decoder,
    kind: str,
    names: Sequence[str],
    format: SlotKind,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *others: Tensor,
) -> tuple[Tensor, ...]:
    layer, segments = decoder.layers[kind], others[0]
    at = 1 + _staged(layer)
    staged, numbers, count = others[1:at], others[at : at + 3], _planes_of(layer, format)
    planes, weights = others[at + 3 : at + 3 + count], others[at + 3 + count :]

    def attend(q: Tensor, k: Tensor | None, v: Tensor | None, latent: Expansion | None = None) -> Partial:
        if latent is not None:
            return _attend_latents(layer, segments, staged, Slots(planes, format, *numbers), q, k, latent)
        slots = _attend_slots(layer, format, planes, q, k, v, *numbers)
        pieces = _attend_staged(layer, segments, staged, q, k, v)
        return Partial(pieces.out + slots.out, torch.maximum(pieces.lse, slots.lse))

    return (decoder.layer(kind, x, Rotation(cos, sin), dict(zip(names, weights, strict=True)), attend),)


def _attend_latents(
    layer: Layer,
    segments: Tensor,
    staged: tuple[Tensor, ...],
    slots: Slots,
    q: Tensor,
    k: Tensor | None,
    latent: Expansion,
) -> Partial:
    assert k is not None
    latents, window = staged
    scale, division = layer.attention.cache.scale, _division(layer)
    return mixed_attend_expanded(q, k, latents, window, segments, slots, scale, latent, division)


def _attend_slots(
    layer: Layer,
    format: SlotKind,
    planes: tuple[Tensor, ...],
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
) -> Partial:
    scale = layer.attention.cache.scale
    if layer.attention.cache.value is None:
        assert k is not None
        return decode_attend_slots(q, k, planes, format, slot, entry, live, scale, _division(layer))
    return FORMATS[format].attend(q, k, v, *planes, slot, entry, live, scale)


def _division(layer: Layer) -> Division | None:
    """Return how ranks divide the slots of a layer with latents; None if each has all of them."""
    block = layer.attention
    assert isinstance(block, LatentAttention)
    return Division(block.shares, block.rank, layer.exchange) if block.shares else None


def _planes_of(layer: Layer, format: SlotKind) -> int:
    """Return how many tensors hold a layer's slots in a format."""
    return len(layer.attention.cache.planes) * FORMATS[format].tensors + len(FORMATS[format].beside)


def _slots_from(place: int, layer: Layer, format: SlotKind) -> dict[int, tuple[int, ...]]:
    """Return the dynamic dimensions, such as slots and entries, of the slots' tensors, which start at this argument."""
    beside = FORMATS[format].beside
    planes = [(0, 2)] * (_planes_of(layer, format) - len(beside))
    return dict(enumerate((*planes, *beside), place))


def decode_layer(
    decoder: Decoder, kind: str, names: Sequence[str], format: SlotKind, tokens: int = 1
) -> StaticFunction:
    """(x, cos, sin, slot, entry, live, *planes, *weights) -> (x,). Writes each row's new keys and values.

    R rows of T `tokens` each: x [R * T, hidden], slot [R], entry and live [R, T], or [R] if T is 1. The tokens of a row
    attend one after the other, each as it would in a step of its own.
    """
    key = f"decode {decoder.layers[kind]} {names} {format} {tokens}"
    body = partial(_decode, decoder, kind, names, format, tokens)
    return StaticFunction(body, key, _slots_from(6, decoder.layers[kind], format), rows=tuple(range(6)))


def _decode(
    decoder: Decoder,
    kind: str,
    names: Sequence[str],
    format: SlotKind,
    tokens: int,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    *others: Tensor,
) -> tuple[Tensor, ...]:
    layer = decoder.layers[kind]
    count = _planes_of(layer, format)
    planes, weights = others[:count], others[count:]
    one = partial(_attend_slots, layer, format, planes)

    def attend(q: Tensor, k: Tensor | None, v: Tensor | None, latent: Expansion | None = None) -> Partial:
        q = absorb(q, k, latent)
        if tokens == 1:
            return project_values(one(q, k, v, slot, entry, live), latent)
        assert k is not None
        assert v is not None
        vectors = (x.unflatten(0, (-1, tokens)).unbind(1) for x in (q, k, v))
        numbers = (of_rows.T.contiguous() for of_rows in (entry, live))  # GPU kernels read rows' numbers as an array
        each = zip(*vectors, *numbers, strict=True)
        found = zip(*(one(q, k, v, slot, at, n) for q, k, v, at, n in each), strict=True)
        return project_values(Partial(*(torch.stack(some, 1).flatten(0, 1) for some in found)), latent)

    return (decoder.layer(kind, x, Rotation(cos, sin), dict(zip(names, weights, strict=True)), attend),)


def queries(decoder: Decoder, kind: str, names: Sequence[str]) -> StaticFunction:
    """(x, cos, sin, *weights) -> (q,). The queries of a layer for x [R, hidden], from `QUERY_WEIGHTS`."""
    body, key = partial(_queries, decoder, kind, names), f"queries {decoder.layers[kind]} {names}"
    return StaticFunction(body, key, rows=(0, 1, 2))


def _queries(
    decoder: Decoder, kind: str, names: Sequence[str], x: Tensor, cos: Tensor, sin: Tensor, *weights: Tensor
) -> tuple[Tensor, ...]:
    return (decoder.queries(kind, x, Rotation(cos, sin), dict(zip(names, weights, strict=True))),)


def head(decoder: Decoder, names: Sequence[str]) -> StaticFunction:
    """(x, *weights) -> (logits,), float32 [N, vocab]."""
    config = decoder.config
    key = f"head {config.norm} {config.logit_scale} {config.logit_cap} {names}"
    return StaticFunction(partial(_logits, decoder, names), key, rows=(0,))


def _logits(decoder: Decoder, names: Sequence[str], x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return (decoder.logits(x, dict(zip(names, weights, strict=True))),)
