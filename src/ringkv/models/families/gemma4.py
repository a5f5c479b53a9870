"""Gemma 4's text models (Google, 2026): wide global heads, per-layer embeddings, KV sharing in trailing layers.

Scores are not scaled; queries, keys and values are normalised. Global layers of larger models have one matrix for keys
and values; of 26B-A4B each layer has experts beside its feed-forward.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.router import Router
from ringkv.base.shown import shown_names
from ringkv.models.base import Change, ModelConfig
from ringkv.models.experts import ParallelExperts
from ringkv.models.families.gemma3 import GELU, GEMMA
from ringkv.models.families.routers import EXPERTS, checked
from ringkv.models.families.trailing import SHARED_LAYERS, inner_text, per_layer_inputs, trailing
from ringkv.models.fields import Raw, Refusal, count, flag, optional_count, table, texts, with_defaults
from ringkv.models.gemma_layers import PerLayerInputLayer
from ringkv.models.layer import SANDWICH, FeedForward, FeedForwardBlock
from ringkv.models.reading import attention, common, refuse, rope_of, sliding

CAUSAL = Refusal("use_bidirectional_attention", lambda v: v in (None, False, "vision"), "causal attention to text")
HEADS, WIDTH = "num_key_value_heads", "head_dim"
GLOBAL_WIDTH = 512  # global_head_dim if config.json leaves it out
FULL, WINDOWED = "full_attention", "sliding_attention"
PATTERN = 6  # every sixth layer is global if config.json leaves layer_types out
# Defaults of transformers' Gemma4TextConfig.
DEFAULTS: dict[str, Any] = {
    **GEMMA,
    "vocab_size": 262144,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262144,
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        WINDOWED: {"rope_type": "default", "rope_theta": 1e4},
    },
}


def gemma4(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    raw, inside = inner_text(raw, architecture)
    raw = with_defaults(raw, DEFAULTS)
    refuse(raw, *GELU, CAUSAL, supported=(CAUSAL.setting, SHARED_LAYERS, "final_logit_softcapping", *EXPERTS))
    fields, ropes = common(raw, generation, architecture), table(raw, "rope_parameters")
    windows = sliding({**raw, "layer_types": _types(raw)}, count(raw, "sliding_window"), lambda layer: False)
    global_rope, local_rope = (
        rope_of(raw, table(ropes, type), theta) for type, theta in ((FULL, 1e6), (WINDOWED, 1e4))
    )
    kv_heads, head_dim = _global_heads(raw, windows.layers if windows else ())
    bias, inputs = flag(raw, "attention_bias"), per_layer_inputs(raw)
    block = attention(fields, bias=bias, output_bias=bias, qk_norm="head", scale=1.0, v_norm=True)
    layer = PerLayerInputLayer(
        replace(block, kv_heads=kv_heads, head_dim=head_dim, keys_are_values=flag(raw, "attention_k_eq_v")),
        _feed_forward(raw, fields["hidden_size"], fields["intermediate_size"]),
        fields["norm"],
        global_rope,
        SANDWICH,
        inputs=inputs.width if inputs else 0,
    )
    wide = _feed_forward(raw, fields["hidden_size"], 2 * fields["intermediate_size"])
    first = fields["num_layers"] - optional_count(raw, SHARED_LAYERS)
    double = range(first, fields["num_layers"]) if flag(raw, "use_double_wide_mlp") else ()
    return trailing(
        raw,
        fields,
        layer,
        Change("", double, {"feed_forward": wide}),
        sliding=windows,
        local={"rope": local_rope, "attention": block},
        inputs=inputs,
        **inside,
    )


def _feed_forward(raw: Raw, hidden: int, size: int) -> FeedForwardBlock:
    dense = FeedForward(hidden, size, activation="gelu_tanh")
    if not flag(raw, "enable_moe_block"):
        return dense
    router = checked(Router(count(raw, "num_experts"), count(raw, "top_k_experts")))
    return ParallelExperts(dense, count(raw, "moe_intermediate_size"), router)


def _types(raw: Raw) -> list[str]:
    """Return the types of layers. The last one is global whatever the file says, as in transformers."""
    layers = range(1, 1 + count(raw, "num_hidden_layers"))
    types = texts(raw, "layer_types") or [WINDOWED if layer % PATTERN else FULL for layer in layers]
    return [*types[:-1], FULL]


def _global_heads(raw: Raw, local: Collection[int]) -> tuple[int, int]:
    """Return key-value heads and head_dim of the layers that are not `local`, in either spelling.

    Published files have `global_head_dim` and `num_global_key_value_heads`; transformers writes `per_layer_config`.
    """
    kv_heads, width = _listed(raw, local) if table(raw, "per_layer_config") else _named(raw)
    heads = count(raw, "num_attention_heads")
    if heads % kv_heads or width % 2:
        raise BadWeights(
            f"config.json has {heads} attention heads over {kv_heads} key-value heads of {width} elements in global "
            "layers, which does not fit; fetch config.json again"
        )
    return kv_heads, width


def _named(raw: Raw) -> tuple[int, int]:
    heads = count(raw, HEADS)
    if flag(raw, "attention_k_eq_v"):
        heads = count(raw, "num_global_key_value_heads", heads)
    return heads, count(raw, "global_head_dim", GLOBAL_WIDTH)


def _listed(raw: Raw, local: Collection[int]) -> tuple[int, int]:
    """Return what `per_layer_config` says of each global layer. Other layers must be as the model's other settings."""
    # With ten layers or more, transformers writes "05".
    given = {name.lstrip("0") or "0": sizes for name, sizes in table(raw, "per_layer_config").items()}
    usual = count(raw, HEADS), count(raw, WIDTH)
    each = [_sizes(table(given, str(index)), usual) for index in range(count(raw, "num_hidden_layers"))]
    everywhere = {sizes for index, sizes in enumerate(each) if index not in local}
    if not set(given) <= {str(index) for index in range(len(each))} or any(each[index] != usual for index in local):
        raise _refused("other layers than those with full_attention")
    if len(everywhere) != 1:
        raise _refused("different sizes in layers with full_attention")
    return everywhere.pop()


def _sizes(given: Raw, usual: tuple[int, int]) -> tuple[int, int]:
    if others := set(given) - {HEADS, WIDTH}:
        raise _refused(shown_names(sorted(others)))
    return count(given, HEADS, usual[0]), count(given, WIDTH, usual[1])


def _refused(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"per_layer_config with {what} is not implemented; ringkv supports one {HEADS} and one {WIDTH} for all layers "
        "with full_attention"
    )
