"""gpt-oss (arXiv 2508.10925): sink logits, alternating sliding windows, experts with a clamped SwiGLU."""

from ringkv.models.base import ModelConfig, decoder
from ringkv.models.experts import StackedExperts
from ringkv.models.families.routers import EXPERTS, router
from ringkv.models.fields import Raw, Refusal, flag
from ringkv.models.layer import Layer
from ringkv.models.reading import SILU, attention, common, refuse, rope, sliding, window

ROPES = ("rope_parameters", "rope_scaling")
CLAMPED = (
    Refusal("swiglu_limit", lambda v: v in (None, 7), "gates and ups that are clamped at 7"),
    Refusal("swiglu_alpha", lambda v: v in (None, 1.702), "gates with a sigmoid of 1.702 times their value"),
)
# Defaults of transformers' GptOssConfig.
WINDOW = 128
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}


def gpt_oss(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    refuse(raw, SILU, *CLAMPED, supported=EXPERTS)
    fields = common(raw, generation, architecture, kv_heads=8, head_dim=64)
    sizes, chosen = (fields["hidden_size"], fields["intermediate_size"]), router(raw, normalised=True)
    rotary = rope(raw if any(map(raw.get, ROPES)) else {**raw, ROPES[0]: YARN}, theta=150000.0)
    bias = flag(raw, "attention_bias", True)
    experts = StackedExperts(*sizes, chosen, activation="clamped_swiglu", router_name="router")
    layer = Layer(attention(fields, bias=bias, output_bias=bias, sinks=True), experts, fields["norm"], rotary)
    return decoder(fields, layer, sliding=sliding(raw, window(raw, WINDOW), lambda layer: layer % 2 == 0))
