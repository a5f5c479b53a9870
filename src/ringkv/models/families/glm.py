"""GLM (Zhipu AI), dense and with experts: half of each head rotates."""

from dataclasses import replace

from ringkv.models.base import ModelConfig, decoder
from ringkv.models.experts import Experts
from ringkv.models.families.routers import corrected_router, first_dense, shared_experts
from ringkv.models.fields import Raw, count, flag
from ringkv.models.layer import Layer, Norms
from ringkv.models.reading import FULL, PARTIAL, SILU, attention, common, feed_forward, refuse, rope

NORMS = Norms("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


def glm4(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """GLM-4-0414 (Zhipu AI, 2025): sandwich norms, fused gate and up, and interleaved pairs over half of each head."""
    refuse(raw, SILU, FULL, supported=(PARTIAL,))
    fields = common(raw, generation, architecture, kv_heads=2, head_dim=128)
    block, between = (
        attention(fields, bias=flag(raw, "attention_bias", True)),
        feed_forward(fields, fused="gate_up_proj"),
    )
    rotary = replace(rope(raw, fraction=0.5), interleaved=True)
    return decoder(fields, Layer(block, between, fields["norm"], rotary, NORMS))


def glm4_moe(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """GLM-4.5 and 4.6 (arXiv 2508.06471): DeepSeek-V3's experts, grouped-query attention, and half of each head
    rotates.
    """
    refuse(raw, SILU, FULL, supported=(PARTIAL, "use_qk_norm"))
    fields = common(raw, generation, architecture, kv_heads=8, head_dim=128)
    size, shared = count(raw, "moe_intermediate_size"), shared_experts(raw, fields)
    qk_norm = "head" if flag(raw, "use_qk_norm") else "none"
    block = attention(fields, bias=flag(raw, "attention_bias"), qk_norm=qk_norm)
    experts = Experts(fields["hidden_size"], size, corrected_router(raw), shared, correction=True)
    layer = Layer(block, experts, fields["norm"], rope(raw, fraction=0.5))
    predicting = (f"model.layers.{fields['num_layers']}.*",)  # predicts a second token
    return decoder(fields, layer, first_dense(raw, fields), unused=predicting)
