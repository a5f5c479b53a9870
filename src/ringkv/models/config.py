"""ModelConfig: what a checkpoint's config.json says, in our words. No torch.

Two spellings of the rotary embedding are read: `rope_theta` with `rope_scaling` (older), and `rope_parameters` (newer).
What ringkv does not implement is refused by name, because a model that runs with a setting ignored answers nonsense.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ringkv.base.errors import BadWeights, UnknownModel, UnsupportedModel

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: base frequency and how it is stretched to longer contexts. Unused fields keep their default.

    factor, original_context: all scaled kinds. low_freq_factor, high_freq_factor: llama3 (Llama 3.1).
    beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim, truncate: yarn (arXiv 2309.00071).
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """One decoder of the Llama family."""

    architecture: str  # as config.json's "architectures"[0], e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    context: int  # max_position_embeddings
    qkv_bias: bool
    output_bias: bool  # bias of the attention's output projection
    mlp_bias: bool
    qk_norm: bool  # RMS norm over head_dim of each query and key head (Qwen3)
    tied_embeddings: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None


Raw = Mapping[str, Any]  # a parsed JSON object


class Family(NamedTuple):
    """What an architecture implies when its config.json leaves it out."""

    model_type: str
    kv_heads: int | None  # None: as many as query heads
    head_dim: int | None  # None: hidden_size / num_attention_heads
    qkv_bias: bool | None  # None: as `attention_bias` says
    qk_norm: bool
    window: int | None  # sliding_window


FAMILIES = {
    "LlamaForCausalLM": Family("llama", None, None, None, qk_norm=False, window=None),
    "MistralForCausalLM": Family("mistral", 8, None, False, qk_norm=False, window=4096),
    "Qwen2ForCausalLM": Family("qwen2", 32, None, True, qk_norm=False, window=4096),
    "Qwen3ForCausalLM": Family("qwen3", 32, 128, None, qk_norm=True, window=4096),
}


def load_config(directory: Path) -> ModelConfig:
    """Read config.json, and generation_config.json where there is one, of a directory in Hugging Face layout.

    Raises UnknownModel (no config.json), BadWeights (not JSON, or incomplete), UnsupportedModel.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise UnknownModel(f"{directory} has no config.json; give a directory in Hugging Face layout")
    generation = directory / "generation_config.json"
    return parse_config(_read_json(path), _read_json(generation) if generation.is_file() else {})


