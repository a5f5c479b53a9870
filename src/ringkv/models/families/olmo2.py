"""OLMo 2 (arXiv 2501.00656) and OLMo 3 (arXiv 2512.13961): norms after each block, and over all query and key heads.

OLMo 3 has a sliding window in three of four layers; a scaled rotary embedding applies to the other layers.
"""

from dataclasses import dataclass

from ringkv.models.base import LOCAL, ModelConfig
from ringkv.models.fields import Raw, decimal, flag, table
from ringkv.models.layer import POST, Attention, FeedForward, Layer, RopeConfig
from ringkv.models.reading import FULL, SILU, common, refuse, rope, rope_of, sliding, window

PERIOD = 4  # every fourth layer of OLMo 3 attends to all tokens, if config.json leaves layer_types out
THETA = 500000.0


@dataclass(frozen=True, kw_only=True)
class Olmo2(ModelConfig):
    local_rope: RopeConfig
    attention_bias: bool = False

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Olmo2":
        refuse(raw, SILU, FULL)
        one = rope(raw)
        fields = common(raw, generation, "Olmo2ForCausalLM")
        return cls(**fields, rope=one, local_rope=one, attention_bias=flag(raw, "attention_bias"))

    def layer(self, kind: str) -> Layer:
        bias, is_local = self.attention_bias, kind == LOCAL
        heads = self.num_heads, self.num_kv_heads, self.head_dim
        return Layer(
            Attention(self.hidden_size, *heads, bias=bias, output_bias=bias, qk_norm="all"),
            FeedForward(self.hidden_size, self.intermediate_size),
            self.norm,
            self.local_rope if is_local else self.rope,
            norms=POST,
            window=self.sliding.window if self.sliding and is_local else None,
        )


@dataclass(frozen=True, kw_only=True)
class Olmo3(Olmo2):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Olmo3":
        refuse(raw, SILU)
        global_rope, local_rope = _ropes(raw)
        return cls(
            **common(raw, generation, "Olmo3ForCausalLM"),
            rope=global_rope,
            local_rope=local_rope,
            sliding=sliding(raw, window(raw), lambda layer: (layer + 1) % PERIOD != 0),
            attention_bias=flag(raw, "attention_bias"),
        )


def _ropes(raw: Raw) -> tuple[RopeConfig, RopeConfig]:
    """Return the rotary embeddings of global and of local layers. The older spelling scales only the global one."""
    given = table(raw, "rope_parameters")
    if "full_attention" in given:
        every = (table(given, name) for name in ("full_attention", "sliding_attention"))
        global_rope, local_rope = (rope_of(raw, one, THETA) for one in every)
        return global_rope, local_rope
    return rope(raw, THETA), RopeConfig(decimal(raw, "rope_theta", THETA, above=1.0))
