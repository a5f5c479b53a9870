"""gguf_gemma3: settings of Gemma 3 that its GGUF leaves out."""

from typing import Any

from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_fields import head_counts, layer_count, positive, short

LARGEST = 62  # layers of the 27B model
LOCAL_BASE = 1e4  # of the rotary embedding in layers with a sliding window, if the file has none


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
