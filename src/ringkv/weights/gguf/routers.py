"""A GGUF's router settings, as config.json has them."""

from collections.abc import Callable, Mapping
from typing import Any

from ringkv.base.errors import UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf.fields import short
from ringkv.weights.gguf.file import GGUF

SOFTMAX: Mapping[str, tuple[int, ...]] = {
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0, 1),
}
"""Accepted values: softmax over all experts, not scaled. The first is the default."""

SIGMOID = 2  # expert_gating_func
GROUPS_OF_V2, GROUPS_OF_V3 = {160: (8, 3)}, {256: (8, 4)}
"""Groups of experts and top groups, by the number of experts. Files made before October 2025 have neither."""


def softmax(normalised: bool = True) -> Callable[[GGUF], dict[str, Any]]:
    """Return the settings of a softmax over all experts. normalised: top-k weights add up to 1."""

    def settings(gguf: GGUF) -> dict[str, Any]:
        check(gguf, {**SOFTMAX, "expert_weights_norm": (normalised,)})
        return {}

    return settings


def softmax_of_chosen(gguf: GGUF) -> dict[str, Any]:
    """Return the settings of a softmax over the top-k experts alone."""
    check(gguf, {**SOFTMAX, "expert_gating_func": (0, 3), "expert_weights_norm": (True, False)})
    return {}


def grouped(gguf: GGUF) -> dict[str, Any]:
    """Return the router of DeepSeek-V2, or of V3 if scores are sigmoids; the architecture is named after it."""
    if gguf.get(".expert_gating_func") == SIGMOID:
        v3 = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
        return {**corrected(gguf), **v3}
    check(gguf, {"expert_gating_func": (0, 1), "expert_weights_norm": (False,)})
    settings = _grouped(gguf, GROUPS_OF_V2)
    return {**settings, "topk_method": "group_limited_greedy" if settings["n_group"] > 1 else "greedy"}


def corrected(gguf: GGUF) -> dict[str, Any]:
    """Return DeepSeek-V3's router, which GLM-4.5 has, too."""
    check(gguf, {"expert_gating_func": (SIGMOID, 0)})
    normalised = gguf.get(".expert_weights_norm", False)
    return {**_grouped(gguf, GROUPS_OF_V3), "norm_topk_prob": normalised}


def _grouped(gguf: GGUF, left_out: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    experts = gguf.positive(".expert_count")
    groups, kept = left_out.get(experts, (1, 1))
    return {
        "n_routed_experts": experts,
        "num_experts_per_tok": gguf.positive(".expert_used_count"),
        "moe_intermediate_size": gguf.positive(".expert_feed_forward_length"),
        "n_shared_experts": gguf.positive(".expert_shared_count"),
        "first_k_dense_replace": gguf.number(".leading_dense_block_count", 0),
        "routed_scaling_factor": short(gguf.decimal(".expert_weights_scale", 0.0)) or 1.0,  # 0: it has none
        "n_group": gguf.number(".expert_group_count", groups) or 1,
        "topk_group": gguf.number(".expert_group_used_count", kept) or 1,
    }


def check(gguf: GGUF, harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise UnsupportedModel for a key with another value than these; the first is the default."""
    for key, values in harmless.items():
        if (value := gguf.get(f".{key}", values[0])) not in values:
            raise UnsupportedModel(
                f"{gguf.path} has {key} {shown(value)}, which ringkv does not have for {gguf.architecture}; "
                "fetch this model as safetensors"
            )
