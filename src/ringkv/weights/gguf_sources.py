"""gguf_sources: the tensors of the Hugging Face layout that a GGUF holds, each with its source."""

import re
from collections.abc import Iterator

from ringkv.base.errors import UnsupportedModel
from ringkv.base.shown import shown_names
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_architecture import Architecture
from ringkv.weights.gguf_architectures import architecture_of, kind_of
from ringkv.weights.gguf_fields import head_counts, layer_count, sharing_layers
from ringkv.weights.gguf_rope import ROPE_TENSORS
from ringkv.weights.gguf_source import Rows, Source

LAYER = re.compile(r"blk\.(\d{1,6})\.")
KEYS_AND_VALUES = re.compile(r"\.attn_[kv](_norm)?\.")
PAIRED = ("attn_q", "attn_k")
"""Projections whose rows are those of heads that rotate."""


def sources(gguf: GGUF) -> dict[str, Source]:
    """Return the source of each tensor. Raises UnsupportedModel for a tensor of no supported architecture."""
    architecture, names = architecture_of(gguf), _used(gguf)
    found = {ours: source for name in names for ours, source in _translated(gguf, name, architecture)}
    for at in sorted({_layer(name) for name in names} - {-1}):
        made = architecture.merged(gguf, f"blk.{at}.")
        found |= {f"model.layers.{at}.{ours}": source for ours, source in made}
    return found


def _used(gguf: GGUF) -> list[str]:
    """Return the tensors that are not replaced by parameters.

    Those of layers that predict further tokens are left out, and keys and values of layers that share a cache.
    """
    kind = kind_of(gguf)
    used = [name for name in gguf.names if name not in ROPE_TENSORS]
    if gguf.number(f"{kind}.nextn_predict_layers", 0):
        layers = layer_count(gguf, kind)
        used = [name for name in used if _layer(name) < layers]
    if sharing := sharing_layers(gguf, kind):
        first = layer_count(gguf, kind) - sharing
        used = [name for name in used if _layer(name) < first or not KEYS_AND_VALUES.search(name)]
    return used


def _layer(name: str) -> int:
    """Return the number of a tensor's layer; -1 if it is outside of layers."""
    return int(layer[1]) if (layer := LAYER.match(name)) else -1


def _translated(gguf: GGUF, name: str, architecture: Architecture) -> Iterator[tuple[str, Source]]:
    """Yield what a tensor is called in Hugging Face layout: one name, or one for each expert of a stack.

    `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`.
    """
    called, suffix, prefix = _split(name)
    parts = (architecture.modules if prefix else architecture.shared).get(called)
    if parts is None:
        raise UnsupportedModel(
            f"{gguf.path} has a tensor {shown_names([name])}, which belongs to no architecture that ringkv runs"
        )
    heads = _paired_heads(gguf, called) if architecture.paired else None
    shift = architecture.norm_shift if called.endswith("_norm") else 0.0
    for part in parts(suffix, gguf.shape(name)):
        yield f"{prefix}{part.name}", Rows(name, part.shape, part.expert, part.dtype, heads, shift)


def _split(name: str) -> tuple[str, str, str]:
    """Return a tensor's name in its layer, its suffix, and the layer in Hugging Face layout: "" outside of layers."""
    if layer := re.fullmatch(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias|scale)", name):
        called = f"{layer[2]}.scale" if layer[3] == "scale" else layer[2]
        return called, layer[3], f"model.layers.{layer[1]}."
    part, _, suffix = name.rpartition(".")
    return (part, suffix, "") if suffix == "weight" else ("", "", "")


def _paired_heads(gguf: GGUF, called: str) -> int | None:
    """Return how many heads a projection's rows belong to, if they rotate."""
    return head_counts(gguf, kind_of(gguf))[PAIRED.index(called)] if called in PAIRED else None
