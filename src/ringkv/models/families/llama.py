"""Llama (arXiv 2302.13971, 2407.21783), SmolLM2, and all others of architecture LlamaForCausalLM.

With `cla_share_factor` f in config.json, f consecutive layers share the first one's keys and values (Cross-Layer
Attention, arXiv 2405.12981).
"""

from dataclasses import dataclass

from ringkv.models.base import SHARED, ModelConfig
from ringkv.models.fields import Raw, count, flag
from ringkv.models.layer import Attention, FeedForward, Layer
from ringkv.models.reading import FULL, SILU, common, refuse, refuse_window, rope


@dataclass(frozen=True, kw_only=True)
class Llama(ModelConfig):
    attention_bias: bool = False
    mlp_bias: bool = False
    share_factor: int = 1

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Llama":
        refuse(raw, SILU, FULL, supported=("use_cla",))
        refuse_window(raw)
        return cls(
            **common(raw, generation, "LlamaForCausalLM"),
            rope=rope(raw),
            attention_bias=flag(raw, "attention_bias"),
            mlp_bias=flag(raw, "mlp_bias"),
            share_factor=share_factor(raw),
        )

    @property
    def kv_source(self) -> tuple[int, ...]:
        return tuple(layer // self.share_factor * self.share_factor for layer in range(self.num_layers))

    def layer(self, kind: str) -> Layer:
        heads, bias, shared = (self.num_heads, self.num_kv_heads, self.head_dim), self.attention_bias, SHARED in kind
        return Layer(
            Attention(self.hidden_size, *heads, bias=bias, output_bias=bias, shared=shared),
            FeedForward(self.hidden_size, self.intermediate_size, self.mlp_bias),
            self.norm,
            self.rope,
        )


def share_factor(raw: Raw) -> int:
    """Return how many consecutive layers share one cache; 1 if `use_cla` is false."""
    return count(raw, "cla_share_factor", 1) if flag(raw, "use_cla", True) else 1
