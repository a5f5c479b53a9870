"""Mixtral (arXiv 2401.04088): Mistral with a mixture of experts in every layer."""

from dataclasses import dataclass

from ringkv.models.experts import Experts
from ringkv.models.families.mistral import Mistral
from ringkv.models.families.routers import EXPERTS, router
from ringkv.models.fields import Raw
from ringkv.models.reading import SILU, common, refuse, rope, sliding, window
from ringkv.models.sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class Mixtral(Sparse, Mistral):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "Mixtral":
        refuse(raw, SILU, supported=EXPERTS)
        fields = common(raw, generation, "MixtralForCausalLM", kv_heads=8)
        sizes = fields["hidden_size"], fields["intermediate_size"]
        chosen = router(raw, normalised=True)
        return cls(
            **fields,
            rope=rope(raw),
            sliding=sliding(raw, window(raw, default=None), lambda layer: True),
            experts=Experts(*sizes, chosen, module="block_sparse_moe", gate="w1", up="w3", down="w2"),
        )
