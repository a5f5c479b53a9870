"""The static functions that become graphs: a layer of each kind in a pass, a layer in a decode step, and the head.

N rows of a pass, R rows of a decode step. All arguments are tensors; a layer's weights come last, in `names` order. The
bodies are functions of the module with some arguments bound, so that another process can compile them.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.graphs.graph import StaticFunction
from ringkv.kernels.absorb import absorb, project_values
from ringkv.kernels.attended import Attended
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.expanded_attend import Expansion
from ringkv.kernels.latent_attend import StagedLatents
from ringkv.kernels.latent_pass import mixed_attend_expanded, prefill_attend_expanded
from ringkv.kernels.latent_slots import UNDIVIDED, Division, decode_attend_slots
from ringkv.kernels.prefill_attend import Staged, prefill_attend
from ringkv.kernels.slots import Rows, Slots, filled, flat
from ringkv.models.blocks import Attend
from ringkv.models.decoder import Decoder
from ringkv.models.latent import LatentAttention
from ringkv.models.layer import Layer
from ringkv.models.rotary import Rotation

ANGLES = 3  # x, cos and sin are the first arguments of a layer
NUMBERS = len(Rows._fields)

Dynamic = dict[int, tuple[int, ...]]
"""The dynamic dimensions of arguments, by their places."""


class _Layers(NamedTuple):
    """The layers of a kind, with the names of their weights in the order of arguments.

    form: of the slots that are arguments, see `kernels.slots.form`, or None if there are none.
    """

    decoder: Decoder
    kind: str
    names: Sequence[str]
    form: Slots | None

    @property
    def layer(self) -> Layer:
        return self.decoder.layers[self.kind]

    @property
    def staged(self) -> int:
        """How many tensors the staging of a layer has: its planes, and the window."""
        return len(self.layer.attention.cache.planes) + 1

    @property
    def key(self) -> str:
        return f"{self.layer} {self.names} {self.form}"

    def dynamic_slots(self, place: int) -> Dynamic:
        """Return the dynamic dimensions of the slots' tensors, which start at an argument."""
        return dict(enumerate((tuple(sorted(dimensions)) for dimensions in flat(self.form)), place))

    def split(self, tensors: Sequence[Tensor]) -> tuple[Rows, Slots, Sequence[Tensor]]:
        """Split the arguments from the slots' numbers on: numbers, slots, weights."""
        assert self.form is not None
        stop = NUMBERS + len(flat(self.form))
        return Rows(*tensors[:NUMBERS]), filled(self.form, tensors[NUMBERS:stop]), tensors[stop:]

    def run(self, x: Tensor, cos: Tensor, sin: Tensor, weights: Sequence[Tensor], attend: Attend) -> tuple[Tensor, ...]:
        named = dict(zip(self.names, weights, strict=True))
        return (self.decoder.layer(self.kind, x, Rotation(cos, sin), named, attend),)


def pass_layer(decoder: Decoder, kind: str, names: Sequence[str], form: Slots | None) -> StaticFunction:
    """(x, cos, sin, segments, *planes, window, *weights) -> (x,). Writes keys and values to the staging.

    planes: keys and values, or latents alone. It keeps each prompt's last queries in `window`. See `prefill_attend`.
    If slots may ride, slot, entry, live [N] and *slots are before the weights: each row belongs to a segment or to a
    slot, and live is 0 for the rows of segments.
    """
    layers = _Layers(decoder, kind, names, form)
    window = ANGLES + layers.staged
    # The number of pieces, of staged entries and of lanes differs between engines.
    dynamic: Dynamic = {ANGLES: (0,), **dict.fromkeys(range(ANGLES + 1, window), (1,)), window: (0,)}
    rows = tuple(range(ANGLES))
    if form is not None:
        rows += tuple(range(window + 1, window + 1 + NUMBERS))
        dynamic |= layers.dynamic_slots(window + 1 + NUMBERS)
    return StaticFunction(partial(_pass, layers), f"pass {layers.key}", dynamic, rows)


