"""Gemma 4's text models (Google, 2026): wide global heads, per-layer embeddings, KV sharing in trailing layers.

Scores are not scaled; queries, keys and values are normalised. Global layers of larger models have one matrix for keys
and values; of 26B-A4B each layer has experts beside its feed-forward.
"""

from dataclasses import dataclass, replace
from typing import Any

from ringkv.base.router import Router
from ringkv.models.base import LOCAL, SHARED
from ringkv.models.families.gemma3 import GELU
from ringkv.models.families.overrides import global_heads
from ringkv.models.families.routers import EXPERTS, checked
from ringkv.models.families.trailing import (
    INSIDE,
    SHARED_LAYERS,
    Trailing,
    inner_text,
    per_layer_inputs,
    trailing_sources,
)
from ringkv.models.fields import Raw, count, flag, optional_count, optional_decimal, table, texts, with_defaults
from ringkv.models.layer import SANDWICH, Attention, FeedForward, FeedForwardBlock
from ringkv.models.parallel_experts import ParallelExperts
from ringkv.models.per_layer_inputs import PerLayerInputLayer
from ringkv.models.reading import Refusal, common, refuse, rope_of, sliding

CAUSAL = Refusal("use_bidirectional_attention", lambda v: v in (None, False, "vision"), "causal attention to text")
SUPPORTED = (CAUSAL.setting, SHARED_LAYERS, "final_logit_softcapping", *EXPERTS)
FULL, WINDOWED = "full_attention", "sliding_attention"
PATTERN = 6  # every sixth layer is global if config.json leaves layer_types out
# Defaults of transformers' Gemma4TextConfig.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262144,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262144,
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        WINDOWED: {"rope_type": "default", "rope_theta": 1e4},
    },
}


@dataclass(frozen=True, kw_only=True)
class Gemma4(Trailing):
    """global_heads: key-value heads and head_dim of global layers.

    keys_are_values: in global layers. double_wide: feed-forwards of layers with shared caches have twice the elements.
    """

    global_heads: tuple[int, int]
    keys_are_values: bool
    double_wide: bool
    router: Router | None
    expert_size: int

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Gemma4":
        raw = with_defaults(raw, DEFAULTS)
        refuse(raw, *GELU, CAUSAL, supported=SUPPORTED)
        fields, ropes = common(raw, generation, "Gemma4ForCausalLM"), table(raw, "rope_parameters")
        windows = sliding({**raw, "layer_types": _types(raw)}, count(raw, "sliding_window"), lambda layer: False)
        return cls(
            **fields,
            rope=rope_of(raw, table(ropes, FULL), 1e6),
            local_rope=rope_of(raw, table(ropes, WINDOWED), 1e4),
            sliding=windows,
            sources=trailing_sources(raw, windows, optional_count(raw, SHARED_LAYERS)),
            global_heads=global_heads(raw, windows.layers if windows else ()),
            keys_are_values=flag(raw, "attention_k_eq_v"),
            double_wide=flag(raw, "use_double_wide_mlp"),
            attention_bias=flag(raw, "attention_bias"),
            inputs=per_layer_inputs(raw),
            cap=optional_decimal(raw, "final_logit_softcapping") or None,
            **_experts(raw),
        )

    def layer(self, kind: str) -> PerLayerInputLayer:
        is_local, is_shared, bias = kind.startswith(LOCAL), SHARED in kind, self.attention_bias
        return PerLayerInputLayer(
            Attention(
                self.hidden_size,
                self.num_heads,
                *((self.num_kv_heads, self.head_dim) if is_local else self.global_heads),
                bias=bias,
                output_bias=bias,
                qk_norm="head",
                scale=1.0,
                shared=is_shared,
                v_norm=True,
                keys_are_values=self.keys_are_values and not is_local,
            ),
            self._feed_forward(self.intermediate_size * (2 if self.double_wide and is_shared else 1)),
            self.norm,
            self.local_rope if is_local else self.rope,
            norms=SANDWICH,
            window=self.sliding.window if self.sliding and is_local else None,
            inputs=self.inputs.width if self.inputs else 0,
        )

    def _feed_forward(self, size: int) -> FeedForwardBlock:
        dense = FeedForward(self.hidden_size, size, activation="gelu_tanh")
        return ParallelExperts(dense, self.expert_size, self.router) if self.router else dense


class Gemma4WithImages:
    """The text model of checkpoints that also take images and sounds."""

    @staticmethod
    def read(raw: Raw, generation: Raw) -> Gemma4:
        read = Gemma4.read(inner_text(raw), generation)
        return replace(read, architecture="Gemma4ForConditionalGeneration", **INSIDE)


def _types(raw: Raw) -> list[str]:
    """Return the types of layers. The last one is global whatever the file says, as in transformers."""
    layers = range(1, 1 + count(raw, "num_hidden_layers"))
    types = texts(raw, "layer_types") or [WINDOWED if layer % PATTERN else FULL for layer in layers]
    return [*types[:-1], FULL]


def _experts(raw: Raw) -> dict[str, Any]:
    if not flag(raw, "enable_moe_block"):
        return {"router": None, "expert_size": 0}
    chosen = Router(count(raw, "num_experts"), count(raw, "top_k_experts"))
    return {"router": checked(chosen), "expert_size": count(raw, "moe_intermediate_size")}
