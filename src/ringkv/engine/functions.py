"""The static functions that become graphs: a layer of each kind in prefill, in a decode step and in both, and the head.

N rows of a pass, R of them slots. All arguments are tensors; a layer's weights come last, in `names` order. The bodies
are functions of the module with some arguments bound, so that another process can compile them.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.cache.formats import FORMATS
from ringkv.graphs.graph import StaticFunction
from ringkv.kernels.prefill_attend import prefill_attend
from ringkv.models.decoder import Decoder
from ringkv.models.rotary import Rotation

PIECES = {3: (0,), 4: (1,), 5: (1,), 6: (0,)}  # pieces, staged entries and lanes, which may differ between calls


def prefill_layer(decoder: Decoder, kind: str, names: Sequence[str]) -> StaticFunction:
    """(x, cos, sin, segments, keys, values, window, *weights) -> (x,). Writes keys and values to staging.

    It keeps each prompt's last queries in `window`. See `prefill_attend`.
    """
    body = partial(_prefill, decoder, kind, names)
    return StaticFunction(body, f"prefill {decoder.layers[kind]} {names}", PIECES, rows=(0, 1, 2))


def _prefill(
    decoder: Decoder, kind: str, names: Sequence[str], x: Tensor, cos: Tensor, sin: Tensor, *others: Tensor
) -> tuple[Tensor, ...]:
    (segments, keys, values, window), weights = others[:4], others[4:]
    scale, sliding = decoder.layers[kind].attention.cache.scale, decoder.layers[kind].window or 0

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return prefill_attend(q, k, v, keys, values, window, segments, scale, sliding).out

    return (decoder.layer(kind, x, Rotation(cos, sin), dict(zip(names, weights, strict=True)), attend),)


def mixed_layer(decoder: Decoder, kind: str, names: Sequence[str], format: PlaneFormat) -> StaticFunction:
    """(x, cos, sin, segments, keys, values, window, slot, entry, live, *planes, *weights) -> (x,).

    Prefill and decode in one pass over the weights: each row belongs to a segment or to a slot. slot, entry, live [N];
    live is 0 for the rows of segments. Both attentions return 0 for the other's rows.
    """
    key, dynamic = f"mixed {decoder.layers[kind]} {names} {format}", PIECES | _slots_from(10, format)
    return StaticFunction(partial(_mixed, decoder, kind, names, format), key, dynamic, rows=(0, 1, 2, 7, 8, 9))


def _mixed(
    decoder: Decoder,
    kind: str,
    names: Sequence[str],
    format: PlaneFormat,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *others: Tensor,
) -> tuple[Tensor, ...]:
    decode_attend, count = FORMATS[format].attend, _planes_of(format)
    (segments, keys, values, window), (slot, entry, live) = others[:4], others[4:7]
    planes, weights = others[7 : 7 + count], others[7 + count :]
    scale, sliding = decoder.layers[kind].attention.cache.scale, decoder.layers[kind].window or 0

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        staged = prefill_attend(q, k, v, keys, values, window, segments, scale, sliding).out
        return staged + decode_attend(q, k, v, *planes, slot, entry, live, scale).out

    return (decoder.layer(kind, x, Rotation(cos, sin), dict(zip(names, weights, strict=True)), attend),)


def _planes_of(format: PlaneFormat) -> int:
    """Return how many tensors hold the keys and values of slots in a format."""
    return 2 * FORMATS[format].tensors + FORMATS[format].centered


def _slots_from(place: int, format: PlaneFormat) -> dict[int, tuple[int, ...]]:
    """Return the dynamic dimensions, slots and entries, of the planes that start at this argument."""
    centers = place + 2 * FORMATS[format].tensors
    return dict.fromkeys(range(place, centers), (0, 2)) | dict.fromkeys(
        range(centers, place + _planes_of(format)), (0,)
    )


def decode_layer(
    decoder: Decoder, kind: str, names: Sequence[str], format: PlaneFormat, tokens: int = 1
) -> StaticFunction:
    """(x, cos, sin, slot, entry, live, *planes, *weights) -> (x,). Writes each row's new keys and values.

    R rows of T `tokens` each: x [R * T, hidden], slot [R], entry and live [R, T], or [R] if T is 1. The tokens of a row
    attend one after the other, each as it would in a step of its own.
    """
    key = f"decode {decoder.layers[kind]} {names} {format} {tokens}"
    body = partial(_decode, decoder, kind, names, format, tokens)
    return StaticFunction(body, key, _slots_from(6, format), rows=tuple(range(6)))


def _decode(
    decoder: Decoder,
    kind: str,
    names: Sequence[str],
    format: PlaneFormat,
    tokens: int,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot: Tensor,
    entry: Tensor,
    live: Tensor,
    *others: Tensor,
) -> tuple[Tensor, ...]:
    scale, decode_attend, count = decoder.layers[kind].attention.cache.scale, FORMATS[format].attend, _planes_of(format)
    planes, weights = others[:count], others[count:]

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return decode_attend(q, k, v, *planes, slot, entry, live, scale).out

    def several(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        each = zip(*(x.unflatten(0, (-1, tokens)).unbind(1) for x in (q, k, v)), entry.T, live.T, strict=True)
        outs = [decode_attend(q, k, v, *planes, slot, at, n, scale).out for q, k, v, at, n in each]
        return torch.stack(outs, 1).flatten(0, 1)

    attend = one if tokens == 1 else several
    return (decoder.layer(kind, x, Rotation(cos, sin), dict(zip(names, weights, strict=True)), attend),)


def head(decoder: Decoder, names: Sequence[str]) -> StaticFunction:
    """(x, *weights) -> (logits,), float32 [N, vocab]."""
    return StaticFunction(partial(_logits, decoder, names), f"head {decoder.config.norm} {names}", rows=(0,))


def _logits(decoder: Decoder, names: Sequence[str], x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return (decoder.logits(x, dict(zip(names, weights, strict=True))),)
