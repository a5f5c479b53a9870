"""reading: sizes, rotary embeddings and sliding windows of a parsed config.json. No torch.

Two spellings of the rotary embedding are read: `rope_theta` with `rope_scaling` (older), and `rope_parameters` (newer).
A setting that is not implemented is refused by name, because a model that ignores it generates nonsense.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.models.base import Sliding
from ringkv.models.layer import RopeConfig, RopeKind

Raw = Mapping[str, Any]
"""A parsed JSON object."""

WINDOW = 4096
"""Default of sliding_window in transformers, in every family that has one."""


class Refusal(NamedTuple):
    """One setting that must be absent or harmless."""

    setting: str
    is_harmless: Callable[[Any], bool]
    supported: str


def _is_empty(value: Any) -> bool:
    return not value


REFUSALS = (
    Refusal("quantization_config", _is_empty, "unquantised safetensors, or a GGUF file"),
    Refusal("partial_rotary_factor", lambda v: v in (None, 1, 1.0), "rotary embedding over the whole head"),
    Refusal("no_rope_layers", lambda v: all(v or ()), "rotary embedding in every layer"),
    Refusal("attn_logit_softcapping", _is_empty, "plain softmax attention"),
    Refusal("final_logit_softcapping", _is_empty, "plain logits"),
    Refusal("use_qk_norm", _is_empty, "query and key norms in Qwen3ForCausalLM and Gemma3ForCausalLM only"),
    Refusal("use_bidirectional_attention", _is_empty, "causal attention"),
    Refusal("alibi", _is_empty, "rotary embedding"),
    Refusal("position_embedding_type", lambda v: v in (None, "rope", "rotary"), "rotary embedding"),
    Refusal("rotary_pct", lambda v: v in (None, 1, 1.0), "rotary embedding over the whole head"),
    Refusal("rope_interleaved", _is_empty, "rotary embedding of a head's two halves"),
    Refusal("use_mrope", _is_empty, "rotary embedding of one position a token"),
    Refusal("use_dynamic_ntk", _is_empty, "rotary embedding that does not change with the prompt's length"),
    Refusal("no_rope_layer_interval", _is_empty, "rotary embedding in every layer"),
    Refusal("use_logn_attn", _is_empty, "queries that are not scaled by their position"),
    Refusal("attn_temperature_tuning", _is_empty, "queries that are not scaled by their position"),
    Refusal("attention_multiplier", _is_empty, "attention scaled by 1 / sqrt(head_dim)"),
    Refusal("attention_chunk_size", _is_empty, "attention to all tokens before"),
    Refusal("clip_qkv", _is_empty, "queries, keys and values that are not clipped"),
    Refusal("qk_layernorm", _is_empty, "query and key norms in Qwen3ForCausalLM and Gemma3ForCausalLM only"),
    Refusal("use_cla", _is_empty, "keys and values of its own in every layer"),
    Refusal("num_kv_shared_layers", _is_empty, "keys and values of its own in every layer"),
    Refusal("num_local_experts", _is_empty, "dense feed-forward layers"),
    Refusal("num_experts", _is_empty, "dense feed-forward layers"),
    Refusal("kv_lora_rank", _is_empty, "grouped-query attention"),
    Refusal("is_encoder_decoder", _is_empty, "decoders"),
)
SILU = Refusal("hidden_act", lambda v: v in (None, "silu"), "silu")
FULL = Refusal("layer_types", lambda v: set(v or ()) <= {"full_attention"}, "full attention in every layer")


def refuse(raw: Raw, *refusals: Refusal) -> None:
    """Raise UnsupportedModel for a setting in `refusals`, or for one that no family supports."""
    for setting, is_harmless, supported in (*REFUSALS, *refusals):
        if not is_harmless(raw.get(setting)):
            raise UnsupportedModel(f"{setting} {_short(raw[setting])} is not implemented; ringkv supports {supported}")
    _refuse_dual_chunks(raw)


def _refuse_dual_chunks(raw: Raw) -> None:
    """Qwen2.5-1M (arXiv 2501.15383): dual chunk attention has no effect up to the trained length."""
    trained = (raw.get("dual_chunk_attention_config") or {}).get("original_max_position_embeddings")
    context = count(raw, "max_position_embeddings")
    if raw.get("dual_chunk_attention_config") and (trained is None or trained < context):
        at_most = "the trained length" if trained is None else f"{trained:,}"
        raise UnsupportedModel(
            f"dual_chunk_attention_config over a context of {context:,} tokens is not implemented; ringkv supports "
            f"attention to all tokens before (set max_position_embeddings of config.json to {at_most} or less)"
        )


def common(
    raw: Raw, generation: Raw, architecture: str, *, kv_heads: int | None = None, head_dim: int | None = None
) -> dict[str, Any]:
    """Return the fields of `ModelConfig` that every family reads in the same way; not `rope` and `sliding`.

    kv_heads, head_dim: defaults if config.json leaves them out. None is the number of query heads, and hidden_size /
    heads.
    """
    hidden, heads = count(raw, "hidden_size"), count(raw, "num_attention_heads")
    fields = {
        "architecture": architecture,
        "vocab_size": count(raw, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": count(raw, "intermediate_size"),
        "num_layers": count(raw, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": count(raw, "num_key_value_heads", kv_heads or heads),
        "head_dim": count(raw, "head_dim", head_dim or hidden // heads),
        "rms_norm_eps": float(raw.get("rms_norm_eps", 1e-6)),
        "context": count(raw, "max_position_embeddings"),
        "tied_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "eos_ids": _union(raw.get("eos_token_id"), generation.get("eos_token_id")),
        "bos_id": next(iter(_union(raw.get("bos_token_id"), generation.get("bos_token_id"))), None),
    }
    _check_shapes(fields)
    return fields


def sliding(raw: Raw, window: int | None, default: Callable[[int], bool]) -> Sliding | None:
    """Return the layers with this sliding window, by `layer_types` or, without that, by `default` of their index.

    None if no layer has one.
    """
    layers, types = count(raw, "num_hidden_layers"), raw.get("layer_types")
    if types:
        local = tuple(i for i, type in enumerate(types) if _is_local(type))
    else:
        local = tuple(i for i in range(layers) if default(i))
    if window is None or not local:
        return None
    if types and len(types) != layers:
        raise BadWeights(f"config.json has {len(types)} layer_types for {layers} layers; fetch config.json again")
    return Sliding(window, local)


def _is_local(type: str) -> bool:
    if type not in ("full_attention", "sliding_attention"):
        raise UnsupportedModel(
            f"layer_types {type} is not implemented; ringkv supports full_attention and sliding_attention"
        )
    return type == "sliding_attention"


def window(raw: Raw) -> int | None:
    """Return the setting sliding_window; None if it is null, or as long as the context and so without effect."""
    if "sliding_window" in raw and raw["sliding_window"] is None:
        return None
    size = count(raw, "sliding_window", WINDOW)
    return size if size < count(raw, "max_position_embeddings") else None


def refuse_window(raw: Raw) -> None:
    """Raise UnsupportedModel for a sliding window that some layer would use."""
    if raw.get("sliding_window") is not None and not raw.get("layer_types") and window(raw) is not None:
        raise UnsupportedModel(
            f"sliding_window {raw['sliding_window']} is not implemented for this architecture; ringkv supports "
            "full attention in every layer (choose a model with sliding_window null)"
        )


def rope(raw: Raw, theta: float = 10000.0) -> RopeConfig:
    """Return the one rotary embedding of all layers. theta: its base if config.json leaves it out."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedModel("rope_parameters differ between layers; ringkv supports one rotary embedding for all")
    return rope_of(raw, given, theta)


