"""Gemma 3's text models (arXiv 2503.19786): five local layers per global one, sandwich norms, GeGLU.

Local layers have a sliding window and a rotary base of their own. Norms multiply by 1 + weight, and the embedding by
sqrt(hidden_size).
"""

from collections.abc import Collection
from typing import Any

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown
from ringkv.models.base import ModelConfig, decoder
from ringkv.models.fields import Raw, Refusal, count, decimal, flag, with_defaults
from ringkv.models.layer import SANDWICH, Layer
from ringkv.models.reading import WINDOW, attention, common, feed_forward, refuse, ropes, sliding

GELU = tuple(
    Refusal(name, lambda v: v in (None, "gelu_pytorch_tanh"), "gelu_pytorch_tanh")
    for name in ("hidden_act", "hidden_activation")
)
WITH_IMAGES = "Gemma3ForConditionalGeneration"  # config and weights are nested one level deeper
OUTER = ("eos_token_id", "bos_token_id", "quantization_config")  # outside text_config, for the text model
PATTERN = 6  # sliding_window_pattern if config.json leaves it out: every sixth layer is global
# Defaults of transformers for all models since Gemma 3; published config.json files leave some of these out.
GEMMA: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
DEFAULTS = {**GEMMA, "vocab_size": 262208, "query_pre_attn_scalar": 256}


def gemma3(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    inside: dict[str, Any] = {}
    if architecture == WITH_IMAGES:
        raw = text_of(raw, OUTER)
        inside = {"prefix": "language_model.", "unused": ("vision_tower.*", "multi_modal_projector.*")}
    raw = with_defaults(raw, DEFAULTS)
    refuse(raw, *GELU)
    global_rope, local_rope = ropes(raw, 1e6, decimal(raw, "rope_local_base_freq", 1e4, above=1.0))
    period = count(raw, "sliding_window_pattern", PATTERN)
    fields, bias = common(raw, generation, architecture, offset=1.0), flag(raw, "attention_bias")
    windows = sliding(raw, count(raw, "sliding_window", WINDOW), lambda layer: (layer + 1) % period != 0)
    scale = decimal(raw, "query_pre_attn_scalar", 256.0) ** -0.5
    layer = Layer(
        attention(fields, bias=bias, output_bias=bias, qk_norm="head", scale=scale),
        feed_forward(fields, activation="gelu_tanh"),
        fields["norm"],
        global_rope,
        SANDWICH,
    )
    embed_scale = float(fields["hidden_size"] ** 0.5)
    return decoder(fields, layer, sliding=windows, local={"rope": local_rope}, embed_scale=embed_scale, **inside)


def text_of(raw: Raw, outer: Collection[str]) -> dict[str, Any]:
    """Return the text model's settings, with those named `outer` from the top level, of a model that takes images."""
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise BadWeights(f"config.json has text_config {shown(text)}, an object is needed; fetch config.json again")
    return text | {name: raw[name] for name in outer if raw.get(name) is not None}
