"""The static functions that become graphs: one decoder layer in a prefill chunk, one in a decode step, the head.

N rows: the chunk's tokens, or the slots. All arguments are tensors; a layer's weights come last, in `names` order.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ringkv.graphs.graph import Function
from ringkv.kernels.decode_attend import decode_attend
from ringkv.kernels.prefill_attend import prefill_attend
from ringkv.layers.rotary import Rotation
from ringkv.models.decoder import Decoder

Lengths = Mapping[int, tuple[int, ...]]  # by argument: dimensions as long as a cache or the staging happens to be


def prefill_layer(decoder: Decoder, names: Sequence[str]) -> Function:
    """(x, cos, sin, span, keys, values, window, *weights) -> (x,); stages keys and values, keeps the last queries."""

    def function(x: Tensor, cos: Tensor, sin: Tensor, span: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        keys, values, window, *weights = rest

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return prefill_attend(q, k, v, keys, values, window, span)

        return (decoder.layer(x, Rotation(cos, sin), dict(zip(names, weights, strict=True)), attend),)

    return _keyed(function, "prefill_layer", decoder, names, lengths={4: (1,), 5: (1,)})


def decode_layer(decoder: Decoder, names: Sequence[str]) -> Function:
    """(x, cos, sin, slot, entry, live, keys, values, *weights) -> (x,); writes each row's new key and value."""
    scale = decoder.groups[0].spec.scale

    def function(x: Tensor, cos: Tensor, sin: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        slot, entry, live, keys, values, *weights = rest

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return decode_attend(q, k, v, keys, values, slot, entry, live, scale).out

        return (decoder.layer(x, Rotation(cos, sin), dict(zip(names, weights, strict=True)), attend),)

    return _keyed(function, "decode_layer", decoder, names, lengths={6: (0, 2), 7: (0, 2)})


def head(decoder: Decoder, names: Sequence[str]) -> Function:
    """(x, *weights) -> (logits,), float32 [N, vocab]."""

    def function(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        return (decoder.logits(x, dict(zip(names, weights, strict=True))),)

    return _keyed(function, "head", decoder, names)


def _keyed(
    function: Function, kind: str, decoder: Decoder, names: Sequence[str], lengths: Lengths | None = None
) -> Function:
    """Name what the closure captured, for the cache of compiled graphs: shapes alone do not show an epsilon."""
    function.key = f"{kind} {decoder.config} {names}"  # type: ignore[attr-defined]
    function.lengths = lengths or {}  # type: ignore[attr-defined]
    return function
