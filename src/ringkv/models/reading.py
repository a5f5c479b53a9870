"""reading: sizes, rotary embeddings and sliding windows of a parsed config.json. No torch.

Two spellings of the rotary embedding are read: `rope_theta` with `rope_scaling` (older), and `rope_parameters` (newer).
A setting that is not implemented is refused by name, because a model that ignores it generates nonsense.
"""

from collections.abc import Callable, Collection, Mapping
from operator import not_
from typing import Any, get_args

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown, shown_names
from ringkv.models.base import Sliding
from ringkv.models.fields import Raw, Refusal, count, decimal, decimals, flag, ids, optional_decimal, table, texts
from ringkv.models.layer import Attention, FeedForward, Norm, RopeConfig, RopeKind
from ringkv.models.online import online_rotations
from ringkv.models.quantization import refuse_quantization

WINDOW = 4096
"""Default of sliding_window in transformers, in every family that has one."""

ORIGINAL, PARTIAL = "original_max_position_embeddings", "partial_rotary_factor"
OLDER_NAMES: Mapping[str, str] = {"su": "longrope"}


REFUSALS = (
    Refusal("partial_rotary_factor", lambda v: v in (None, 1, 1.0), "rotary embedding over the whole head"),
    Refusal("no_rope_layers", lambda v: all(v or ()), "rotary embedding in every layer"),
    Refusal("attn_logit_softcapping", not_, "plain softmax attention"),
    Refusal("final_logit_softcapping", not_, "plain logits"),
    Refusal("use_qk_norm", not_, "query and key norms in Qwen3ForCausalLM and Gemma3ForCausalLM only"),
    Refusal("use_bidirectional_attention", not_, "causal attention"),
    Refusal("alibi", not_, "rotary embedding"),
    Refusal("position_embedding_type", lambda v: v in (None, "rope", "rotary"), "rotary embedding"),
    Refusal("rotary_pct", lambda v: v in (None, 1, 1.0), "rotary embedding over the whole head"),
    Refusal("rope_interleaved", not_, "rotary embedding of a head's two halves"),
    Refusal("use_mrope", not_, "rotary embedding of one position a token"),
    Refusal("use_dynamic_ntk", not_, "rotary embedding that does not change with the prompt's length"),
    Refusal("no_rope_layer_interval", not_, "rotary embedding in every layer"),
    Refusal("use_logn_attn", not_, "queries that are not scaled by their position"),
    Refusal("attn_temperature_tuning", not_, "queries that are not scaled by their position"),
    Refusal("attention_multiplier", not_, "attention scaled by 1 / sqrt(head_dim)"),
    Refusal("attention_chunk_size", not_, "attention to all tokens before"),
    Refusal("clip_qkv", not_, "queries, keys and values that are not clipped"),
    Refusal("qk_layernorm", not_, "query and key norms in Qwen3ForCausalLM and Gemma3ForCausalLM only"),
    Refusal("use_cla", not_, "keys and values of its own in every layer"),
    Refusal("num_kv_shared_layers", not_, "keys and values of its own in every layer"),
    Refusal("num_local_experts", not_, "dense feed-forward layers"),
    Refusal("num_experts", not_, "dense feed-forward layers"),
    Refusal("kv_lora_rank", not_, "grouped-query attention"),
    Refusal("is_encoder_decoder", not_, "decoders"),
)
SILU = Refusal("hidden_act", lambda v: v in (None, "silu"), "silu")
FULL = Refusal("layer_types", lambda v: set(v or ()) <= {"full_attention"}, "full attention in every layer")


def refuse(raw: Raw, *refusals: Refusal, supported: Collection[str] = ()) -> None:
    """Raise UnsupportedModel for a setting in `refusals`, or in REFUSALS if the family has not `supported` it."""
    for refusal in (*(refusal for refusal in REFUSALS if refusal.setting not in supported), *refusals):
        if not refusal.allows(raw.get(refusal.setting)):
            raise UnsupportedModel(
                f"{refusal.setting} {shown(raw.get(refusal.setting))} is not implemented; "
                f"ringkv supports {refusal.supported}"
            )
    refuse_quantization(raw)
    _refuse_dual_chunks(raw)


def _refuse_dual_chunks(raw: Raw) -> None:
    """Qwen2.5-1M (arXiv 2501.15383): dual chunk attention has no effect up to the trained length."""
    settings, context = table(raw, "dual_chunk_attention_config"), _context(raw)
    trained = count(settings, ORIGINAL, 1)
    if settings and trained < context:
        at_most = "the trained length" if trained == 1 else f"{trained:,}"
        raise UnsupportedModel(
            f"dual_chunk_attention_config over a context of {context:,} tokens is not implemented; ringkv supports "
            f"attention to all tokens before (set max_position_embeddings of config.json to {at_most} or less)"
        )


