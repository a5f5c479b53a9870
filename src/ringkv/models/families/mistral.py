"""Mistral and its mixtures of experts."""

from ringkv.models.base import ModelConfig, decoder
from ringkv.models.experts import Experts
from ringkv.models.families.routers import EXPERTS, router
from ringkv.models.fields import Raw
from ringkv.models.layer import Layer
from ringkv.models.reading import SILU, attention, common, feed_forward, refuse, rope, sliding, window


def mistral(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """Mistral 7B (arXiv 2310.06825): version 0.1 has a sliding window in every layer, later ones attend to all
    tokens.
    """
    refuse(raw, SILU)
    fields = common(raw, generation, architecture, kv_heads=8)
    layer = Layer(attention(fields), feed_forward(fields), fields["norm"], rope(raw))
    return decoder(fields, layer, sliding=sliding(raw, window(raw), lambda layer: True))


def mixtral(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """Mixtral (arXiv 2401.04088): Mistral with a mixture of experts in every layer."""
    refuse(raw, SILU, supported=EXPERTS)
    fields = common(raw, generation, architecture, kv_heads=8)
    sizes, chosen = (fields["hidden_size"], fields["intermediate_size"]), router(raw, normalised=True)
    experts = Experts(*sizes, chosen, module="block_sparse_moe", gate="w1", up="w3", down="w2")
    layer = Layer(attention(fields), experts, fields["norm"], rope(raw))
    return decoder(fields, layer, sliding=sliding(raw, window(raw, default=None), lambda layer: True))