def _pass(
    layers: _Layers, x: Tensor, cos: Tensor, sin: Tensor, segments: Tensor, *others: Tensor
) -> tuple[Tensor, ...]:
    layer, staged, others = layers.layer, [*others[: layers.staged], segments], others[layers.staged :]
    scale = layer.attention.cache.scale

    def attend_staged(q: Tensor, k: Tensor | None, v: Tensor | None, latent: Expansion | None = None) -> Attended:
        if latent is None:
            return prefill_attend(q, k, v, Staged(*staged), scale, layer.window or 0)
        assert k is not None
        return prefill_attend_expanded(q, k, StagedLatents(*staged), scale, latent)

    if layers.form is None:
        return layers.run(x, cos, sin, others, attend_staged)
    rows, slots, weights = layers.split(others)

    def attend(q: Tensor, k: Tensor | None, v: Tensor | None, latent: Expansion | None = None) -> Attended:
        if latent is None:  # each of two attentions returns 0 and -inf for the other's rows
            decoded, pieces = _attend_slots(layer, slots, rows, q, k, v), attend_staged(q, k, v)
            return Attended(pieces.out + decoded.out, torch.maximum(pieces.lse, decoded.lse))
        # Over latents there is one, because queries are absorbed and values projected for both together.
        assert k is not None
        latents = StagedLatents(*staged)
        return mixed_attend_expanded(q, k, latents, slots, rows, scale, latent, _division(layer))

    return layers.run(x, cos, sin, weights, attend)


def _attend_slots(layer: Layer, slots: Slots, rows: Rows, q: Tensor, k: Tensor | None, v: Tensor | None) -> Attended:
    scale = layer.attention.cache.scale
    if layer.attention.cache.value is not None:
        return decode_attend(q, k, v, slots, rows, scale)
    assert k is not None
    return decode_attend_slots(q, k, slots, rows, scale, _division(layer))


def _division(layer: Layer) -> Division:
    """Return how ranks divide the slots of a layer with latents, or that each has all of them."""
    block = layer.attention
    assert isinstance(block, LatentAttention)
    return Division(block.shares, block.rank, layer.exchange) if block.shares else UNDIVIDED


def decode_layer(decoder: Decoder, kind: str, names: Sequence[str], form: Slots, tokens: int = 1) -> StaticFunction:
    """(x, cos, sin, slot, entry, live, *slots, *weights) -> (x,). Writes each row's new keys and values.

    R rows of T `tokens` each: x [R * T, hidden], slot [R], entry and live [R, T], or [R] if T is 1. The tokens of a row
    attend one after the other, each as it would in a step of its own.
    """
    layers = _Layers(decoder, kind, names, form)
    slots = ANGLES + NUMBERS
    rows = tuple(range(slots))
    return StaticFunction(partial(_decode, layers), f"decode {layers.key} {tokens}", layers.dynamic_slots(slots), rows)


def _decode(layers: _Layers, x: Tensor, cos: Tensor, sin: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    rows, slots, weights = layers.split(others)

    def attend(q: Tensor, k: Tensor | None, v: Tensor | None, latent: Expansion | None = None) -> Attended:
        return project_values(_attend_slots(layers.layer, slots, rows, absorb(q, k, latent), k, v), latent)

    return layers.run(x, cos, sin, weights, attend)


def head(decoder: Decoder, names: Sequence[str]) -> StaticFunction:
    """(x, *weights) -> (logits,), float32 [N, vocab]."""
    config = decoder.config
    key = f"head {config.norm} {config.logit_scale} {config.logit_cap} {names}"
    return StaticFunction(partial(_logits, decoder, names), key, rows=(0,))


def _logits(decoder: Decoder, names: Sequence[str], x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return (decoder.logits(x, dict(zip(names, weights, strict=True))),)
