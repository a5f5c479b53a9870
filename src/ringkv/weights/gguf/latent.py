"""DeepSeek's latent attention in a GGUF (arXiv 2405.04434).

Files differ in the matrix from latents to keys and values of H heads, and in what key_length and value_length are:

    older   attn_kv_b [H * (nope + value), rank]                      sizes of a head
    newer   attn_k_b [H, rank, nope] and attn_v_b [H, value, rank]    sizes of a cache entry; of a head with `_mla`
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ringkv.base.errors import BadWeights
from ringkv.weights.gguf.fields import short
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.rope import rope_scaling
from ringkv.weights.gguf.source import Array, Merged, stored
from ringkv.weights.safetensors_writer import TensorSpec

LOG_PER_MSCALE = 0.1  # yarn_log_multiplier, of a mscale_all_dim of 1


def latent(gguf: GGUF) -> dict[str, Any]:
    """Return the sizes of latents and heads. Raises BadWeights for sizes that do not fit."""
    heads, rotated = gguf.positive(".attention.head_count"), gguf.positive(".rope.dimension_count")
    lengths = (f".attention.{name}_length" for name in ("key", "value"))
    key, value = (gguf.positive(f"{length}_mla", gguf.positive(length)) for length in lengths)
    if key <= rotated:
        raise BadWeights(
            f"{gguf.path} has heads of {key} elements of which {rotated} rotate; fetch another copy of the model"
        )
    ranked = gguf.get(".attention.q_lora_rank") is not None
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": rotated,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
        "kv_lora_rank": gguf.positive(".attention.kv_lora_rank"),
        "q_lora_rank": gguf.positive(".attention.q_lora_rank") if ranked else None,
    }


def latent_rope(gguf: GGUF) -> dict[str, Any]:
    """Return the rotary embedding with YaRN's factors on scores, which are one in GGUF files: `mscale` has no key."""
    scaling = rope_scaling(gguf, gguf.positive(".rope.dimension_count"))
    multiplier = short(gguf.decimal(".rope.scaling.yarn_log_multiplier", 0.0))
    if not scaling or not multiplier:
        return {}
    mscale = round(multiplier / LOG_PER_MSCALE, 6)
    return {"rope_scaling": {**scaling, "mscale": mscale, "mscale_all_dim": mscale}}


def latent_matrices(gguf: GGUF, layer: str) -> Iterator[tuple[str, Merged]]:
    """Yield a layer's matrix from latents to keys and values. Raises BadWeights for shapes that do not fit."""
    names = f"{layer}attn_k_b.weight", f"{layer}attn_v_b.weight"
    if gguf.has(f"{layer}attn_kv_b.weight") or not all(map(gguf.has, names)):
        return
    key, value = map(gguf.shape, names)
    if len(key) != 3 or len(value) != 3 or (key[0], key[1]) != (value[0], value[2]):
        raise BadWeights(f"{gguf.path} has {names[0]} of shape {key} and {names[1]} of {value}; fetch it again")

    def by_head(gguf: GGUF) -> Iterator[Array]:
        """Yield each head's rows of keys, which the GGUF has transposed, and of values."""
        for head in range(key[0]):
            keys, values = (gguf.tensor(name, head) for name in names)
            yield stored(np.concatenate([keys.T, values]))

    yield "self_attn.kv_b_proj.weight", Merged(TensorSpec((key[0] * (key[2] + value[1]), key[1])), by_head)
