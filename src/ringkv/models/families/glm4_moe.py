"""GLM-4.5 and 4.6 (arXiv 2508.06471): DeepSeek-V3's experts, grouped-query attention, and half of each head rotates."""

from dataclasses import dataclass

from ringkv.models.base import ModelConfig
from ringkv.models.experts import Experts
from ringkv.models.families.routers import corrected_router, first_dense
from ringkv.models.fields import Raw, count, flag
from ringkv.models.layer import Attention, FeedForward, Layer, Normed
from ringkv.models.reading import FULL, PARTIAL, SILU, common, refuse, rope
from ringkv.models.sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class _Dense(ModelConfig):
    attention_bias: bool
    qk_norm: Normed

    def layer(self, kind: str) -> Layer:
        heads = self.num_heads, self.num_kv_heads, self.head_dim
        return Layer(
            Attention(self.hidden_size, *heads, bias=self.attention_bias, qk_norm=self.qk_norm),
            FeedForward(self.hidden_size, self.intermediate_size),
            self.norm,
            self.rope,
        )


@dataclass(frozen=True, kw_only=True)
class Glm4Moe(Sparse, _Dense):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Glm4Moe":
        refuse(raw, SILU, FULL, supported=(PARTIAL, "use_qk_norm"))
        fields = common(raw, generation, "Glm4MoeForCausalLM", kv_heads=8, head_dim=128)
        hidden, size = fields["hidden_size"], count(raw, "moe_intermediate_size")
        shared = FeedForward(hidden, size * count(raw, "n_shared_experts", 1), module="mlp.shared_experts")
        return cls(
            **fields,
            rope=rope(raw, fraction=0.5),
            attention_bias=flag(raw, "attention_bias"),
            qk_norm="head" if flag(raw, "use_qk_norm") else "none",
            experts=Experts(hidden, size, corrected_router(raw), shared, correction=True),
            dense=first_dense(raw),
            unused=(f"model.layers.{fields['num_layers']}.*",),  # predicts a second token
        )
