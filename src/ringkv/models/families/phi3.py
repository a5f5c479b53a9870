"""Phi-3 (arXiv 2404.14219), Phi-4 (2412.08905) and Phi-4-mini (2503.01743): fused projections, LongRoPE."""

from dataclasses import dataclass

from ringkv.models.base import LOCAL, ModelConfig
from ringkv.models.fields import Raw
from ringkv.models.layer import Attention, FeedForward, Layer
from ringkv.models.reading import PARTIAL, SILU, common, refuse, rope, sliding, window


@dataclass(frozen=True, kw_only=True)
class Phi3(ModelConfig):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Phi3":
        refuse(raw, SILU, supported=(PARTIAL,))
        return cls(
            **common(raw, generation, "Phi3ForCausalLM"),
            rope=rope(raw, fraction=1.0),
            sliding=sliding(raw, window(raw, default=None), lambda layer: True),
        )

    def layer(self, kind: str) -> Layer:
        return Layer(
            Attention(self.hidden_size, self.num_heads, self.num_kv_heads, self.head_dim, fused="qkv_proj"),
            FeedForward(self.hidden_size, self.intermediate_size, fused="gate_up_proj"),
            self.norm,
            self.rope,
            window=self.sliding.window if self.sliding and kind == LOCAL else None,
        )
