"""Llama (arXiv 2302.13971, 2407.21783), SmolLM2, and all others of architecture LlamaForCausalLM."""

from dataclasses import dataclass

from ringkv.models.base import ModelConfig
from ringkv.models.fields import Raw, flag
from ringkv.models.layer import Attention, FeedForward, Layer
from ringkv.models.reading import FULL, SILU, common, refuse, refuse_window, rope


@dataclass(frozen=True, kw_only=True)
class Llama(ModelConfig):
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Llama":
        refuse(raw, SILU, FULL)
        refuse_window(raw)
        return cls(
            **common(raw, generation, "LlamaForCausalLM"),
            rope=rope(raw),
            attention_bias=flag(raw, "attention_bias"),
            mlp_bias=flag(raw, "mlp_bias"),
        )

    def layer(self, kind: str) -> Layer:
        bias = self.attention_bias
        return Layer(
            Attention(self.hidden_size, self.num_heads, self.num_kv_heads, self.head_dim, bias=bias, output_bias=bias),
            FeedForward(self.hidden_size, self.intermediate_size, self.mlp_bias),
            self.norm,
            self.rope,
        )
