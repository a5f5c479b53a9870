"""gguf_gemma4: settings of Gemma 4, whose global and local layers differ in heads and rotary embedding."""

from typing import Any, NamedTuple

import numpy as np

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_fields import layer_count, positive, shape_of, sharing_layers, short
from ringkv.weights.gguf_gemma3 import LOCAL_BASE
from ringkv.weights.gguf_gemma3n import inputs
from ringkv.weights.gguf_heads import check_width
from ringkv.weights.gguf_rope import ROPE_DIVISORS, theta
from ringkv.weights.gguf_windows import Windows, window_settings

WINDOWS = Windows(local=True)
STILL = 1e20  # divisors from here on stop a pair's rotation; the file has 1e30


def gemma4(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return per-layer embeddings, shared layers and the rotary embeddings. Raises BadWeights or UnsupportedModel."""
    return {
        **inputs(gguf, kind),
        "num_kv_shared_layers": sharing_layers(gguf, kind),
        "final_logit_softcapping": short(gguf.decimal(f"{kind}.final_logit_softcapping", 0.0)) or None,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": _rotating_share(gguf, kind),
                "rope_theta": theta(gguf, kind),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": short(gguf.decimal(f"{kind}.rope.freq_base_swa", LOCAL_BASE)),
            },
        },
    }


def gemma4_experts(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the settings of `gemma4` and of a mixture of experts."""
    return {**gemma4(gguf, kind), "enable_moe_block": True}


def unscaled(gguf: GGUF, kind: str, head_dim: int) -> None:
    """Return no scaling: `gemma4` returns the rotary embedding."""


def heads(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the sizes of heads in local layers, and of those in global layers, which may lack values of their own."""
    prefix = f"{kind}.attention"
    for suffix in ("", "_swa"):
        key, value = (positive(gguf, f"{prefix}.{name}_length{suffix}") for name in ("key", "value"))
        check_width(gguf, f"attention.value_length{suffix}", value, key)
    local, wide = positive(gguf, f"{prefix}.key_length_swa"), positive(gguf, f"{prefix}.key_length")
    for suffix, width in (("", wide), ("_swa", local)):
        rotated = positive(gguf, f"{kind}.rope.dimension_count{suffix}", width)
        check_width(gguf, f"rope.dimension_count{suffix}", rotated, width)
    query_heads, types = positive(gguf, f"{prefix}.head_count"), _types(gguf, kind)
    kv_heads = _by_type(gguf, f"{prefix}.head_count_kv", types, query_heads)
    return {
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads.local,
        "num_global_key_value_heads": kv_heads.wide,
        "head_dim": local,
        "global_head_dim": wide,
        "attention_k_eq_v": any(_lacks_values(gguf, layer) for layer, is_local in enumerate(types) if not is_local),
    }


def feed_forward(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the elements of feed-forwards, which may be twice as many in layers that share keys and values."""
    key, layers = f"{kind}.feed_forward_length", layer_count(gguf, kind)
    given, first = gguf.get(key), layers - sharing_layers(gguf, kind)
    if not isinstance(given, list) or len(set(given)) < 2:
        return {"intermediate_size": positive(gguf, key)}
    size = given[0]
    if given != [size] * first + [2 * size] * (layers - first):
        raise UnsupportedModel(
            f"{gguf.path} has {key} {shown(given)}; ringkv supports one number, and twice that in layers that share "
            "keys and values"
        )
    return {"intermediate_size": size, "use_double_wide_mlp": True}


class ByType(NamedTuple):
    """A number in layers with a sliding window, and in the others."""

    local: int
    wide: int


def _by_type(gguf: GGUF, key: str, types: list[bool], default: int) -> ByType:
    given = gguf.get(key, default)
    if not isinstance(given, list):
        return ByType(*[positive(gguf, key, default)] * 2)
    each = [{one for one, local in zip(given, types, strict=False) if local == wanted} for wanted in (True, False)]
    if len(given) != len(types) or any(len(found) > 1 for found in each):
        raise UnsupportedModel(
            f"{gguf.path} has {key} {shown(given)}; ringkv supports one number for layers with a sliding window, and "
            "one for the others"
        )
    local, wide = (next(iter(found or each[0] or each[1])) for found in each)
    return ByType(local, wide)


def _types(gguf: GGUF, kind: str) -> list[bool]:
    """Return for each layer whether it has a sliding window."""
    found = window_settings(gguf, kind, WINDOWS).get("layer_types", ["full_attention"] * layer_count(gguf, kind))
    return [one == "sliding_attention" for one in found]


def _lacks_values(gguf: GGUF, layer: int) -> bool:
    return gguf.has(f"blk.{layer}.attn_k.weight") and not gguf.has(f"blk.{layer}.attn_v.weight")


def _rotating_share(gguf: GGUF, kind: str) -> float:
    """Return the part of a head that rotates in global layers: its pairs are divided by 1, the others by 1e30."""
    pairs = positive(gguf, f"{kind}.attention.key_length") // 2
    if shape_of(gguf, ROPE_DIVISORS) != (pairs,):
        raise BadWeights(f"{gguf.path} has {ROPE_DIVISORS} of other than {pairs} pairs; fetch it again")
    divisors = np.concatenate(list(gguf.rows(ROPE_DIVISORS))).reshape(-1)
    rotating = int((divisors == 1).sum())
    if not rotating or (divisors[:rotating] != 1).any() or (divisors[rotating:] < STILL).any():
        raise UnsupportedModel(
            f"{gguf.path} scales its rotary embedding by a tensor {ROPE_DIVISORS} that does more than stop pairs; "
            "fetch this model as safetensors"
        )
    return rotating / pairs
