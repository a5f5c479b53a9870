"""Gemma 3, 3n and 4 in a GGUF: settings that the file leaves out or that differ by layer, and stacks of experts.

The global and local layers of Gemma 4 differ in heads and rotary embedding. Hugging Face layout has its experts as
stacks [experts, rows, columns].
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf.fields import (
    Windows,
    check_width,
    head_counts,
    layer_count,
    positive,
    shape_of,
    sharing_layers,
    short,
    window_settings,
)
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.rope import ROPE_DIVISORS, theta
from ringkv.weights.gguf.source import STACKS, Source, stack_shape, stored
from ringkv.weights.safetensors_writer import TensorSpec

LARGEST = 62  # layers of the 27B model
LOCAL_BASE = 1e4  # of the rotary embedding in layers with a sliding window, if the file has none
CAP = 30.0  # of logits, if the file has none
STILL = 1e20  # divisors from here on stop a pair's rotation; the file has 1e30
FUSED = "ffn_gate_up_exps"
GEMMA4_WINDOWS = Windows(local=True)


def gemma3(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the base of local layers, the scale of scores and caps on logits."""
    return {
        "rope_local_base_freq": short(gguf.decimal(f"{kind}.rope.freq_base_swa", LOCAL_BASE)),
        "query_pre_attn_scalar": _query_scalar(gguf, kind),
        "attn_logit_softcapping": gguf.get(f"{kind}.attn_logit_softcapping"),
        "final_logit_softcapping": gguf.get(f"{kind}.final_logit_softcapping"),
    }


def _query_scalar(gguf: GGUF, kind: str) -> int:
    """Return query_pre_attn_scalar; the 27B model has its own rule."""
    heads, _ = head_counts(gguf, kind)
    per_head = positive(gguf, f"{kind}.embedding_length") // heads
    is_largest = layer_count(gguf, kind) == LARGEST
    return per_head if is_largest else positive(gguf, f"{kind}.attention.key_length", per_head)


def gemma3n(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the sizes of streams and per-layer embeddings, sparsities and shared layers. Raises BadWeights."""
    return {
        **inputs(gguf, kind),
        "rope_local_base_freq": short(gguf.decimal(f"{kind}.rope.freq_base_swa", LOCAL_BASE)),
        "num_kv_shared_layers": sharing_layers(gguf, kind, None),
        "final_logit_softcapping": short(gguf.decimal(f"{kind}.final_logit_softcapping", CAP)),
        "altup_num_inputs": shape_of(gguf, "altup_proj.weight")[0] + 1,
        "altup_active_idx": gguf.number(f"{kind}.altup.active_idx"),
        "altup_correct_scale": True,
        "laurel_rank": shape_of(gguf, "blk.0.laurel_l.weight")[0],
        "activation_sparsity_pattern": _sparsities(gguf, f"{kind}.activation_sparsity_scale"),
    }


def inputs(gguf: GGUF, kind: str) -> dict[str, int]:
    """Return the sizes of per-layer embeddings; a width of 0 if there are none."""
    if not (width := gguf.number(f"{kind}.embedding_length_per_layer_input")):
        return {"hidden_size_per_layer_input": 0}
    vocab = shape_of(gguf, "per_layer_token_embd.weight")[0]
    return {"hidden_size_per_layer_input": width, "vocab_size_per_layer_input": vocab}


def _sparsities(gguf: GGUF, key: str) -> list[float] | None:
    """Return each layer's share of gates that are zeroed. The file has its quantile of the normal distribution.

    None: the file has none. The quantile of 0 is minus infinity.
    """
    if (given := gguf.get(key)) is None:
        return None
    if not isinstance(given, list) or not all(isinstance(one, float) and not math.isnan(one) for one in given):
        raise BadWeights(f"{gguf.path} has {key} {shown(given)}, a list of numbers is needed; fetch another copy")
    return [round((1 + math.erf(one / math.sqrt(2))) / 2, 6) for one in given]


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


def gemma4_heads(gguf: GGUF, kind: str) -> dict[str, Any]:
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


def gemma4_feed_forward(gguf: GGUF, kind: str) -> dict[str, Any]:
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
    found = window_settings(gguf, kind, GEMMA4_WINDOWS).get("layer_types", ["full_attention"] * layer_count(gguf, kind))
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


def parallel_experts(gguf: GGUF, layer: str) -> Iterator[tuple[str, Source]]:
    """Yield the stacks of a layer's experts. Gates and ups may be two stacks. Raises BadWeights."""
    fused = {**STACKS, "gate_up_proj": (FUSED,)} if gguf.has(f"{layer}{FUSED}.weight") else STACKS
    for ours, stacks in fused.items():
        names = tuple(f"{layer}{stack}.weight" for stack in stacks)
        if all(map(gguf.has, names)):
            count, rows, columns = stack_shape(gguf, names, 3)
            yield f"experts.{ours}", Stacked(names, (count, rows * len(names), columns))


@dataclass(frozen=True)
class Stacked:
    """Stacks [experts, rows, columns] as one, [experts, all rows, columns], in the order of `names`."""

    names: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape)

    def blocks(self, gguf: GGUF) -> Iterator[npt.NDArray[Any]]:
        for expert in range(self.shape[0]):
            for name in self.names:
                yield from map(stored, gguf.rows(name, expert=expert))