def parse_config(raw: Raw, generation: Raw | None = None) -> ModelConfig:
    """Translate a parsed config.json; `generation` is a parsed generation_config.json.

    Raises BadWeights when a required number is absent or senseless, UnsupportedModel for what we do not implement.
    """
    generation = generation or {}
    architecture = _architecture(raw)
    family = FAMILIES[architecture]
    _refuse_what_we_do_not_do(raw, family)
    hidden, heads = _count(raw, "hidden_size"), _count(raw, "num_attention_heads")
    attention_bias = bool(raw.get("attention_bias"))
    config = ModelConfig(
        architecture=architecture,
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_count(raw, "intermediate_size"),
        num_layers=_count(raw, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_count(raw, "num_key_value_heads", family.kv_heads or heads),
        head_dim=_count(raw, "head_dim", family.head_dim or hidden // heads),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(raw),
        context=_count(raw, "max_position_embeddings"),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias and family.qkv_bias is None,
        mlp_bias=bool(raw.get("mlp_bias")) and architecture == "LlamaForCausalLM",
        qk_norm=family.qk_norm,
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_ids=_union(raw.get("eos_token_id"), generation.get("eos_token_id")),
        bos_id=next(iter(_union(raw.get("bos_token_id"), generation.get("bos_token_id"))), None),
    )
    _check_shapes(config)
    return config


def _read_json(path: Path) -> Raw:
    try:
        raw = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadWeights(f"{path} is not valid JSON ({error}); fetch it again") from None
    if not isinstance(raw, dict):
        raise BadWeights(f"{path} holds a {type(raw).__name__}, not a JSON object; fetch it again")
    return raw


def _architecture(raw: Raw) -> str:
    named = raw.get("architectures") or [
        name for name, family in FAMILIES.items() if family.model_type == raw.get("model_type")
    ]
    name = named[0] if named else f"model_type {raw.get('model_type')!r}"
    if name not in FAMILIES:
        raise UnsupportedModel(f"architecture {name} is not implemented; ringkv runs {', '.join(FAMILIES)}")
    return str(name)


class Refusal(NamedTuple):
    """One setting that must be absent or harmless."""

    setting: str
    is_harmless: Callable[[Any], bool]
    supported: str


def _is_empty(value: Any) -> bool:
    return not value


REFUSALS = (
    Refusal("hidden_act", lambda v: v in (None, "silu"), "silu"),
    Refusal("quantization_config", _is_empty, "unquantised safetensors, or a GGUF file"),
    Refusal("partial_rotary_factor", lambda v: v in (None, 1, 1.0), "rotary embedding over the whole head"),
    Refusal("layer_types", lambda v: set(v or ()) <= {"full_attention"}, "full attention in every layer"),
    Refusal("no_rope_layers", lambda v: all(v or ()), "rotary embedding in every layer"),
    Refusal("attn_logit_softcapping", _is_empty, "plain softmax attention"),
    Refusal("final_logit_softcapping", _is_empty, "plain logits"),
    Refusal("use_qk_norm", _is_empty, "query and key norms in Qwen3ForCausalLM only"),
    Refusal("alibi", _is_empty, "rotary embedding"),
    Refusal("num_local_experts", _is_empty, "dense feed-forward layers"),
    Refusal("num_experts", _is_empty, "dense feed-forward layers"),
    Refusal("kv_lora_rank", _is_empty, "grouped-query attention"),
    Refusal("is_encoder_decoder", _is_empty, "decoders"),
)


def _refuse_what_we_do_not_do(raw: Raw, family: Family) -> None:
    for setting, is_harmless, supported in REFUSALS:
        if not is_harmless(raw.get(setting)):
            raise UnsupportedModel(f"{setting} {_short(raw[setting])} is not implemented; ringkv supports {supported}")
    window = _active_window(raw, family)
    if window is not None:
        raise UnsupportedModel(
            f"sliding_window {window} is not implemented; ringkv supports full attention in every layer "
            "(choose a model with sliding_window null)"
        )


def _active_window(raw: Raw, family: Family) -> int | None:
    """The sliding window if some layer would use it on a context longer than the window."""
    if family.model_type.startswith("qwen") and not raw.get("use_sliding_window"):
        return None
    if raw.get("layer_types"):  # where given, it decides, and `REFUSALS` has seen it
        return None
    if raw.get("max_window_layers", 0) >= _count(raw, "num_hidden_layers"):  # Qwen: the first so many see everything
        return None
    window = raw.get("sliding_window", family.window)
    return None if window is None or window >= _count(raw, "max_position_embeddings") else int(window)


def _rope(raw: Raw) -> RopeConfig:
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedModel("rope_parameters differ between layers; ringkv supports one rotary embedding for all")
    kind: RopeKind = given.get("rope_type") or given.get("type") or "default"
    if kind not in get_args(RopeKind):
        raise UnsupportedModel(
            f"rope type {kind!r} is not implemented; ringkv supports {', '.join(get_args(RopeKind))}"
        )
    if given.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise UnsupportedModel("partial_rotary_factor is not implemented; ringkv rotates the whole head")
    theta = float(given.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if kind == "default":
        return RopeConfig(theta)
    original = (
        raw.get("original_max_position_embeddings")
        or given.get("original_max_position_embeddings")
        or _count(raw, "max_position_embeddings")
    )
    return RopeConfig(theta, kind, **_scaling(raw, given, kind, int(original)))


def _scaling(raw: Raw, given: Raw, kind: str, original: int) -> dict[str, Any]:
    """The fields of `RopeConfig` that this kind uses; what is null in the file keeps our default."""
    used = {
        "linear": (),
        "llama3": ("low_freq_factor", "high_freq_factor"),
        "yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    }[kind]
    factor = given.get("factor")
    if factor is None and kind == "yarn":  # DeepSeek's way of writing it
        factor = _count(raw, "max_position_embeddings") / original
    if not isinstance(factor, int | float) or factor <= 0:
        raise BadWeights(
            f"rope type {kind} needs a positive factor, config.json has {factor!r}; fetch config.json again"
        )
    fields = {name: given[name] for name in used if given.get(name) is not None}
    return {"factor": float(factor), "original_context": original, **fields}


def _count(raw: Raw, key: str, default: int | None = None) -> int:
    """A positive whole number; null in the file means the default."""
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadWeights(f"config.json has {key} {value!r}, a positive number is needed; fetch config.json again")
    return value


def _union(*ids: int | list[int] | None) -> tuple[int, ...]:
    """All ids in order of appearance, each once."""
    flat = [id for group in ids if group is not None for id in (group if isinstance(group, list) else [group])]
    return tuple(dict.fromkeys(flat))


def _check_shapes(config: ModelConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        raise BadWeights(
            f"config.json has {config.num_heads} attention heads over {config.num_kv_heads} key-value heads, "
            "which does not divide; fetch config.json again"
        )
    if config.head_dim % 2:
        raise BadWeights(f"config.json gives head_dim {config.head_dim}; rotary embedding needs an even one")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
