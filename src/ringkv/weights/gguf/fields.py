"""Values of a GGUF's metadata, with type and bounds checked: single ones, sizes of heads, and sliding windows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf.file import GGUF

MOST_LAYERS = 2048


def positive(gguf: GGUF, key: str, default: int | None = None) -> int:
    """Return a whole number above 0; a list that has one for each layer must repeat it.

    Raises BadWeights for anything else, UnsupportedModel if layers differ.
    """
    value = gguf.get(key, default)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    if isinstance(value, list):
        raise UnsupportedModel(f"{gguf.path} has a different {key} in each layer; ringkv needs one for all")
    if value is None:
        raise BadWeights(f"{gguf.path} has no {key}; fetch another copy of the model")
    if type(value) is not int or value < 1:
        raise BadWeights(
            f"{gguf.path} has {key} {shown(value)}, a positive number is needed; fetch another copy of the model"
        )
    return value


def shape_of(gguf: GGUF, name: str) -> tuple[int, ...]:
    """Return a tensor's shape. Raises BadWeights if the file lacks the tensor."""
    if not gguf.has(name):
        raise BadWeights(f"{gguf.path} has no tensor {name}; fetch another copy of the model")
    return gguf.shape(name)


def head_counts(gguf: GGUF, kind: str) -> tuple[int, int]:
    """Return the numbers of query heads and key-value heads in a layer."""
    heads = positive(gguf, f"{kind}.attention.head_count")
    return heads, positive(gguf, f"{kind}.attention.head_count_kv", heads)


def layer_count(gguf: GGUF, kind: str) -> int:
    """Return the number of layers, without those at the end that predict further tokens."""
    blocks, predicting = positive(gguf, f"{kind}.block_count"), gguf.number(f"{kind}.nextn_predict_layers", 0)
    if blocks > MOST_LAYERS:
        raise BadWeights(
            f"{gguf.path} cannot be converted: {kind}.block_count gives num_hidden_layers {blocks}, "
            f"and ringkv reads up to {MOST_LAYERS:,}; fetch another copy"
        )
    if predicting >= blocks:
        raise BadWeights(
            f"{gguf.path} has {kind}.nextn_predict_layers {predicting} of {blocks} layers; fetch another copy"
        )
    return blocks - predicting


def one_size(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the elements of feed-forwards, which are the same in all layers."""
    return {"intermediate_size": positive(gguf, f"{kind}.feed_forward_length")}


def sharing_layers(gguf: GGUF, kind: str, default: int | None = 0) -> int:
    """Return the number of layers at the end that share keys and values. Files of Gemma 3n have it as a decimal."""
    key = f"{kind}.attention.shared_kv_layers"
    value = gguf.get(key, default)
    sharing = int(value) if type(value) is float and value.is_integer() else gguf.number(key, default)
    if sharing and not 0 < sharing < layer_count(gguf, kind):
        raise BadWeights(
            f"{gguf.path} has {key} {sharing} of {layer_count(gguf, kind)} layers; fetch another copy of the model"
        )
    return sharing


def token_id(gguf: GGUF, role: str) -> Any:
    """Return a token's id; None if the file has none, or one outside the vocabulary, such as 2 ** 32 - 1."""
    value, size = gguf.get(f"tokenizer.ggml.{role}_token_id"), shape_of(gguf, "token_embd.weight")[0]
    return None if type(value) is int and not 0 <= value < size else value


def short(value: float) -> float:
    """Return the short decimal that a float32 was written as: 9.999999747378752e-06 is 1e-05."""
    with np.errstate(over="ignore"):  # infinity is refused with the other fields of config.json
        return float(str(np.float32(value)))


def grouped(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the sizes of heads whose elements all rotate. Raises UnsupportedModel for others."""
    sizes, rotated = _sizes(gguf, kind)
    check_width(gguf, "rope.dimension_count", rotated, sizes["head_dim"])
    return sizes


def partial(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the sizes of heads with partial rotary embedding."""
    sizes, rotated = _sizes(gguf, kind)
    return {**sizes, "partial_rotary_factor": rotated / sizes["head_dim"]}


def _sizes(gguf: GGUF, kind: str) -> tuple[dict[str, Any], int]:
    """Return the settings and the number of rotary elements of a head."""
    heads, kv_heads = head_counts(gguf, kind)
    head_dim = positive(gguf, f"{kind}.attention.key_length", positive(gguf, f"{kind}.embedding_length") // heads)
    value = positive(gguf, f"{kind}.attention.value_length", head_dim)
    check_width(gguf, "attention.value_length", value, head_dim)
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    return sizes, positive(gguf, f"{kind}.rope.dimension_count", head_dim)


def check_width(gguf: GGUF, key: str, width: int, head_dim: int) -> None:
    """Raise UnsupportedModel unless a width, which `key` has, is that of a head."""
    if width != head_dim:
        raise UnsupportedModel(
            f"{gguf.path} has {key} {width} and head_dim {head_dim}; ringkv needs values as wide as keys, "
            "and rotary embedding over the whole head"
        )


@dataclass(frozen=True)
class Windows:
    """The sliding window of an architecture: its layers and its settings.

    period: the last of each so many layers attends to all tokens; 0: none does; None: the file has to name the layers.
    settings: what config.json has besides, if a layer has a window. local: layers with one differ otherwise, too, so
    they are named even if the window is as long as the context.
    """

    period: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    local: bool = False


def window_settings(gguf: GGUF, kind: str, windows: Windows) -> dict[str, Any]:
    """Return sliding_window, layer_types and what goes with them. Raises UnsupportedModel or BadWeights."""
    key = f"{kind}.attention.sliding_window"
    if gguf.get(key, 0) == 0:
        return {"sliding_window": None}
    window = positive(gguf, key)
    if window >= positive(gguf, f"{kind}.context_length") and not windows.local:
        return {"sliding_window": None}
    types = ["sliding_attention" if local else "full_attention" for local in _local(gguf, kind, windows, window)]
    return {"sliding_window": window, "layer_types": types, **windows.settings}


def _local(gguf: GGUF, kind: str, windows: Windows, window: int) -> list[bool]:
    """Return for each layer whether it has a window."""
    key, layers = f"{kind}.attention.sliding_window_pattern", layer_count(gguf, kind)
    given = gguf.get(key, windows.period)
    if given is None:
        raise UnsupportedModel(
            f"{gguf.path} has sliding_window {window} and does not name its layers; fetch this model as safetensors"
        )
    if type(given) is int and given >= 0:
        return [given == 0 or (layer + 1) % given != 0 for layer in range(layers)]
    if not isinstance(given, list) or len(given) < layers or not all(one in (0, 1) for one in given):
        raise BadWeights(
            f"{gguf.path} has {key} {shown(given)}, a period or true and false for its {layers} layers is needed; "
            "fetch another copy of the model"
        )
    return [bool(one) for one in given[:layers]]
