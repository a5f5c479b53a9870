"""Llama and what differs from it in few settings.

With `cla_share_factor` f in config.json, f consecutive layers share the first one's keys and values (Cross-Layer
Attention, arXiv 2405.12981).
"""

from ringkv.base.errors import BadWeights
from ringkv.models.base import Change, ModelConfig, decoder
from ringkv.models.fields import Raw, Refusal, count, flag
from ringkv.models.layer import Layer
from ringkv.models.reading import FULL, SILU, attention, common, feed_forward, refuse, refuse_window, rope

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
