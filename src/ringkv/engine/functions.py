"""The static functions that become graphs: a layer of each kind in prefill and in a decode step, and the head.

N rows: the chunk's tokens, or the slots. All arguments are tensors; a layer's weights come last, in `names` order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat
from ringkv.cache.formats import FORMATS
from ringkv.graphs.graph import StaticFunction
from ringkv.kernels.prefill_attend import prefill_attend
from ringkv.models.decoder import Decoder
from ringkv.models.rotary import Rotation


def prefill_layer(decoder: Decoder, kind: str, names: Sequence[str]) -> StaticFunction:
    """(x, cos, sin, span, keys, values, window, *weights) -> (x,). Writes keys and values to staging.

    It keeps the last queries in `window`.
    """
    layer = decoder.layers[kind]
    scale, sliding = layer.attention.cache.scale, layer.window or 0

    def body(
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        span: Tensor,
        keys: Tensor,
        values: Tensor,
        window: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return prefill_attend(q, k, v, keys, values, window, span, scale, sliding).out

        return (decoder.layer(kind, x, Rotation(cos, sin), dict(zip(names, weights, strict=True)), attend),)

    key = f"prefill {layer} {names}"
    return StaticFunction(body, key, dynamic=dict.fromkeys((4, 5), (1,)))


def decode_layer(
    decoder: Decoder, kind: str, names: Sequence[str], format: PlaneFormat, tokens: int = 1
) -> StaticFunction:
    """(x, cos, sin, slot, entry, live, *planes, *weights) -> (x,). Writes each row's new keys and values.

    R rows of T `tokens` each: x [R * T, hidden], slot [R], entry and live [R, T], or [R] if T is 1. The tokens of a row
    attend one after the other, each as it would in a step of its own.
    """
    scale = decoder.layers[kind].attention.cache.scale
    decode_attend, entries = FORMATS[format].attend, 2 * FORMATS[format].tensors
    count = entries + FORMATS[format].centered

    def body(
        x: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, entry: Tensor, live: Tensor, *others: Tensor
    ) -> tuple[Tensor, ...]:
        planes, weights = others[:count], others[count:]

        def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return decode_attend(q, k, v, *planes, slot, entry, live, scale).out

        def several(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            each = zip(*(x.unflatten(0, (-1, tokens)).unbind(1) for x in (q, k, v)), entry.T, live.T, strict=True)
            outs = [decode_attend(q, k, v, *planes, slot, at, n, scale).out for q, k, v, at, n in each]
            return torch.stack(outs, 1).flatten(0, 1)

        attend = one if tokens == 1 else several

        return (decoder.layer(kind, x, Rotation(cos, sin), dict(zip(names, weights, strict=True)), attend),)

    key = f"decode {decoder.layers[kind]} {names} {format} {tokens}"
    return StaticFunction(
        body,
        key,
        dynamic=dict.fromkeys(range(6, 6 + entries), (0, 2)) | dict.fromkeys(range(6 + entries, 6 + count), (0,)),
    )


def head(decoder: Decoder, names: Sequence[str]) -> StaticFunction:
    """(x, *weights) -> (logits,), float32 [N, vocab]."""

    def body(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        return (decoder.logits(x, dict(zip(names, weights, strict=True))),)

    return StaticFunction(body, f"head {decoder.config.norm} {names}")