def rope_of(raw: Raw, given: Raw, theta: float) -> RopeConfig:
    """Return the rotary embedding that `given`, a rope_parameters or rope_scaling, describes."""
    kind: RopeKind = given.get("rope_type") or given.get("type") or "default"
    if kind not in get_args(RopeKind):
        raise UnsupportedModel(
            f"rope type {kind!r} is not implemented; ringkv supports {', '.join(get_args(RopeKind))}"
        )
    if given.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise UnsupportedModel("partial_rotary_factor is not implemented; ringkv rotates the whole head")
    theta = float(given.get("rope_theta") or raw.get("rope_theta") or theta)
    if kind == "default":
        return RopeConfig(theta)
    original = (
        raw.get("original_max_position_embeddings")
        or given.get("original_max_position_embeddings")
        or count(raw, "max_position_embeddings")
    )
    return RopeConfig(theta, kind, **_scaling(raw, given, kind, int(original)))


def _scaling(raw: Raw, given: Raw, kind: str, original: int) -> dict[str, Any]:
    """Return the fields of `RopeConfig` that this kind uses; null in the file keeps our default."""
    used = {
        "linear": (),
        "llama3": ("low_freq_factor", "high_freq_factor"),
        "yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    }[kind]
    factor = given.get("factor")
    if factor is None and kind == "yarn":  # DeepSeek's files leave it out
        factor = count(raw, "max_position_embeddings") / original
    if not isinstance(factor, int | float) or factor <= 0:
        raise BadWeights(
            f"rope type {kind} needs a positive factor, config.json has {factor!r}; fetch config.json again"
        )
    fields = {name: given[name] for name in used if given.get(name) is not None}
    return {"factor": float(factor), "original_context": original, **fields}


def count(raw: Raw, key: str, default: int | None = None) -> int:
    """Return a positive integer; null in the file means the default. Raises BadWeights."""
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadWeights(f"config.json has {key} {value!r}, a positive number is needed; fetch config.json again")
    return value


def _union(*ids: int | list[int] | None) -> tuple[int, ...]:
    """Return all ids in order of appearance, each once."""
    flat = [id for group in ids if group is not None for id in (group if isinstance(group, list) else [group])]
    return tuple(dict.fromkeys(flat))


def _check_shapes(fields: Mapping[str, Any]) -> None:
    heads, kv_heads, head_dim = fields["num_heads"], fields["num_kv_heads"], fields["head_dim"]
    if heads % kv_heads:
        raise BadWeights(
            f"config.json has {heads} attention heads over {kv_heads} key-value heads, "
            "which does not divide; fetch config.json again"
        )
    if head_dim % 2:
        raise BadWeights(f"config.json gives head_dim {head_dim}; rotary embedding needs an even one")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
