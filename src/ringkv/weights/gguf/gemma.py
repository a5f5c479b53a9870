"""Gemma 3, 3n and 4 in a GGUF: settings that the file leaves out or that differ by layer, and stacks of experts.

The global and local layers of Gemma 4 differ in heads and rotary embedding. Hugging Face layout has its experts as
stacks [experts, rows, columns].
"""

import math
from collections.abc import Iterator
from typing import Any

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf.fields import (
    Windows,
    check_width,
    head_counts,
    layer_count,
    sharing_layers,
    short,
    window_settings,
)
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.rope import ROPE_DIVISORS, theta
from ringkv.weights.gguf.source import STACKS, Array, Merged, stack_shape, stored
from ringkv.weights.safetensors_writer import TensorSpec

LARGEST = 62  # layers of the 27B model
LOCAL_BASE = 1e4  # of the rotary embedding in layers with a sliding window, if the file has none
CAP = 30.0  # of logits, if the file has none
STILL = 1e20  # divisors from here on stop a pair's rotation; the file has 1e30
FUSED = "ffn_gate_up_exps"
GEMMA4_WINDOWS = Windows(local=True)


def gemma3(gguf: GGUF) -> dict[str, Any]:
    """Return the base of local layers, the scale of scores and caps on logits."""
    return {
        "rope_local_base_freq": short(gguf.decimal(".rope.freq_base_swa", LOCAL_BASE)),
        "query_pre_attn_scalar": _query_scalar(gguf),
        "attn_logit_softcapping": gguf.get(".attn_logit_softcapping"),
        "final_logit_softcapping": gguf.get(".final_logit_softcapping"),
    }


def _query_scalar(gguf: GGUF) -> int:
    """Return query_pre_attn_scalar; the 27B model has its own rule."""
    heads, _ = head_counts(gguf)
    per_head = gguf.positive(".embedding_length") // heads
    is_largest = layer_count(gguf) == LARGEST
    return per_head if is_largest else gguf.positive(".attention.key_length", per_head)


def gemma3n(gguf: GGUF) -> dict[str, Any]:
    """Return the sizes of streams and per-layer embeddings, sparsities and shared layers. Raises BadWeights."""
    return {
        **inputs(gguf),
        "rope_local_base_freq": short(gguf.decimal(".rope.freq_base_swa", LOCAL_BASE)),
        "num_kv_shared_layers": sharing_layers(gguf, None),
        "final_logit_softcapping": short(gguf.decimal(".final_logit_softcapping", CAP)),
        "altup_num_inputs": gguf.shape("altup_proj.weight")[0] + 1,
        "altup_active_idx": gguf.number(".altup.active_idx"),
        "altup_correct_scale": True,
        "laurel_rank": gguf.shape("blk.0.laurel_l.weight")[0],
        "activation_sparsity_pattern": _sparsities(gguf),
    }


def inputs(gguf: GGUF) -> dict[str, int]:
    """Return the sizes of per-layer embeddings; a width of 0 if there are none."""
    if not (width := gguf.number(".embedding_length_per_layer_input")):
        return {"hidden_size_per_layer_input": 0}
    vocab = gguf.shape("per_layer_token_embd.weight")[0]
    return {"hidden_size_per_layer_input": width, "vocab_size_per_layer_input": vocab}


def _sparsities(gguf: GGUF) -> list[float] | None:
    """Return each layer's share of gates that are zeroed. The file has its quantile of the normal distribution.

    None: the file has none. The quantile of 0 is minus infinity.
    """
    key = ".activation_sparsity_scale"
    if (given := gguf.get(key)) is None:
        return None
    if not isinstance(given, list) or not all(isinstance(value, float) and not math.isnan(value) for value in given):
        raise gguf.wrong(key, "a list of numbers")
    return [round((1 + math.erf(quantile / math.sqrt(2))) / 2, 6) for quantile in given]


def gemma4(gguf: GGUF) -> dict[str, Any]:
    """Return per-layer embeddings, shared layers and the rotary embeddings. Raises BadWeights or UnsupportedModel."""
    return {
        **inputs(gguf),
        "num_kv_shared_layers": sharing_layers(gguf),
        "final_logit_softcapping": short(gguf.decimal(".final_logit_softcapping", 0.0)) or None,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": _rotating_share(gguf),
                "rope_theta": theta(gguf),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": short(gguf.decimal(".rope.freq_base_swa", LOCAL_BASE)),
            },
        },
    }


