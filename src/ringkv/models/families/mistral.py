"""Mistral 7B (arXiv 2310.06825): version 0.1 has a sliding window in every layer, later ones attend to all tokens."""

from dataclasses import dataclass

from ringkv.models.base import LOCAL, ModelConfig
from ringkv.models.fields import Raw
from ringkv.models.layer import Attention, FeedForward, Layer
from ringkv.models.reading import SILU, common, refuse, rope, sliding, window


@dataclass(frozen=True, kw_only=True)
class Mistral(ModelConfig):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Mistral":
        refuse(raw, SILU)
        return cls(
            **common(raw, generation, "MistralForCausalLM", kv_heads=8),
            rope=rope(raw),
            sliding=sliding(raw, window(raw), lambda layer: True),
        )

    def layer(self, kind: str) -> Layer:
        return Layer(
            Attention(self.hidden_size, self.num_heads, self.num_kv_heads, self.head_dim),
            FeedForward(self.hidden_size, self.intermediate_size),
            self.norm,
            self.rope,
            window=self.sliding.window if self.sliding and kind == LOCAL else None,
        )
