"""gguf_gemma3n: settings of Gemma 3n in its GGUF."""

import math
from typing import Any

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_fields import shape_of, sharing_layers, short
from ringkv.weights.gguf_gemma3 import LOCAL_BASE

CAP = 30.0  # of logits, if the file has none


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