def gemma4_heads(gguf: GGUF) -> dict[str, Any]:
    """Return the sizes of heads in local layers, and of those in global layers, which may lack values of their own."""
    widths = {}
    for suffix in ("", "_swa"):
        key, value = (gguf.positive(f".attention.{name}_length{suffix}") for name in ("key", "value"))
        check_width(gguf, f"attention.value_length{suffix}", value, key)
        rotated = gguf.positive(f".rope.dimension_count{suffix}", key)
        check_width(gguf, f"rope.dimension_count{suffix}", rotated, key)
        widths[suffix] = key
    query_heads, types = gguf.positive(".attention.head_count"), _types(gguf)
    local, wide = _by_type(gguf, ".attention.head_count_kv", types, query_heads)
    prefixes = (f"blk.{layer}.attn" for layer, is_local in enumerate(types) if not is_local)
    return {
        "num_attention_heads": query_heads,
        "num_key_value_heads": local,
        "num_global_key_value_heads": wide,
        "head_dim": widths["_swa"],
        "global_head_dim": widths[""],
        "attention_k_eq_v": any(gguf.has(f"{attn}_k.weight") and not gguf.has(f"{attn}_v.weight") for attn in prefixes),
    }


def gemma4_feed_forward(gguf: GGUF) -> dict[str, Any]:
    """Return the elements of feed-forwards, which may be twice as many in layers that share keys and values."""
    key, layers = ".feed_forward_length", layer_count(gguf)
    given, first = gguf.get(key), layers - sharing_layers(gguf)
    if not isinstance(given, list) or len(set(given)) < 2:
        return {"intermediate_size": gguf.positive(key)}
    size = given[0]
    if given != [size] * first + [2 * size] * (layers - first):
        raise UnsupportedModel(
            f"{gguf.path} has {gguf.key(key)} {shown(given)}; ringkv supports one number, and twice that in layers "
            "that share keys and values"
        )
    return {"intermediate_size": size, "use_double_wide_mlp": True}


def _by_type(gguf: GGUF, key: str, types: list[bool], default: int) -> tuple[int, int]:
    """Return a number in layers with a sliding window, and in the others."""
    given = gguf.get(key, default)
    if not isinstance(given, list):
        number = gguf.positive(key, default)
        return number, number
    local = {value for value, is_local in zip(given, types, strict=False) if is_local}
    wide = {value for value, is_local in zip(given, types, strict=False) if not is_local}
    if len(given) != len(types) or len(local) > 1 or len(wide) > 1:
        raise UnsupportedModel(
            f"{gguf.path} has {gguf.key(key)} {shown(given)}; ringkv supports one number for layers with a sliding "
            "window, and one for the others"
        )
    return next(iter(local or wide)), next(iter(wide or local))


def _types(gguf: GGUF) -> list[bool]:
    """Return for each layer whether it has a sliding window."""
    types = window_settings(gguf, GEMMA4_WINDOWS).get("layer_types", ["full_attention"] * layer_count(gguf))
    return [type == "sliding_attention" for type in types]


def _rotating_share(gguf: GGUF) -> float:
    """Return the part of a head that rotates in global layers: its pairs are divided by 1, the others by 1e30."""
    pairs = gguf.positive(".attention.key_length") // 2
    if gguf.shape(ROPE_DIVISORS) != (pairs,):
        raise BadWeights(f"{gguf.path} has {ROPE_DIVISORS} of other than {pairs} pairs; fetch it again")
    divisors = gguf.tensor(ROPE_DIVISORS).reshape(-1)
    rotating = int((divisors == 1).sum())
    if not rotating or (divisors[:rotating] != 1).any() or (divisors[rotating:] < STILL).any():
        raise UnsupportedModel(
            f"{gguf.path} scales its rotary embedding by a tensor {ROPE_DIVISORS} that does more than stop pairs; "
            "fetch this model as safetensors"
        )
    return rotating / pairs


def parallel_experts(gguf: GGUF, layer: str) -> Iterator[tuple[str, Merged]]:
    """Yield the stacks of a layer's experts. Gates and ups may be two stacks. Raises BadWeights."""
    fused = {**STACKS, "gate_up_proj": (FUSED,)} if gguf.has(f"{layer}{FUSED}.weight") else STACKS
    for ours, stacks in fused.items():
        names = tuple(f"{layer}{stack}.weight" for stack in stacks)
        if all(map(gguf.has, names)):
            count, rows, columns = stack_shape(gguf, names, 3)
            yield f"experts.{ours}", _stacked(names, (count, rows * len(names), columns))


def _stacked(names: tuple[str, ...], shape: tuple[int, ...]) -> Merged:
    """Merge stacks [experts, rows, columns] to one, [experts, all rows, columns], in the order of `names`."""

    def blocks(gguf: GGUF) -> Iterator[Array]:
        for expert in range(shape[0]):
            for name in names:
                yield from map(stored, gguf.rows(name, expert=expert))

    return Merged(TensorSpec(shape), blocks)
