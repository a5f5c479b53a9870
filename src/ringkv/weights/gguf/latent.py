"""DeepSeek's latent attention in a GGUF (arXiv 2405.04434).

Files differ in the matrix from latents to keys and values of H heads, and in what key_length and value_length are:

    older   attn_kv_b [H * (nope + value), rank]                      sizes of a head
    newer   attn_k_b [H, rank, nope] and attn_v_b [H, value, rank]    sizes of a cache entry; of a head with `_mla`
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringkv.base.errors import BadWeights
from ringkv.weights.gguf.fields import positive, short
from ringkv.weights.gguf.file import GGUF
from ringkv.weights.gguf.rope import rope_scaling
from ringkv.weights.gguf.source import Source, stored
from ringkv.weights.safetensors_writer import TensorSpec

LOG_PER_MSCALE = 0.1  # yarn_log_multiplier, of a mscale_all_dim of 1


def latent(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the sizes of latents and heads. Raises BadWeights for sizes that do not fit."""
    prefix = f"{kind}.attention"
    heads, rotated = positive(gguf, f"{prefix}.head_count"), positive(gguf, f"{kind}.rope.dimension_count")
    key, value = (_of_head(gguf, f"{prefix}.{name}_length") for name in ("key", "value"))
    if key <= rotated:
        raise BadWeights(
            f"{gguf.path} has heads of {key} elements of which {rotated} rotate; fetch another copy of the model"
        )
    ranked = gguf.get(f"{prefix}.q_lora_rank") is not None
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": rotated,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
        "kv_lora_rank": positive(gguf, f"{prefix}.kv_lora_rank"),
        "q_lora_rank": positive(gguf, f"{prefix}.q_lora_rank") if ranked else None,
    }


def latent_rope(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the rotary embedding with YaRN's factors on scores, which are one in GGUF files: `mscale` has no key."""
    scaling = rope_scaling(gguf, kind, positive(gguf, f"{kind}.rope.dimension_count"))
    multiplier = short(gguf.decimal(f"{kind}.rope.scaling.yarn_log_multiplier", 0.0))
    if not scaling or not multiplier:
        return {}
    mscale = round(multiplier / LOG_PER_MSCALE, 6)
    return {"rope_scaling": {**scaling, "mscale": mscale, "mscale_all_dim": mscale}}


def latent_matrices(gguf: GGUF, layer: str) -> Iterator[tuple[str, Source]]:
    """Yield a layer's matrix from latents to keys and values. Raises BadWeights for shapes that do not fit."""
    names = f"{layer}attn_k_b.weight", f"{layer}attn_v_b.weight"
    if gguf.has(f"{layer}attn_kv_b.weight") or not all(map(gguf.has, names)):
        return
    key, value = map(gguf.shape, names)
    if len(key) != 3 or len(value) != 3 or (key[0], key[1]) != (value[0], value[2]):
        raise BadWeights(f"{gguf.path} has {names[0]} of shape {key} and {names[1]} of {value}; fetch it again")
    yield "self_attn.kv_b_proj.weight", ByHead(*names, (key[0] * (key[2] + value[1]), key[1]))


def _of_head(gguf: GGUF, key: str) -> int:
    return positive(gguf, f"{key}_mla", positive(gguf, key))


@dataclass(frozen=True)
class ByHead:
    """Each head's rows of keys, which the GGUF has transposed, and of values. One head's are in memory at a time."""

    key: str
    value: str
    shape: tuple[int, ...]

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape)

    def blocks(self, gguf: GGUF) -> Iterator[npt.NDArray[Any]]:
        for head in range(gguf.shape(self.key)[0]):
            key, value = (np.concatenate(list(gguf.rows(name, expert=head))) for name in (self.key, self.value))
            yield stored(np.concatenate([key.T, value]))
