"""Phi-3 (arXiv 2404.14219), Phi-4 (2412.08905) and Phi-4-mini (2503.01743): fused projections, LongRoPE."""

from ringkv.models.base import ModelConfig, decoder
from ringkv.models.fields import Raw
from ringkv.models.layer import Layer
from ringkv.models.reading import PARTIAL, SILU, attention, common, feed_forward, refuse, rope, sliding, window


def phi3(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    refuse(raw, SILU, supported=(PARTIAL,))
    fields = common(raw, generation, architecture)
    block, between = attention(fields, fused="qkv_proj"), feed_forward(fields, fused="gate_up_proj")
    layer = Layer(block, between, fields["norm"], rope(raw, fraction=1.0))
    return decoder(fields, layer, sliding=sliding(raw, window(raw, default=None), lambda layer: True))
