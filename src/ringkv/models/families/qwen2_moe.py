"""Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671): Qwen2 with experts, and a shared expert with a gate of its own."""

from dataclasses import dataclass

from ringkv.models.experts import Experts
from ringkv.models.families.qwen2 import Qwen2, qwen_sliding
from ringkv.models.families.routers import EXPERTS, dense_layers, router
from ringkv.models.fields import Raw, count
from ringkv.models.layer import FeedForward
from ringkv.models.reading import SILU, Refusal, common, refuse, rope
from ringkv.models.sparse import Sparse

BIAS = Refusal("qkv_bias", lambda v: v in (None, True), "biases on queries, keys and values")


@dataclass(frozen=True, kw_only=True)
class Qwen2Moe(Sparse, Qwen2):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Qwen2Moe":
        refuse(raw, SILU, BIAS, supported=EXPERTS)
        fields = common(raw, generation, "Qwen2MoeForCausalLM", kv_heads=16)
        hidden = fields["hidden_size"]
        shared = FeedForward(hidden, count(raw, "shared_expert_intermediate_size"), module="mlp.shared_expert")
        size, chosen = count(raw, "moe_intermediate_size"), router(raw, normalised=False)
        return cls(
            **fields,
            rope=rope(raw),
            sliding=qwen_sliding(raw),
            experts=Experts(hidden, size, chosen, shared, shared_gate="shared_expert_gate"),
            dense=dense_layers(raw),
        )
