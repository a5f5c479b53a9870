"""Granite 3 and dense Granite 4 (IBM): Llama with factors on embedding, scores, residual and logits."""

from dataclasses import dataclass
from typing import Any

from ringkv.models.base import ModelConfig
from ringkv.models.fields import Raw, count, decimal, flag
from ringkv.models.layer import Attention, FeedForward, Layer
from ringkv.models.reading import FULL, SILU, Refusal, common, refuse, rope

FACTORS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
ATTENTION = Refusal(
    "layer_types", lambda v: bool(v) and set(v) <= {"attention", "full_attention"}, "attention in every layer, no Mamba"
)
DENSE = Refusal("num_local_experts", lambda v: v == 0, "dense Granite 4 models (num_local_experts 0)")


@dataclass(frozen=True, kw_only=True)
class Granite(ModelConfig):
    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Granite":
        refuse(raw, SILU, FULL, supported=FACTORS)
        return cls(
            **common(raw, generation, "GraniteForCausalLM"),
            **_factors(raw),
            rope=rope(raw),
            attention_bias=flag(raw, "attention_bias"),
            mlp_bias=flag(raw, "mlp_bias"),
        )

    @property
    def embed_scale(self) -> float:
        return self.embedding_multiplier

    @property
    def logit_scale(self) -> float:
        return 1 / self.logits_scaling

    def layer(self, kind: str) -> Layer:
        heads, bias = (self.num_heads, self.num_kv_heads, self.head_dim), self.attention_bias
        return Layer(
            Attention(self.hidden_size, *heads, bias=bias, output_bias=bias, scale=self.attention_multiplier),
            self.feed_forward(),
            self.norm,
            self.rope,
            residual_scale=self.residual_multiplier,
        )

    def feed_forward(self) -> FeedForward:
        return FeedForward(self.hidden_size, self.intermediate_size, self.mlp_bias)


@dataclass(frozen=True, kw_only=True)
class Granite4(Granite):
    """The dense models of the hybrid family: attention in every layer, and the shared feed-forward alone."""

    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Granite4":
        refuse(raw, SILU, ATTENTION, DENSE, supported=(*FACTORS, "num_local_experts"))
        width = {"intermediate_size": count(raw, "shared_intermediate_size")}
        return cls(
            **common({**raw, **width}, generation, "GraniteMoeHybridForCausalLM"),
            **_factors(raw),
            rope=rope(raw),
            attention_bias=flag(raw, "attention_bias"),
        )

    def feed_forward(self) -> FeedForward:
        return FeedForward(
            self.hidden_size, self.intermediate_size, module="shared_mlp", fused="input_linear", down="output_linear"
        )


def _factors(raw: Raw) -> dict[str, Any]:
    return {name: decimal(raw, name, 1.0) for name in FACTORS}
