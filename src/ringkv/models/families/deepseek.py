"""DeepSeek-V2 (arXiv 2405.04434), V3 (arXiv 2412.19437) and R1: latent attention and experts."""

from dataclasses import replace

from ringkv.models.base import ModelConfig, decoder
from ringkv.models.experts import Experts
from ringkv.models.families.routers import corrected_router, first_dense, grouped_router, shared_experts
from ringkv.models.fields import Raw, count, flag
from ringkv.models.latent import LatentAttention
from ringkv.models.layer import Layer, RopeConfig, yarn_temperature
from ringkv.models.reading import FULL, SILU, Fields, common, refuse, rope


def deepseek(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    is_v3 = architecture == "DeepseekV3ForCausalLM"
    router = corrected_router(raw) if is_v3 else grouped_router(raw)
    refuse(raw, SILU, FULL, supported=("kv_lora_rank",))
    rotated = count(raw, "qk_rope_head_dim")
    fields = common({**raw, "head_dim": rotated}, generation, architecture)
    size, shared = count(raw, "moe_intermediate_size"), shared_experts(raw, fields)
    experts = Experts(fields["hidden_size"], size, router, shared, correction=is_v3)
    interleaved = flag(raw, "rope_interleave", True) if is_v3 else True
    rotary = replace(rope({**raw, "head_dim": rotated}), width=rotated, interleaved=interleaved)
    layer = Layer(_attention(raw, fields, rotary), experts, fields["norm"], rotary)
    predicting = (f"model.layers.{fields['num_layers']}.*",)  # predicts a second token
    return decoder(fields, layer, first_dense(raw, fields), unused=predicting)


def _attention(raw: Raw, fields: Fields, rotary: RopeConfig) -> LatentAttention:
    nope, rotated = count(raw, "qk_nope_head_dim"), count(raw, "qk_rope_head_dim")
    return LatentAttention(
        fields["hidden_size"],
        fields["num_heads"],
        count(raw, "kv_lora_rank"),
        rotated,
        nope,
        count(raw, "v_head_dim"),
        (nope + rotated) ** -0.5 * _temperature(rotary) ** 2,
        count(raw, "q_lora_rank") if raw.get("q_lora_rank") is not None else None,
        flag(raw, "attention_bias"),
    )


def _temperature(rotary: RopeConfig) -> float:
    """Return YaRN's factor on queries and keys. Cosine and sine have what is left of it."""
    if rotary.kind == "default" or not rotary.mscale_all_dim:
        return 1.0
    return yarn_temperature(rotary.factor, rotary.mscale_all_dim)
