"""A GGUF's router settings, as config.json has them."""

from collections.abc import Callable, Mapping
from typing import Any

from ringkv.base.errors import UnsupportedModel
from ringkv.base.shown import shown
from ringkv.weights.gguf.fields import positive, short
from ringkv.weights.gguf.file import GGUF

RouterSettings = Callable[[GGUF, str], dict[str, Any]]
"""Returns the settings of a file from its keys' prefix. Raises UnsupportedModel or BadWeights."""

SOFTMAX: Mapping[str, tuple[int, ...]] = {
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0, 1),
}
"""Accepted values: softmax over all experts, not scaled. The first is the default."""

SIGMOID = 2  # expert_gating_func
GROUPS_OF_V2, GROUPS_OF_V3 = {160: (8, 3)}, {256: (8, 4)}
"""Groups of experts and top groups, by the number of experts. Files made before October 2025 have neither."""


def softmax(normalised: bool = True) -> RouterSettings:
    """Return the settings of a softmax over all experts. normalised: top-k weights add up to 1."""

    def settings(gguf: GGUF, kind: str) -> dict[str, Any]:
        check(gguf, kind, {**SOFTMAX, "expert_weights_norm": (normalised,)})
        return {}

    return settings


def softmax_of_chosen(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the settings of a softmax over the top-k experts alone."""
    check(gguf, kind, {**SOFTMAX, "expert_gating_func": (0, 3), "expert_weights_norm": (True, False)})
    return {}


def grouped(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return the router of DeepSeek-V2, or of V3 if scores are sigmoids; the architecture is named after it."""
    if gguf.get(f"{kind}.expert_gating_func") == SIGMOID:
        v3 = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
        return {**corrected(gguf, kind), **v3}
    check(gguf, kind, {"expert_gating_func": (0, 1), "expert_weights_norm": (False,)})
    found = _grouped(gguf, kind, GROUPS_OF_V2)
    return {**found, "topk_method": "group_limited_greedy" if found["n_group"] > 1 else "greedy"}


def corrected(gguf: GGUF, kind: str) -> dict[str, Any]:
    """Return DeepSeek-V3's router, which GLM-4.5 has, too."""
    check(gguf, kind, {"expert_gating_func": (SIGMOID, 0)})
    normalised = gguf.get(f"{kind}.expert_weights_norm", False)
    return {**_grouped(gguf, kind, GROUPS_OF_V3), "norm_topk_prob": normalised}


def _grouped(gguf: GGUF, kind: str, left_out: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    experts = positive(gguf, f"{kind}.expert_count")
    groups, kept = left_out.get(experts, (1, 1))
    return {
        "n_routed_experts": experts,
        "num_experts_per_tok": positive(gguf, f"{kind}.expert_used_count"),
        "moe_intermediate_size": positive(gguf, f"{kind}.expert_feed_forward_length"),
        "n_shared_experts": positive(gguf, f"{kind}.expert_shared_count"),
        "first_k_dense_replace": gguf.number(f"{kind}.leading_dense_block_count", 0),
        "routed_scaling_factor": short(gguf.decimal(f"{kind}.expert_weights_scale", 0.0)) or 1.0,  # 0: it has none
        "n_group": gguf.number(f"{kind}.expert_group_count", groups) or 1,
        "topk_group": gguf.number(f"{kind}.expert_group_used_count", kept) or 1,
    }


def check(gguf: GGUF, kind: str, harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise UnsupportedModel for a key with another value than these; the first is the default."""
    for key, values in harmless.items():
        if (value := gguf.get(f"{kind}.{key}", values[0])) not in values:
            raise UnsupportedModel(
                f"{gguf.path} has {key} {shown(value)}, which ringkv does not have for {kind}; "
                "fetch this model as safetensors"
            )
