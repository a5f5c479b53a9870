"""Qwen3 (arXiv 2505.09388): query and key norms; attention has biases only if config.json sets them."""

from dataclasses import dataclass

from ringkv.models.base import LOCAL, ModelConfig
from ringkv.models.families.qwen2 import qwen_sliding
from ringkv.models.fields import Raw, flag
from ringkv.models.layer import Attention, FeedForward, Layer
from ringkv.models.reading import SILU, common, refuse, rope


@dataclass(frozen=True, kw_only=True)
class Qwen3(ModelConfig):
    attention_bias: bool = False

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Qwen3":
        refuse(raw, SILU)
        return cls(
            **common(raw, generation, "Qwen3ForCausalLM", kv_heads=32, head_dim=128),
            rope=rope(raw),
            sliding=qwen_sliding(raw),
            attention_bias=flag(raw, "attention_bias"),
        )

    def layer(self, kind: str) -> Layer:
        bias = self.attention_bias
        heads = self.num_heads, self.num_kv_heads, self.head_dim
        return Layer(
            Attention(self.hidden_size, *heads, bias=bias, output_bias=bias, qk_norm="head"),
            FeedForward(self.hidden_size, self.intermediate_size),
            self.norm,
            self.rope,
            window=self.sliding.window if self.sliding and kind == LOCAL else None,
        )
