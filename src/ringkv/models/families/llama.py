"""Llama and what differs from it in few settings: SmolLM3, Mistral and Phi.

With `cla_share_factor` f in config.json, f consecutive layers share the first one's keys and values (Cross-Layer
Attention, arXiv 2405.12981).
"""

from ringkv.base.errors import BadWeights
from ringkv.models.base import Change, ModelConfig, decoder
from ringkv.models.experts import Experts
from ringkv.models.families.routers import EXPERTS, router
from ringkv.models.fields import Raw, Refusal, count, flag
from ringkv.models.layer import Layer
from ringkv.models.reading import (
    FULL,
    PARTIAL,
    SILU,
    attention,
    common,
    feed_forward,
    refuse,
    refuse_window,
    rope,
    sliding,
    window,
)

LISTED = ("no_rope_layers", "no_rope_layer_interval")
PERIOD = 4  # no_rope_layer_interval if config.json leaves it out
WINDOW = Refusal("use_sliding_window", lambda v: not v, "full attention in every layer")


def llama(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """Llama (arXiv 2302.13971, 2407.21783), SmolLM2, and all others of architecture LlamaForCausalLM."""
    refuse(raw, SILU, FULL, supported=("use_cla",))
    refuse_window(raw)
    fields, bias = common(raw, generation, architecture), flag(raw, "attention_bias")
    block, between = attention(fields, bias=bias, output_bias=bias), feed_forward(fields, bias=flag(raw, "mlp_bias"))
    return decoder(fields, Layer(block, between, fields["norm"], rope(raw)), kv_source=kv_source(raw))


def kv_source(raw: Raw) -> tuple[int, ...]:
    """Return the layer whose keys and values each layer attends to; its own if `use_cla` is false."""
    factor = count(raw, "cla_share_factor", 1) if flag(raw, "use_cla", True) else 1
    return tuple(layer // factor * factor for layer in range(count(raw, "num_hidden_layers")))


def smollm3(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """SmolLM3 (Hugging Face, 2025): Llama without rotary embedding in every fourth layer (NoPE, arXiv 2305.19466)."""
    refuse(raw, SILU, FULL, WINDOW, supported=LISTED)
    tied, bias = {"tie_word_embeddings": flag(raw, "tie_word_embeddings", True)}, flag(raw, "attention_bias")
    fields = common({**raw, **tied}, generation, architecture)
    block, between = attention(fields, bias=bias, output_bias=bias), feed_forward(fields, bias=flag(raw, "mlp_bias"))
    return decoder(
        fields, Layer(block, between, fields["norm"], rope(raw, 2e6)), Change("-nope", _nope(raw), {"rope": None})
    )


def _nope(raw: Raw) -> tuple[int, ...]:
    """Return the layers with a 0 in `no_rope_layers`, or every `no_rope_layer_interval`-th one."""
    layers, listed = count(raw, "num_hidden_layers"), raw.get(LISTED[0])
    if listed is None:
        period = count(raw, LISTED[1], PERIOD)
        return tuple(range(period - 1, layers, period))
    if not isinstance(listed, list) or len(listed) != layers or not all(value in (0, 1) for value in listed):
        raise BadWeights(
            f"config.json needs {LISTED[0]} as a list of 0 and 1 for its {layers} layers; fetch config.json again"
        )
    return tuple(layer for layer, rotates in enumerate(listed) if not rotates)


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


def phi3(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """Phi-3 (arXiv 2404.14219), Phi-4 (2412.08905) and Phi-4-mini (2503.01743): fused projections, LongRoPE."""
    refuse(raw, SILU, supported=(PARTIAL,))
    fields = common(raw, generation, architecture)
    block, between = attention(fields, fused="qkv_proj"), feed_forward(fields, fused="gate_up_proj")
    layer = Layer(block, between, fields["norm"], rope(raw, fraction=1.0))
    return decoder(fields, layer, sliding=sliding(raw, window(raw, default=None), lambda layer: True))
