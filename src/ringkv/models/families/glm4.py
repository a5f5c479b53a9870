"""GLM-4-0414 (Zhipu AI, 2025): sandwich norms, fused gate and up, and interleaved pairs over half of each head."""

from dataclasses import dataclass, replace

from ringkv.models.base import ModelConfig
from ringkv.models.fields import Raw, flag
from ringkv.models.layer import Attention, FeedForward, Layer, Norms
from ringkv.models.reading import FULL, PARTIAL, SILU, common, refuse, rope

NORMS = Norms("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


@dataclass(frozen=True, kw_only=True)
class Glm4(ModelConfig):
    attention_bias: bool

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Glm4":
        refuse(raw, SILU, FULL, supported=(PARTIAL,))
        return cls(
            **common(raw, generation, "Glm4ForCausalLM", kv_heads=2, head_dim=128),
            rope=replace(rope(raw, fraction=0.5), interleaved=True),
            attention_bias=flag(raw, "attention_bias", True),
        )

    def layer(self, kind: str) -> Layer:
        heads = self.num_heads, self.num_kv_heads, self.head_dim
        return Layer(
            Attention(self.hidden_size, *heads, bias=self.attention_bias),
            FeedForward(self.hidden_size, self.intermediate_size, fused="gate_up_proj"),
            self.norm,
            self.rope,
            norms=NORMS,
        )
