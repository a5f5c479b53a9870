"""Gemma 3n's text models (Google, 2025): four streams (AltUp), per-layer embeddings, KV sharing in trailing layers.

Beside attention is a low-rank branch (LAuReL). The first layers' feed-forwards zero all gates but the largest.
"""

from typing import Any

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.shown import shown
from ringkv.models.base import Change, ModelConfig
from ringkv.models.families.gemma3 import GELU, GEMMA
from ringkv.models.families.trailing import SHARED_LAYERS, inner_text, per_layer_inputs, trailing
from ringkv.models.fields import Raw, count, decimal, flag, optional_count, optional_decimal, with_defaults
from ringkv.models.gemma_layers import AltUpLayer, Streams
from ringkv.models.layer import SANDWICH, GaussianTopK
from ringkv.models.reading import attention, common, feed_forward, refuse, ropes, sliding

PERIOD = 5  # every fifth layer is global if config.json leaves layer_types out
SPARSITY, SPARSE_LAYERS = 0.95, 10  # of models with more layers, if config.json leaves them out
SPARSITIES = "activation_sparsity_pattern"
# Defaults of transformers' Gemma3nTextConfig.
DEFAULTS: dict[str, Any] = {
    **GEMMA,
    "vocab_size": 262400,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 262144,
    "altup_num_inputs": 4,
    "laurel_rank": 64,
    "intermediate_size": 16384,
    SHARED_LAYERS: 15,
}


def gemma3n(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    raw, inside = inner_text(raw, architecture)
    raw = with_defaults(raw, DEFAULTS)
    raw["intermediate_size"] = _one_size(raw["intermediate_size"])
    refuse(raw, *GELU, supported=(SHARED_LAYERS, "final_logit_softcapping"))
    global_rope, local_rope = ropes(raw, 1e6, decimal(raw, "rope_local_base_freq", 1e4, above=1.0))
    windows = sliding(raw, count(raw, "sliding_window"), lambda layer: (layer + 1) % PERIOD != 0)
    if (inputs := per_layer_inputs(raw)) is None:
        raise UnsupportedModel("hidden_size_per_layer_input 0 is not implemented for Gemma 3n; ringkv supports 256")
    fields, bias = common(raw, generation, architecture), flag(raw, "attention_bias")
    streams, active = _streams(raw)
    between = feed_forward(fields, activation="gelu_tanh")
    layer = AltUpLayer(
        attention(fields, bias=bias, output_bias=bias, qk_norm="head", scale=1.0, v_norm=True),
        between,
        fields["norm"],
        global_rope,
        SANDWICH,
        inputs=inputs.width,
        streams=streams,
        active=active,
        is_scaled=flag(raw, "altup_correct_scale", True),
        rank=count(raw, "laurel_rank"),
    )
    layers, sparsity = _sparse(raw)
    sparse = {
        "feed_forward": GaussianTopK(between.hidden, between.intermediate, activation="gelu_tanh", sparsity=sparsity)
    }
    return trailing(
        raw,
        fields,
        layer,
        Change("-sparse", layers, sparse),
        sliding=windows,
        local={"rope": local_rope},
        inputs=inputs,
        streams=Streams(streams, between.hidden),
        **inside,
    )


def _one_size(given: Any) -> Any:
    """Return the size of all feed-forwards, which published files list by layer."""
    if not isinstance(given, list):
        return given
    if not given or any(size != given[0] for size in given):
        raise UnsupportedModel(
            f"intermediate_size {shown(given)} is not implemented; ringkv supports one size for all layers"
        )
    return given[0]


def _streams(raw: Raw) -> tuple[int, int]:
    """Return the number of streams, and which one is computed."""
    streams, active = count(raw, "altup_num_inputs"), optional_count(raw, "altup_active_idx")
    if not active < streams or streams < 2:
        raise BadWeights(
            f"config.json has altup_active_idx {active} of {streams} streams, which does not fit; "
            "fetch config.json again"
        )
    return streams, active


def _sparse(raw: Raw) -> tuple[list[int], float]:
    """Return the layers whose feed-forwards are sparse, and their sparsity."""
    layers, given = count(raw, "num_hidden_layers"), raw.get(SPARSITIES)
    if given is None:
        first = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
        given = [SPARSITY] * first + [0.0] * (layers - first)
    if not isinstance(given, list) or len(given) != layers:
        raise BadWeights(f"config.json needs {SPARSITIES} as a list of {layers} numbers; fetch config.json again")
    each = [optional_decimal({SPARSITIES: share}, SPARSITIES) or 0.0 for share in given]
    shares = set(filter(None, each))
    if len(shares) > 1 or any(share >= 1 for share in shares):
        raise UnsupportedModel(
            f"{SPARSITIES} {shown(given)} is not implemented; ringkv supports 0 and one number below 1"
        )
    return [index for index, share in enumerate(each) if share], next(iter(shares), SPARSITY)
