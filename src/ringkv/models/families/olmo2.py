"""OLMo 2 (arXiv 2501.00656) and OLMo 3 (arXiv 2512.13961): norms after each block, and over all query and key heads.

OLMo 3 has a sliding window in three of four layers; a scaled rotary embedding applies to the other layers.
"""

from ringkv.models.base import ModelConfig, decoder
from ringkv.models.fields import Raw, decimal, flag, table
from ringkv.models.layer import POST, Layer, RopeConfig
from ringkv.models.reading import FULL, SILU, attention, common, feed_forward, refuse, rope, rope_of, sliding, window

PERIOD = 4  # every fourth layer of OLMo 3 attends to all tokens, if config.json leaves layer_types out
THETA = 500000.0


def olmo(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    has_windows = architecture == "Olmo3ForCausalLM"
    refuse(raw, SILU, *(() if has_windows else (FULL,)))
    global_rope, local_rope = _ropes(raw) if has_windows else (rope(raw), None)
    fields, bias = common(raw, generation, architecture), flag(raw, "attention_bias")
    windows = sliding(raw, window(raw), lambda layer: (layer + 1) % PERIOD != 0) if has_windows else None
    block = attention(fields, bias=bias, output_bias=bias, qk_norm="all")
    layer = Layer(block, feed_forward(fields), fields["norm"], global_rope, POST)
    return decoder(fields, layer, sliding=windows, local={"rope": local_rope})


def _ropes(raw: Raw) -> tuple[RopeConfig, RopeConfig]:
    """Return the rotary embeddings of global and of local layers. The older spelling scales only the global one."""
    given = table(raw, "rope_parameters")
    if "full_attention" in given:
        every = (table(given, name) for name in ("full_attention", "sliding_attention"))
        global_rope, local_rope = (rope_of(raw, spelled, THETA) for spelled in every)
        return global_rope, local_rope
    return rope(raw, THETA), RopeConfig(decimal(raw, "rope_theta", THETA, above=1.0))
