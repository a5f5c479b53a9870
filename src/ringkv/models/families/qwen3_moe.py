"""Qwen3-MoE (arXiv 2505.09388), such as Qwen3-30B-A3B and Qwen3-235B-A22B: Qwen3 with experts."""

from dataclasses import dataclass

from ringkv.models.experts import Experts
from ringkv.models.families.qwen2 import qwen_sliding
from ringkv.models.families.qwen3 import Qwen3
from ringkv.models.families.routers import EXPERTS, dense_layers, router
from ringkv.models.fields import Raw, count, flag
from ringkv.models.reading import SILU, common, refuse, rope
from ringkv.models.sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class Qwen3Moe(Sparse, Qwen3):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Qwen3Moe":
        refuse(raw, SILU, supported=EXPERTS)
        fields = common(raw, generation, "Qwen3MoeForCausalLM", kv_heads=4, head_dim=128)
        size, chosen = count(raw, "moe_intermediate_size"), router(raw, normalised=False)
        return cls(
            **fields,
            rope=rope(raw),
            sliding=qwen_sliding(raw),
            attention_bias=flag(raw, "attention_bias"),
            experts=Experts(fields["hidden_size"], size, chosen),
            dense=dense_layers(raw),
        )
