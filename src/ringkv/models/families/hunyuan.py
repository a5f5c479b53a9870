"""Hunyuan (Tencent, arXiv 2411.02265), dense and with experts: query and key norms after rotation, an NTK base.

With `use_cla`, consecutive layers share keys and values as Llama's can; each layer has its own key-norm weight. The
first models, Hunyuan-Large among them, have one architecture for both kinds and other names of two settings.
"""

from dataclasses import replace
from typing import Any

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.router import Router
from ringkv.base.shown import shown
from ringkv.models.base import ModelConfig, decoder
from ringkv.models.experts import Experts
from ringkv.models.families.llama import kv_source
from ringkv.models.families.routers import EXPERTS, checked
from ringkv.models.fields import Raw, Refusal, count, decimal, flag, table
from ringkv.models.layer import Layer, RopeConfig
from ringkv.models.reading import FULL, SILU, Fields, attention, common, feed_forward, refuse, refuse_window, rope

NORMS = ("query_layernorm", "key_layernorm")
FIRST, MOE = "HunYuanForCausalLM", "HunYuanMoEV1ForCausalLM"
USUAL = (
    Refusal("use_qk_norm", lambda v: v in (None, True), "query and key norms"),
    Refusal("mlp_bias", lambda v: not v, "feed-forwards without biases"),
    Refusal("position_embedding_xdrope", lambda v: not v, "rotary embedding of one position a token"),
)
MIXED = (
    Refusal("use_mixed_mlp_moe", lambda v: v in (None, True), "a shared expert in every layer"),
    Refusal("moe_layer_num_skipped", lambda v: not v, "experts in every layer"),
    Refusal("num_shared_expert", lambda v: _for_all(v) in (None, 1), "one shared expert"),
)


def hunyuan(raw: Raw, generation: Raw, architecture: str) -> ModelConfig:
    is_first = architecture == FIRST
    if is_first:
        raw = {**raw, "head_dim": raw.get("attention_head_dim")}
    has_experts = architecture == MOE or (is_first and _for_all(raw.get("num_experts")) not in (None, 1))
    if is_first and not has_experts:
        raw = {**raw, "num_experts": None}
    more, settings = (MIXED, EXPERTS) if has_experts else ((), ())
    refuse(raw, SILU, FULL, *USUAL, *more, supported=("use_cla", "use_qk_norm", *settings))
    refuse_window(raw)
    fields, bias = common({"rms_norm_eps": 1e-5, **raw}, generation, architecture), flag(raw, "attention_bias")
    block = attention(fields, bias=bias, output_bias=bias, qk_norm="after_rope", norm_names=NORMS)
    layer = Layer(block, feed_forward(fields), fields["norm"], _rope(raw, fields["head_dim"]))
    if has_experts:
        layer = replace(layer, feed_forward=_experts(raw, fields, is_first))
    return decoder(fields, layer, kv_source=kv_source({"use_cla": False, **raw}))


def _experts(raw: Raw, fields: Fields, is_first: bool) -> Experts:
    size = fields["intermediate_size"]
    if _for_all(raw.get("moe_intermediate_size")) not in (None, size):
        raise UnsupportedModel(
            f"moe_intermediate_size {shown(raw['moe_intermediate_size'])} is not implemented; ringkv supports "
            f"experts as wide as the shared one, {size}"
        )
    each = {name: _for_all(raw.get(name)) for name in ("num_experts", "moe_topk")}
    chosen = count(each, "moe_topk")
    # In the first models one expert keeps the weight that softmax gives it.
    router = checked(Router(count(each, "num_experts"), chosen, normalised=not is_first or chosen > 1))
    shared = feed_forward(fields, module="mlp.shared_mlp")
    return Experts(fields["hidden_size"], size, router, shared, router_name="gate.wg")


def _rope(raw: Raw, head_dim: int) -> RopeConfig:
    """Return the rotary embedding. "dynamic" with a fixed alpha is a larger base, as in NTK-aware scaling."""
    given = table(raw, "rope_parameters") or table(raw, "rope_scaling")
    if "dynamic" not in (given.get("rope_type"), given.get("type")) or not given.get("alpha"):
        return rope(raw)
    if head_dim <= 2:
        raise BadWeights(f"config.json has head_dim {head_dim}, more than 2 is needed; fetch config.json again")
    theta = decimal(given if given.get("rope_theta") else raw, "rope_theta", 10000.0, above=1.0)
    return RopeConfig(theta * decimal(given, "alpha", None) ** (head_dim / (head_dim - 2)))


def _for_all(given: Any) -> Any:
    """Return the value of all layers, of a setting that may be a list by layer. A list of several is returned whole."""
    return given[0] if isinstance(given, list) and given and all(value == given[0] for value in given) else given
