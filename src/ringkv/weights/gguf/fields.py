"""Settings of config.json from a GGUF's metadata: sizes of layers and heads, and sliding windows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.weights.gguf.file import GGUF

MOST_LAYERS = 2048


def head_counts(gguf: GGUF) -> tuple[int, int]:
    """Return the numbers of query heads and key-value heads in a layer."""
    heads = gguf.positive(".attention.head_count")
    return heads, gguf.positive(".attention.head_count_kv", heads)


def layer_count(gguf: GGUF) -> int:
    """Return the number of layers, without those at the end that predict further tokens."""
    blocks, predicting = gguf.positive(".block_count"), gguf.number(".nextn_predict_layers", 0)
    if blocks > MOST_LAYERS:
        raise BadWeights(
            f"{gguf.path} cannot be converted: {gguf.key('.block_count')} gives num_hidden_layers {blocks}, "
            f"and ringkv reads up to {MOST_LAYERS:,}; fetch another copy"
        )
    if predicting >= blocks:
        raise BadWeights(
            f"{gguf.path} has {gguf.key('.nextn_predict_layers')} {predicting} of {blocks} layers; fetch another copy"
        )
    return blocks - predicting


def one_size(gguf: GGUF) -> dict[str, Any]:
    """Return the elements of feed-forwards, which are the same in all layers."""
    return {"intermediate_size": gguf.positive(".feed_forward_length")}


def sharing_layers(gguf: GGUF, default: int | None = 0) -> int:
    """Return the number of layers at the end that share keys and values. Files of Gemma 3n have it as a decimal."""
    key = ".attention.shared_kv_layers"
    value = gguf.get(key, default)
    sharing = int(value) if type(value) is float and value.is_integer() else gguf.number(key, default)
    if sharing and not 0 < sharing < layer_count(gguf):
        raise BadWeights(
            f"{gguf.path} has {gguf.key(key)} {sharing} of {layer_count(gguf)} layers; fetch another copy of the model"
        )
    return sharing


def token_id(gguf: GGUF, role: str) -> Any:
    """Return a token's id; None if the file has none, or one outside the vocabulary, such as 2 ** 32 - 1."""
    value, size = gguf.get(f"tokenizer.ggml.{role}_token_id"), gguf.shape("token_embd.weight")[0]
    return None if type(value) is int and not 0 <= value < size else value


def short(value: float) -> float:
    """Return the short decimal that a float32 was written as: 9.999999747378752e-06 is 1e-05."""
    with np.errstate(over="ignore"):  # infinity is refused with the other fields of config.json
        return float(str(np.float32(value)))


def grouped(gguf: GGUF) -> dict[str, Any]:
    """Return the sizes of heads whose elements all rotate. Raises UnsupportedModel for others."""
    sizes, rotated = _sizes(gguf)
    check_width(gguf, "rope.dimension_count", rotated, sizes["head_dim"])
    return sizes


def partial(gguf: GGUF) -> dict[str, Any]:
    """Return the sizes of heads with partial rotary embedding."""
    sizes, rotated = _sizes(gguf)
    return {**sizes, "partial_rotary_factor": rotated / sizes["head_dim"]}


def _sizes(gguf: GGUF) -> tuple[dict[str, Any], int]:
    """Return the settings and the number of rotary elements of a head."""
    heads, kv_heads = head_counts(gguf)
    head_dim = gguf.positive(".attention.key_length", gguf.positive(".embedding_length") // heads)
    value = gguf.positive(".attention.value_length", head_dim)
    check_width(gguf, "attention.value_length", value, head_dim)
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    return sizes, gguf.positive(".rope.dimension_count", head_dim)


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


def window_settings(gguf: GGUF, windows: Windows) -> dict[str, Any]:
    """Return sliding_window, layer_types and what goes with them. Raises UnsupportedModel or BadWeights."""
    key = ".attention.sliding_window"
    if gguf.get(key, 0) == 0:
        return {"sliding_window": None}
    window = gguf.positive(key)
    if window >= _longest(gguf) and not windows.local:
        return {"sliding_window": None}
    types = ["sliding_attention" if local else "full_attention" for local in _local(gguf, windows, window)]
    return {"sliding_window": window, "layer_types": types, **windows.settings}


def _longest(gguf: GGUF) -> float:
    """Return an upper bound of the context, which YaRN may make longer than the file says."""
    is_yarn = gguf.text(".rope.scaling.type", "none") == "yarn"
    return gguf.positive(".context_length") * max(1.0, gguf.decimal(".rope.scaling.factor", 1.0) if is_yarn else 1.0)


def _local(gguf: GGUF, windows: Windows, window: int) -> list[bool]:
    """Return for each layer whether it has a window."""
    key, layers = ".attention.sliding_window_pattern", layer_count(gguf)
    given = gguf.get(key, windows.period)
    if given is None:
        raise UnsupportedModel(
            f"{gguf.path} has sliding_window {window} and does not name its layers; fetch this model as safetensors"
        )
    if type(given) is int and given >= 0:
        return [given == 0 or (layer + 1) % given != 0 for layer in range(layers)]
    if not isinstance(given, list) or len(given) < layers or not all(value in (0, 1) for value in given):
        raise gguf.wrong(key, f"a period or true and false for its {layers} layers")
    return [bool(value) for value in given[:layers]]
