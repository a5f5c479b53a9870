"""Granite 3 and dense Granite 4 (IBM): Llama with factors on embedding, scores, residual and logits.

Granite 4's dense models are of a hybrid family: attention in every layer, and the shared feed-forward alone.
"""

from ringkv.models.base import ModelConfig, decoder
from ringkv.models.fields import Raw, Refusal, count, decimal, flag
from ringkv.models.layer import Layer
from ringkv.models.reading import FULL, SILU, attention, common, feed_forward, refuse, rope

HYBRID = "GraniteMoeHybridForCausalLM"
FACTORS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
ATTENTION = Refusal(
    "layer_types", lambda v: bool(v) and set(v) <= {"attention", "full_attention"}, "attention in every layer, no Mamba"
)
DENSE = Refusal("num_local_experts", lambda v: v == 0, "dense Granite 4 models (num_local_experts 0)")


def granite(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    if architecture == HYBRID:
        refuse(raw, SILU, ATTENTION, DENSE, supported=(*FACTORS, DENSE.setting))
        fields = common({**raw, "intermediate_size": count(raw, "shared_intermediate_size")}, generation, architecture)
        between = feed_forward(fields, module="shared_mlp", fused="input_linear", down="output_linear")
    else:
        refuse(raw, SILU, FULL, supported=FACTORS)
        fields = common(raw, generation, architecture)
        between = feed_forward(fields, bias=flag(raw, "mlp_bias"))
    embedding, scale, residual, logits = (decimal(raw, name, 1.0) for name in FACTORS)
    bias = flag(raw, "attention_bias")
    block = attention(fields, bias=bias, output_bias=bias, scale=scale)
    layer = Layer(block, between, fields["norm"], rope(raw), residual_scale=residual)
    return decoder(fields, layer, embed_scale=embedding, logit_scale=1 / logits)
