"""Gemma 3's text models (arXiv 2503.19786): five local layers per global one, sandwich norms, GeGLU.

Local layers have a sliding window and a rotary base of their own. Norms multiply by 1 + weight, and the embedding by
sqrt(hidden_size).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown
from ringkv.models.base import LOCAL, ModelConfig
from ringkv.models.fields import Raw, count, decimal, flag, table, with_defaults
from ringkv.models.layer import SANDWICH, Attention, FeedForward, Layer, Norm, RopeConfig
from ringkv.models.reading import WINDOW, Refusal, common, refuse, rope_of, sliding

GELU = tuple(
    Refusal(name, lambda v: v in (None, "gelu_pytorch_tanh"), "gelu_pytorch_tanh")
    for name in ("hidden_act", "hidden_activation")
)
OUTER = ("eos_token_id", "bos_token_id", "quantization_config")  # outside text_config, for the text model
PATTERN = 6  # sliding_window_pattern if config.json leaves it out: every sixth layer is global
# Defaults of transformers' Gemma3TextConfig; published config.json files leave some of these out.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "eos_token_id": 1,
    "bos_token_id": 2,
}


@dataclass(frozen=True, kw_only=True)
class Gemma3(ModelConfig):
    local_rope: RopeConfig
    query_scalar: float  # query_pre_attn_scalar: scores are divided by its square root
    attention_bias: bool = False

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Gemma3":
        raw = with_defaults(raw, DEFAULTS)
        refuse(raw, *GELU)
        global_rope, local_rope = ropes(raw)
        period = count(raw, "sliding_window_pattern", PATTERN)
        return cls(
            **common(raw, generation, "Gemma3ForCausalLM"),
            rope=global_rope,
            local_rope=local_rope,
            sliding=sliding(raw, count(raw, "sliding_window", WINDOW), lambda layer: (layer + 1) % period != 0),
            query_scalar=decimal(raw, "query_pre_attn_scalar", 256.0),
            attention_bias=flag(raw, "attention_bias"),
        )

    @property
    def norm(self) -> Norm:
        return Norm(self.rms_norm_eps, offset=1.0)

    @property
    def embed_scale(self) -> float:
        return float(self.hidden_size**0.5)

    def layer(self, kind: str) -> Layer:
        heads, bias = (self.num_heads, self.num_kv_heads, self.head_dim), self.attention_bias
        scale = self.query_scalar**-0.5
        is_local = kind == LOCAL
        return Layer(
            Attention(self.hidden_size, *heads, bias=bias, output_bias=bias, qk_norm="head", scale=scale),
            FeedForward(self.hidden_size, self.intermediate_size, activation="gelu_tanh"),
            self.norm,
            self.local_rope if is_local else self.rope,
            norms=SANDWICH,
            window=self.sliding.window if self.sliding and is_local else None,
        )


class Gemma3WithImages:
    """The text model of checkpoints that also take images; config and weights are nested one level deeper."""

    @staticmethod
    def read(raw: Raw, generation: Raw) -> Gemma3:
        return replace(
            Gemma3.read(text_of(raw, OUTER), generation),
            architecture="Gemma3ForConditionalGeneration",
            prefix="language_model.",
            unused=("vision_tower.*", "multi_modal_projector.*"),
        )


def text_of(raw: Raw, outer: Collection[str]) -> dict[str, Any]:
    """Return `text_config`, with the settings named `outer` from the top level of config.json."""
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise BadWeights(f"config.json has text_config {shown(text)}, an object is needed; fetch config.json again")
    return text | {name: raw[name] for name in outer if raw.get(name) is not None}


def ropes(raw: dict[str, Any]) -> tuple[RopeConfig, RopeConfig]:
    """Return the rotary embeddings of global and of local layers. The older spelling scales only the global one."""
    given, base = table(raw, "rope_parameters"), decimal(raw, "rope_local_base_freq", 1e4, above=1.0)
    if "full_attention" in given:
        local_rope = rope_of({**raw, "rope_theta": base}, table(given, "sliding_attention"), base)
        return rope_of(raw, table(given, "full_attention"), 1e6), local_rope
    return rope_of(raw, given or table(raw, "rope_scaling"), 1e6), RopeConfig(base)
