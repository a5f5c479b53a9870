"""OLMo 2 (arXiv 2501.00656) and OLMo 3 (arXiv 2512.13961): norms after each block, and over all query and key heads.

OLMo 3 has a sliding window in three of four layers; a scaled rotary embedding applies to the other layers.
"""

from ringkv.models.base import ModelConfig, decoder
from ringkv.models.fields import Raw, decimal, flag
from ringkv.models.layer import POST, Layer
from ringkv.models.reading import FULL, SILU, attention, common, feed_forward, refuse, rope, ropes, sliding, window

PERIOD = 4  # every fourth layer of OLMo 3 attends to all tokens, if config.json leaves layer_types out
THETA = 500000.0


def olmo(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    has_windows = architecture == "Olmo3ForCausalLM"
    refuse(raw, SILU, *(() if has_windows else (FULL,)))
    base = decimal(raw if raw.get("rope_theta") else {}, "rope_theta", THETA, above=1.0) if has_windows else THETA
    global_rope, local_rope = ropes(raw, THETA, base) if has_windows else (rope(raw), None)
    fields, bias = common(raw, generation, architecture), flag(raw, "attention_bias")
    windows = sliding(raw, window(raw), lambda layer: (layer + 1) % PERIOD != 0) if has_windows else None
    block = attention(fields, bias=bias, output_bias=bias, qk_norm="all")
    layer = Layer(block, feed_forward(fields), fields["norm"], global_rope, POST)
    return decoder(fields, layer, sliding=windows, local={"rope": local_rope})
