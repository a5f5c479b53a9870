"""gguf_config: converts GGUF metadata to the config.json of the model in Hugging Face layout.

Linear and YaRN scaling of the rotary embedding are stored as metadata. Llama 3.1 and later store only the tensor of
divisors that follows from the parameters; the parameters are recovered from it. LongRoPE's factors are two tensors.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf import GGUF
from ringkv.weights.gguf_architectures import Architecture, architecture_of, kind_of

ROPE_DIVISORS = "rope_freqs.weight"
LONGROPE = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
ROPE_TENSORS = frozenset({ROPE_DIVISORS, *LONGROPE.values()})
"""Tensors that parameters in config.json replace."""

SOFTMAX = {
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0, 1),
}
"""Values of a router's keys that change nothing: softmax over all experts, not scaled. The first is the default."""


def config_json(gguf: GGUF) -> dict[str, Any]:
    """Return the content of config.json. Raises UnsupportedModel or BadWeights."""
    kind, architecture = kind_of(gguf), architecture_of(gguf)
    heads, kv_heads = head_counts(gguf, kind)
    hidden = _number(gguf, f"{kind}.embedding_length")
    head_dim = _number(gguf, f"{kind}.attention.key_length", hidden // heads)
    _check_router(gguf, kind, architecture)
    _refuse_window(gguf, kind)
    return {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "vocab_size": _shape(gguf, "token_embd.weight")[0],
        "hidden_size": hidden,
        "intermediate_size": _number(gguf, f"{kind}.feed_forward_length"),
        "num_hidden_layers": _number(gguf, f"{kind}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _decimal(gguf.decimal(f"{kind}.attention.layer_norm_rms_epsilon", 1e-6)),
        "max_position_embeddings": _number(gguf, f"{kind}.context_length"),
        "rope_theta": _theta(gguf, kind),
        "rope_scaling": _rope_scaling(gguf, kind, head_dim),
        "sliding_window": None,
        "attention_bias": not kind.startswith("qwen2") and "blk.0.attn_q.bias" in gguf.names,
        "mlp_bias": "blk.0.ffn_up.bias" in gguf.names,
        "tie_word_embeddings": "output.weight" not in gguf.names,
        "bos_token_id": _token_id(gguf, "bos"),
        "eos_token_id": _token_id(gguf, "eos"),
        "torch_dtype": "bfloat16",
        **_rotated(gguf, kind, architecture, head_dim),
        **_own_settings(gguf, kind, architecture),
    }


def head_counts(gguf: GGUF, kind: str) -> tuple[int, int]:
    """Return the numbers of query heads and key-value heads in a layer."""
    heads = _number(gguf, f"{kind}.attention.head_count")
    return heads, _number(gguf, f"{kind}.attention.head_count_kv", heads)


def _number(gguf: GGUF, key: str, default: int | None = None) -> int:
    value = gguf.get(key, default)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    if isinstance(value, list):
        raise UnsupportedModel(f"{gguf.path} has a different {key} in each layer; ringkv needs one for all")
    if value is None:
        raise BadWeights(f"{gguf.path} has no {key}; fetch another copy of the model")
    if type(value) is not int or value < 1:
        raise BadWeights(
            f"{gguf.path} has {key} {shown(value)}, a positive number is needed; fetch another copy of the model"
        )
    return value


def _shape(gguf: GGUF, name: str) -> tuple[int, ...]:
    if name not in gguf.names:
        raise BadWeights(f"{gguf.path} has no tensor {name}; fetch another copy of the model")
    return gguf.shape(name)


def _token_id(gguf: GGUF, role: str) -> Any:
    """Return a token's id; None if the file has none, or one outside the vocabulary, such as 2 ** 32 - 1."""
    value, size = gguf.get(f"tokenizer.ggml.{role}_token_id"), _shape(gguf, "token_embd.weight")[0]
    return None if type(value) is int and not 0 <= value < size else value


def _rotated(gguf: GGUF, kind: str, architecture: Architecture, head_dim: int) -> dict[str, float]:
    """Return the part of each head that rotates, if the architecture has one; others rotate whole heads."""
    rotated = _number(gguf, f"{kind}.rope.dimension_count", head_dim)
    widths = {"attention.value_length": _number(gguf, f"{kind}.attention.value_length", head_dim)}
    if not architecture.partial:
        widths["rope.dimension_count"] = rotated
    for key, width in widths.items():
        if width != head_dim:
            raise UnsupportedModel(
                f"{gguf.path} has {key} {width} and head_dim {head_dim}; ringkv needs values as wide as keys, "
                "and rotary embedding over the whole head"
            )
    return {"partial_rotary_factor": rotated / head_dim} if architecture.partial else {}


def _own_settings(gguf: GGUF, kind: str, architecture: Architecture) -> dict[str, Any]:
    """Return the settings that only this architecture has."""
    numbers = {name: _number(gguf, f"{kind}.{key}") for name, key in architecture.numbers.items()}
    factors = {name: _decimal(gguf.decimal(f"{kind}.{key}")) for name, key in architecture.factors.items()}
    return numbers | factors | dict(architecture.fixed)


def _check_router(gguf: GGUF, kind: str, architecture: Architecture) -> None:
    normalised = architecture.fixed.get("norm_topk_prob", True)
    for key, harmless in {**SOFTMAX, "expert_weights_norm": (normalised,)}.items():
        if (value := gguf.get(f"{kind}.{key}", harmless[0])) not in harmless:
            raise UnsupportedModel(
                f"{gguf.path} has {key} {shown(value)}, which {architecture.name} does not have; "
                "fetch this model as safetensors"
            )


def _refuse_window(gguf: GGUF, kind: str) -> None:
    """A window shorter than the context changes answers, and a GGUF does not specify which layers have it."""
    if gguf.get(f"{kind}.attention.sliding_window") == 0:
        return
    context = _number(gguf, f"{kind}.context_length")
    window = _number(gguf, f"{kind}.attention.sliding_window", context)
    if window < context:
        raise UnsupportedModel(
            f"{gguf.path} has sliding_window {window} and does not name its layers; fetch this model as safetensors"
        )


def _theta(gguf: GGUF, kind: str) -> float:
    return gguf.decimal(f"{kind}.rope.freq_base", 10000.0)


def _decimal(value: float) -> float:
    """Return the short decimal that a float32 was written as: 9.999999747378752e-06 is 1e-05."""
    with np.errstate(over="ignore"):  # infinity is refused with the other fields of config.json
        return float(str(np.float32(value)))


def _rope_scaling(gguf: GGUF, kind: str, head_dim: int) -> dict[str, Any] | None:
    if ROPE_DIVISORS in gguf.names:
        divisors = np.concatenate(list(gguf.rows(ROPE_DIVISORS))).reshape(-1)
        return _llama3_scaling(gguf, divisors, _theta(gguf, kind), head_dim)
    if set(LONGROPE.values()) <= set(gguf.names):
        return _longrope(gguf, kind)
    scaling = gguf.text(f"{kind}.rope.scaling.type", "none")
    if scaling in ("none", ""):
        return None
    factor = gguf.decimal(f"{kind}.rope.scaling.factor", gguf.decimal(f"{kind}.rope.scale_linear", 0.0))
    if factor <= 0:
        return None
    common = {"rope_type": scaling, "factor": _decimal(factor)}
    return common | _yarn(gguf, kind, factor) if scaling == "yarn" else common


def _longrope(gguf: GGUF, kind: str) -> dict[str, Any]:
    prefix = f"{kind}.rope.scaling"
    factors = {name: np.concatenate(list(gguf.rows(tensor))).reshape(-1) for name, tensor in LONGROPE.items()}
    fields = {
        "rope_type": "longrope",
        "original_max_position_embeddings": _number(gguf, f"{prefix}.original_context_length"),
        **{name: [_decimal(value) for value in values] for name, values in factors.items()},
    }
    given = gguf.decimal(f"{prefix}.attn_factor", 0.0)  # 0: it follows from the two contexts
    return {**fields, "attention_factor": given} if given else fields


def _yarn(gguf: GGUF, kind: str, factor: float) -> dict[str, Any]:
    prefix = f"{kind}.rope.scaling"
    fields: dict[str, Any] = {
        "original_max_position_embeddings": gguf.get(f"{prefix}.original_context_length"),
        "beta_fast": gguf.get(f"{prefix}.yarn_beta_fast"),
        "beta_slow": gguf.get(f"{prefix}.yarn_beta_slow"),
    }
    scale = gguf.decimal(f"{prefix}.attn_factor", 1.0) * gguf.decimal(f"{prefix}.yarn_attn_factor", 1.0)
    if scale != 1:  # in GGUF it multiplies YaRN's own factor, in config.json it replaces it
        fields["attention_factor"] = scale * (0.1 * math.log(factor) + 1)
    return {name: value for name, value in fields.items() if value is not None}


def _llama3_scaling(
    gguf: GGUF, divisors: npt.NDArray[np.float32], theta: float, head_dim: int
) -> dict[str, Any] | None:
    """Return the llama3 parameters of divisors [head_dim / 2]. Only the factor differs between Meta's models."""
    factor = float(divisors.max())
    if factor == 1:
        return None
    parameters = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if divisors.shape != (head_dim // 2,) or not np.allclose(divisors, _llama3_divisors(theta, factor, head_dim), 1e-3):
        raise UnsupportedModel(
            f"{gguf.path} scales its rotary embedding by a tensor {ROPE_DIVISORS} that is not Llama 3.1's rule; "
            "ringkv supports only that of Llama 3.1, 3.2 and 3.3: fetch this model as safetensors"
        )
    return parameters


def _llama3_divisors(theta: float, factor: float, head_dim: int) -> npt.NDArray[np.float64]:
    """Return each frequency's divisor, [head_dim / 2]: 1 for fast ones, `factor` for slow ones, a ramp between."""
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    rotations = 8192 / wavelength  # within the original context; 1 is slow, 4 is fast
    smooth = np.clip((rotations - 1) / (4 - 1), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))
