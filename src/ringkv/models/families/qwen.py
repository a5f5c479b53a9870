"""Qwen2 and Qwen3 (Alibaba), dense and with experts."""

from ringkv.models.base import ModelConfig, Sliding, decoder
from ringkv.models.experts import Experts
from ringkv.models.families.routers import EXPERTS, dense_layers, router
from ringkv.models.fields import Raw, Refusal, count, flag
from ringkv.models.layer import FeedForward, Layer
from ringkv.models.reading import SILU, attention, common, feed_forward, refuse, rope, sliding, window

FIRST_LOCAL = 28  # max_window_layers if config.json leaves it out
BIAS = Refusal("qkv_bias", lambda v: v in (None, True), "biases on queries, keys and values")


def qwen2(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """Qwen2 and Qwen2.5 (arXiv 2407.10671): biases on queries, keys and values."""
    refuse(raw, SILU)
    fields = common(raw, generation, architecture, kv_heads=32)
    layer = Layer(attention(fields, bias=True), feed_forward(fields), fields["norm"], rope(raw))
    return decoder(fields, layer, sliding=_sliding(raw))


def qwen2_moe(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671): Qwen2 with experts, and a shared expert with a gate of its own."""
    refuse(raw, SILU, BIAS, supported=EXPERTS)
    fields = common(raw, generation, architecture, kv_heads=16)
    hidden, size = fields["hidden_size"], count(raw, "shared_expert_intermediate_size")
    shared = FeedForward(hidden, size, module="mlp.shared_expert")
    size, chosen = count(raw, "moe_intermediate_size"), router(raw, normalised=False)
    experts = Experts(hidden, size, chosen, shared, shared_gate="shared_expert_gate")
    layer = Layer(attention(fields, bias=True), experts, fields["norm"], rope(raw))
    return decoder(fields, layer, dense_layers(raw, fields), sliding=_sliding(raw))


def qwen3(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """Qwen3 (arXiv 2505.09388): query and key norms; attention has biases only if config.json sets them."""
    refuse(raw, SILU)
    fields, bias = common(raw, generation, architecture, kv_heads=32, head_dim=128), flag(raw, "attention_bias")
    block = attention(fields, bias=bias, output_bias=bias, qk_norm="head")
    return decoder(fields, Layer(block, feed_forward(fields), fields["norm"], rope(raw)), sliding=_sliding(raw))


def qwen3_moe(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    """Qwen3-MoE (arXiv 2505.09388), such as Qwen3-30B-A3B and Qwen3-235B-A22B: Qwen3 with experts."""
    refuse(raw, SILU, supported=EXPERTS)
    fields, bias = common(raw, generation, architecture, kv_heads=4, head_dim=128), flag(raw, "attention_bias")
    block = attention(fields, bias=bias, output_bias=bias, qk_norm="head")
    experts = Experts(fields["hidden_size"], count(raw, "moe_intermediate_size"), router(raw, normalised=False))
    layer = Layer(block, experts, fields["norm"], rope(raw))
    return decoder(fields, layer, dense_layers(raw, fields), sliding=_sliding(raw))


def _sliding(raw: Raw) -> Sliding | None:
    """The layers from `max_window_layers` on have a sliding window, if `use_sliding_window` is set."""
    if not flag(raw, "use_sliding_window"):
        return None
    given = raw.get("max_window_layers")
    first = FIRST_LOCAL if given is None else 0 if given == 0 else count(raw, "max_window_layers")
    return sliding(raw, window(raw), lambda layer: layer >= first)
