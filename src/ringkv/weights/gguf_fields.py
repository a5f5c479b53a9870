"""gguf_fields: single values of a GGUF's metadata, with type and bounds checked."""

from typing import Any

import numpy as np

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf import GGUF

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
