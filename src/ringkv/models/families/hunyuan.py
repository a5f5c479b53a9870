"""Hunyuan (Tencent, arXiv 2411.02265), dense and with experts: query and key norms after rotation, an NTK base.

With `use_cla`, consecutive layers share keys and values as Llama's can; each layer has its own key-norm weight. The
first models, Hunyuan-Large among them, have one architecture for both kinds and other names of two settings.
"""

from dataclasses import dataclass, replace
from typing import Any

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.router import Router
from ringkv.base.shown import shown
from ringkv.models.experts import Experts
from ringkv.models.families.llama import Llama, share_factor
from ringkv.models.families.routers import EXPERTS, checked
from ringkv.models.fields import Raw, count, decimal, flag, table
from ringkv.models.layer import Attention, FeedForward, Layer, RopeConfig
from ringkv.models.reading import FULL, SILU, Refusal, common, refuse, refuse_window, rope
from ringkv.models.sparse import Sparse

NORMS = ("query_layernorm", "key_layernorm")
FIRST = "HunYuanForCausalLM"
SUPPORTED = ("use_cla", "use_qk_norm")
USUAL = (
    Refusal("use_qk_norm", lambda v: v in (None, True), "query and key norms"),
    Refusal("mlp_bias", lambda v: not v, "feed-forwards without biases"),
    Refusal("position_embedding_xdrope", lambda v: not v, "rotary embedding of one position a token"),
)
MIXED = (
    Refusal("use_mixed_mlp_moe", lambda v: v in (None, True), "a shared expert in every layer"),
    Refusal("moe_layer_num_skipped", lambda v: not v, "experts in every layer"),
    Refusal("num_shared_expert", lambda v: _one(v) in (None, 1), "one shared expert"),
)


@dataclass(frozen=True, kw_only=True)
class HunYuan(Llama):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "HunYuan":
        refuse(raw, SILU, FULL, *USUAL, supported=SUPPORTED)
        return cls(**_fields(raw, generation, "HunYuanDenseV1ForCausalLM"))

    def layer(self, kind: str) -> Layer:
        layer = super().layer(kind)
        assert isinstance(layer.attention, Attention)
        return replace(layer, attention=replace(layer.attention, qk_norm="after_rope", norm_names=NORMS))


@dataclass(frozen=True, kw_only=True)
class HunYuanMoe(Sparse, HunYuan):
    @classmethod
    def read(cls, raw: Raw, generation: Raw) -> "HunYuanMoe":
        refuse(raw, SILU, FULL, *USUAL, *MIXED, supported=(*SUPPORTED, *EXPERTS))
        fields = _fields(raw, generation, "HunYuanMoEV1ForCausalLM")
        hidden, size = fields["hidden_size"], fields["intermediate_size"]
        if _one(raw.get("moe_intermediate_size")) not in (None, size):
            raise UnsupportedModel(
                f"moe_intermediate_size {shown(raw['moe_intermediate_size'])} is not implemented; ringkv supports "
                f"experts as wide as the shared one, {size}"
            )
        each = {name: _one(raw.get(name)) for name in ("num_experts", "moe_topk")}
        router = Router(count(each, "num_experts"), count(each, "moe_topk"))
        shared = FeedForward(hidden, size, module="mlp.shared_mlp")
        return cls(**fields, experts=Experts(hidden, size, checked(router), shared, router_name="gate.wg"))


class FirstHunYuan:
    """Reads config.json of Hunyuan-Large and of the first Hunyuan-7B."""

    @staticmethod
    def read(raw: Raw, generation: Raw) -> HunYuan:
        given = {**raw, "head_dim": raw.get("attention_head_dim")}
        if _one(raw.get("num_experts")) in (None, 1):
            return replace(HunYuan.read({**given, "num_experts": None}, generation), architecture=FIRST)
        config = HunYuanMoe.read(given, generation)
        router = config.experts.router  # one expert keeps the weight that softmax gives it
        experts = replace(config.experts, router=router._replace(normalised=router.chosen > 1))
        return replace(config, architecture=FIRST, experts=experts)


def _fields(raw: Raw, generation: Raw, architecture: str) -> dict[str, Any]:
    refuse_window(raw)
    fields = common({"rms_norm_eps": 1e-5, **raw}, generation, architecture)
    return {
        **fields,
        "rope": _rope(raw, fields["head_dim"]),
        "attention_bias": flag(raw, "attention_bias"),
        "share_factor": share_factor({"use_cla": False, **raw}),
    }


def _rope(raw: Raw, head_dim: int) -> RopeConfig:
    """Return the rotary embedding. "dynamic" with a fixed alpha is a larger base, as in NTK-aware scaling."""
    given = table(raw, "rope_parameters") or table(raw, "rope_scaling")
    if "dynamic" not in (given.get("rope_type"), given.get("type")) or not given.get("alpha"):
        return rope(raw)
    if head_dim <= 2:
        raise BadWeights(f"config.json has head_dim {head_dim}, more than 2 is needed; fetch config.json again")
    theta = decimal(given if given.get("rope_theta") else raw, "rope_theta", 10000.0, above=1.0)
    return RopeConfig(theta * decimal(given, "alpha", None) ** (head_dim / (head_dim - 2)))


def _one(given: Any) -> Any:
    """Return the value of all layers, of a setting that may be a list by layer. A list of several is returned whole."""
    return given[0] if isinstance(given, list) and given and all(one == given[0] for one in given) else given
