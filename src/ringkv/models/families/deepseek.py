"""DeepSeek-V2 (arXiv 2405.04434), V3 (arXiv 2412.19437) and R1: latent attention and experts."""

from dataclasses import dataclass, replace
from typing import Any

from ringkv.base.router import Router
from ringkv.models.base import ModelConfig
from ringkv.models.experts import Experts
from ringkv.models.families.routers import corrected_router, first_dense, grouped_router
from ringkv.models.fields import Raw, count, flag
from ringkv.models.latent import LatentAttention
from ringkv.models.layer import FeedForward, Layer, RopeConfig, yarn_temperature
from ringkv.models.reading import FULL, SILU, common, refuse, rope
from ringkv.models.sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class _Dense(ModelConfig):
    attention: LatentAttention

    def layer(self, kind: str) -> Layer:
        return Layer(self.attention, FeedForward(self.hidden_size, self.intermediate_size), self.norm, self.rope)


@dataclass(frozen=True, kw_only=True)
class DeepSeek(Sparse, _Dense):
    @classmethod
    def read(cls, raw: Raw, generation: Raw, name: str, router: Router, correction: bool) -> "DeepSeek":
        refuse(raw, SILU, FULL, supported=("kv_lora_rank",))
        head = {"head_dim": count(raw, "qk_rope_head_dim")}  # what rotates
        fields = common({**raw, **head}, generation, name)
        rope_config = rope({**raw, **head})
        hidden, size = fields["hidden_size"], count(raw, "moe_intermediate_size")
        shared = FeedForward(hidden, size * count(raw, "n_shared_experts", 1), module="mlp.shared_experts")
        return cls(
            **fields,
            rope=_within_entry(raw, rope_config),
            attention=_attention(raw, fields, rope_config),
            experts=Experts(hidden, size, router, shared, correction=correction),
            dense=first_dense(raw),
            unused=(f"model.layers.{fields['num_layers']}.*",),  # predicts a second token
        )


class DeepSeekV2:
    @staticmethod
    def read(raw: Raw, generation: Raw) -> DeepSeek:
        interleaved, chosen = {**raw, "rope_interleave": True}, grouped_router(raw)
        return DeepSeek.read(interleaved, generation, "DeepseekV2ForCausalLM", chosen, correction=False)


class DeepSeekV3:
    @staticmethod
    def read(raw: Raw, generation: Raw) -> DeepSeek:
        return DeepSeek.read(raw, generation, "DeepseekV3ForCausalLM", corrected_router(raw), correction=True)


def _attention(raw: Raw, fields: dict[str, Any], rope_config: RopeConfig) -> LatentAttention:
    nope, rotated = count(raw, "qk_nope_head_dim"), count(raw, "qk_rope_head_dim")
    return LatentAttention(
        fields["hidden_size"],
        fields["num_heads"],
        count(raw, "kv_lora_rank"),
        rotated,
        nope,
        count(raw, "v_head_dim"),
        (nope + rotated) ** -0.5 * _temperature(rope_config) ** 2,
        count(raw, "q_lora_rank") if raw.get("q_lora_rank") is not None else None,
        flag(raw, "attention_bias"),
    )


def _within_entry(raw: Raw, rope_config: RopeConfig) -> RopeConfig:
    """Return the rotary embedding of cache entries, whose rotated elements follow the latent."""
    width, first = count(raw, "qk_rope_head_dim"), count(raw, "kv_lora_rank")
    return replace(rope_config, width=width, first=first, interleaved=flag(raw, "rope_interleave", True))


def _temperature(rope_config: RopeConfig) -> float:
    """Return YaRN's factor on queries and keys. Cosine and sine have what is left of it."""
    if rope_config.kind == "default" or not rope_config.mscale_all_dim:
        return 1.0
    return yarn_temperature(rope_config.factor, rope_config.mscale_all_dim)