Fields = Mapping[str, Any]


def common(
    raw: Raw,
    generation: Raw,
    architecture: str,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    offset: float = 0.0,
) -> Fields:
    """Return the number of layers, and the fields of `ModelConfig` that every family reads in the same way.

    kv_heads, head_dim: defaults if config.json leaves them out. None is the number of query heads, and hidden_size /
    heads. offset: of norms.
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
        "norm": Norm(decimal(raw, "rms_norm_eps", 1e-6), offset),
        "context": _context(raw),
        "tied_embeddings": flag(raw, "tie_word_embeddings"),
        "eos_ids": ids((raw, "eos_token_id"), (generation, "eos_token_id")),
        "bos_id": next(iter(ids((raw, "bos_token_id"), (generation, "bos_token_id"))), None),
        "online": online_rotations(raw),
    }
    _check_shapes(fields)
    return fields


def _context(raw: Raw) -> int:
    """Return the longest context. YaRN's is the original times the factor, whatever max_position_embeddings says.

    Model cards have users add YaRN to config.json, and leave max_position_embeddings as it was.
    """
    given = table(raw, "rope_parameters") or table(raw, "rope_scaling")
    longest = count(raw, "max_position_embeddings")
    for rope in (given, *(value for value in given.values() if isinstance(value, dict))):
        if "yarn" in (rope.get("rope_type"), rope.get("type")):
            longest = max(longest, int(count(rope, ORIGINAL, count(raw, ORIGINAL, 1)) * decimal(rope, "factor", 1.0)))
    return count({"max_position_embeddings": longest}, "max_position_embeddings")


def attention(fields: Fields, **more: Any) -> Attention:
    """Return grouped-query attention of these sizes. more: further fields of `Attention`."""
    return Attention(*(fields[name] for name in ("hidden_size", "num_heads", "num_kv_heads", "head_dim")), **more)


def feed_forward(fields: Fields, **more: Any) -> FeedForward:
    """Return a feed-forward of these sizes. more: further fields of `FeedForward`."""
    return FeedForward(fields["hidden_size"], fields["intermediate_size"], **more)


def sliding(raw: Raw, window: int | None, default: Callable[[int], bool]) -> Sliding | None:
    """Return the layers with this sliding window, by `layer_types` or, without that, by `default` of their index.

    None if no layer has one.
    """
    layers, types = count(raw, "num_hidden_layers"), texts(raw, "layer_types")
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
            f"layer_types {shown_names([type])} is not implemented; "
            "ringkv supports full_attention and sliding_attention"
        )
    return type == "sliding_attention"


def window(raw: Raw, default: int | None = WINDOW) -> int | None:
    """Return the setting sliding_window; None if it is null, or as long as the context and so without effect."""
    if raw.get("sliding_window", default) is None:
        return None
    size = count(raw, "sliding_window", default)
    return size if size < _context(raw) else None


def refuse_window(raw: Raw) -> None:
    """Raise UnsupportedModel for a sliding window that some layer would use."""
    if raw.get("sliding_window") is not None and not raw.get("layer_types") and window(raw) is not None:
        raise UnsupportedModel(
            f"sliding_window {shown(raw['sliding_window'])} is not implemented for this architecture; ringkv supports "
            "full attention in every layer (choose a model with sliding_window null)"
        )


def rope(raw: Raw, theta: float = 10000.0, fraction: float | None = None) -> RopeConfig:
    """Return the one rotary embedding of all layers; arguments as for `rope_of`."""
    given = table(raw, "rope_parameters") or table(raw, "rope_scaling")
    if any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedModel("rope_parameters differ between layers; ringkv supports one rotary embedding for all")
    return rope_of(raw, given, theta, fraction)


def ropes(raw: Raw, theta: float, base: float) -> tuple[RopeConfig, RopeConfig]:
    """Return the rotary embeddings of global and of local layers, whose bases are `theta` and `base` by default.

    The older spelling scales only the global one.
    """
    given = table(raw, "rope_parameters")
    if "full_attention" in given:
        local_rope = rope_of({**raw, "rope_theta": base}, table(given, "sliding_attention"), base)
        return rope_of(raw, table(given, "full_attention"), theta), local_rope
    return rope(raw, theta), RopeConfig(base)


def rope_of(raw: Raw, given: Raw, theta: float, fraction: float | None = None) -> RopeConfig:
    """Return the rotary embedding that `given`, a rope_parameters or rope_scaling, describes.

    theta, fraction: the base, and the part of a head that rotates, if config.json leaves them out. Without `fraction`
    the family rotates whole heads only.
    """
    if given.get(PARTIAL) is None:
        given = {**given, PARTIAL: raw.get(PARTIAL)}
    named = given.get("rope_type") or given.get("type") or "default"
    kind: Any = OLDER_NAMES.get(named, named) if isinstance(named, str) else named
    if kind not in get_args(RopeKind):
        raise UnsupportedModel(
            f"rope type {shown(kind)} is not implemented; ringkv supports {', '.join(get_args(RopeKind))}"
        )
    width = None if kind == "proportional" else _rotated(raw, given, fraction)
    # A base of 1 rotates nothing, and YaRN divides by its logarithm. Some files have 0 for the default.
    theta = decimal(next((file for file in (given, raw) if file.get("rope_theta")), {}), "rope_theta", theta, above=1.0)
    if kind == "default":
        return RopeConfig(theta, width=width)
    original = count(raw, ORIGINAL, count(given, ORIGINAL, count(raw, "max_position_embeddings")))
    config = RopeConfig(theta, kind, width=width, **_scaling(raw, given, kind, original))
    if config.divisors and len(config.divisors) != (pairs := (width or _head_dim(raw)) // 2):
        raise BadWeights(
            f"config.json has {len(config.divisors)} longrope factors for {pairs} pairs; fetch config.json again"
        )
    return config


def _rotated(raw: Raw, given: Raw, fraction: float | None) -> int | None:
    """Return how many elements of a head rotate; None for all."""
    if fraction is None:
        if given.get(PARTIAL) not in (None, 1, 1.0):
            raise UnsupportedModel(f"{PARTIAL} is not implemented for this architecture; ringkv rotates the whole head")
        return None
    head, part = _head_dim(raw), decimal(given, PARTIAL, fraction)
    width = int(head * part)
    if not 2 <= width <= head or width % 2:
        raise BadWeights(
            f"config.json has {PARTIAL} {part:g} of head_dim {head}, which is not an even number of elements; "
            "fetch config.json again"
        )
    return None if width == head else width


def _head_dim(raw: Raw) -> int:
    return count(raw, "head_dim", max(1, count(raw, "hidden_size") // count(raw, "num_attention_heads")))


def _scaling(raw: Raw, given: Raw, kind: RopeKind, original: int) -> dict[str, Any]:
    """Return the fields of `RopeConfig` that this kind uses; null in the file keeps our default."""
    # DeepSeek's and Phi's files leave it out.
    ratio = count(raw, "max_position_embeddings") / original
    default = {"yarn": ratio, "longrope": ratio, "proportional": 1.0}.get(kind)
    fields = {"factor": decimal(given, "factor", default), "original_context": original}
    if kind == "longrope":
        return fields | _longrope(raw, given, original)
    read = {"llama3": _llama3, "yarn": _yarn, "proportional": _proportional}.get(kind)
    return fields | read(given) if read else fields


def _llama3(given: Raw) -> dict[str, Any]:
    low, high = decimal(given, "low_freq_factor", 1.0), decimal(given, "high_freq_factor", 4.0)
    if low >= high:
        raise BadWeights(
            f"config.json has low_freq_factor {low:g} and high_freq_factor {high:g}; the second must be larger, "
            "so fetch config.json again"
        )
    return {"low_freq_factor": low, "high_freq_factor": high}


def _yarn(given: Raw) -> dict[str, Any]:
    return {
        "beta_fast": decimal(given, "beta_fast", 32.0),
        "beta_slow": decimal(given, "beta_slow", 1.0),
        **{name: optional_decimal(given, name) for name in ("attention_factor", "mscale", "mscale_all_dim")},
        "truncate": flag(given, "truncate", True),
    }


def _proportional(given: Raw) -> dict[str, Any]:
    fraction = decimal(given, PARTIAL, 1.0)
    if fraction > 1:
        raise BadWeights(f"config.json has {PARTIAL} {fraction:g}, at most 1 is needed; fetch config.json again")
    return {"fraction": fraction}


def _longrope(raw: Raw, given: Raw, original: int) -> dict[str, Any]:
    """Return the long factors if the context is longer than the original one, else the short ones.

    A cache holds rotated keys, so a request cannot change between them as its text grows, as transformers does.
    """
    name = "long_factor" if count(raw, "max_position_embeddings") > original else "short_factor"
    return {"divisors": decimals(given, name), "attention_factor": optional_decimal(given, "attention_factor")}


def _check_shapes(fields: Fields) -> None:
    heads, kv_heads, head_dim = fields["num_heads"], fields["num_kv_heads"], fields["head_dim"]
    if heads % kv_heads:
        raise BadWeights(
            f"config.json has {heads} attention heads over {kv_heads} key-value heads, "
            "which does not divide; fetch config.json again"
        )
    if head_dim % 2:
        raise BadWeights(f"config.json gives head_dim {head_dim}; rotary embedding needs an even one")
