"""gpt-oss (arXiv 2508.10925): sink logits, alternating sliding windows, experts with a clamped SwiGLU."""

from dataclasses import dataclass, replace

from ringkv.models.experts import StackedExperts
from ringkv.models.families.mistral import Mistral
from ringkv.models.families.routers import EXPERTS, router
from ringkv.models.fields import Raw, flag
from ringkv.models.layer import Attention, Layer
from ringkv.models.reading import SILU, Refusal, common, refuse, rope, sliding, window
from ringkv.models.sparse import Sparse

ROPES = ("rope_parameters", "rope_scaling")
CLAMPED = (
    Refusal("swiglu_limit", lambda v: v in (None, 7), "gates and ups that are clamped at 7"),
    Refusal("swiglu_alpha", lambda v: v in (None, 1.702), "gates with a sigmoid of 1.702 times their value"),
)
# Defaults of transformers' GptOssConfig.
WINDOW = 128
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}


@dataclass(frozen=True, kw_only=True)
class _Biased(Mistral):
    bias: bool

    def layer(self, kind: str) -> Layer:
        layer = super().layer(kind)
        assert isinstance(layer.attention, Attention)
        attention = replace(layer.attention, bias=self.bias, output_bias=self.bias, sinks=True)
        return replace(layer, attention=attention)


@dataclass(frozen=True, kw_only=True)
class GptOss(Sparse, _Biased):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "GptOss":
        refuse(raw, SILU, *CLAMPED, supported=EXPERTS)
        fields = common(raw, generation, "GptOssForCausalLM", kv_heads=8, head_dim=64)
        sizes = fields["hidden_size"], fields["intermediate_size"]
        chosen = router(raw, normalised=True)
        return cls(
            **fields,
            rope=rope(raw if any(map(raw.get, ROPES)) else {**raw, ROPES[0]: YARN}, theta=150000.0),
            sliding=sliding(raw, window(raw, WINDOW), lambda layer: layer % 2 == 0),
            bias=flag(raw, "attention_bias", True),
            experts=StackedExperts(*sizes, chosen, activation="clamped_swiglu", router_name="router"),
        )
