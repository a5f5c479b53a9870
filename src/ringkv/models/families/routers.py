"""Routers and dense layers of mixtures of experts, read from config.json. No torch."""

from collections.abc import Collection
from typing import Any

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.router import Router
from ringkv.base.shown import shown
from ringkv.models.base import Change
from ringkv.models.fields import Raw, count, decimal, flag
from ringkv.models.layer import FeedForward
from ringkv.models.reading import Fields, feed_forward

EXPERTS = ("num_experts", "num_local_experts")
"""Settings that families with experts support; others refuse them."""


def router(raw: Raw, normalised: bool) -> Router:
    """Return a softmax router. normalised: norm_topk_prob if config.json leaves it out."""
    named = EXPERTS[0] if raw.get(EXPERTS[0]) is not None else EXPERTS[1]
    normalised = flag(raw, "norm_topk_prob", normalised)
    return checked(Router(count(raw, named), count(raw, "num_experts_per_tok"), normalised=normalised))


def corrected_router(raw: Raw) -> Router:
    """Return DeepSeek-V3's router, which GLM-4.5 has too: sigmoid scores, chosen in the best groups."""
    normalised = flag(raw, "norm_topk_prob", True)
    return _grouped(raw, True, is_sigmoid=True, normalised=normalised, best=2)


def grouped_router(raw: Raw) -> Router:
    """Return DeepSeek-V2's router: softmax, and the best groups if `topk_method` is group_limited_greedy."""
    method = raw.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedModel(
            f"topk_method {shown(method)} is not implemented; ringkv supports greedy and group_limited_greedy"
        )
    return _grouped(raw, method == "group_limited_greedy", normalised=False)


def _grouped(raw: Raw, has_groups: bool, **more: Any) -> Router:
    return checked(
        Router(
            count(raw, "n_routed_experts"),
            count(raw, "num_experts_per_tok"),
            scale=decimal(raw, "routed_scaling_factor", 1.0),
            groups=count(raw, "n_group", 1) if has_groups else 1,
            kept_groups=count(raw, "topk_group", 1) if has_groups else 1,
            **more,
        )
    )


def shared_experts(raw: Raw, fields: Fields) -> FeedForward:
    """Return the experts that serve every token in DeepSeek's models and GLM-4.5, as one feed-forward."""
    size = count(raw, "moe_intermediate_size") * count(raw, "n_shared_experts", 1)
    return FeedForward(fields["hidden_size"], size, module="mlp.shared_experts")


def dense_layers(raw: Raw, fields: Fields) -> Change:
    """Return the layers without experts: `mlp_only_layers`, and those between each `decoder_sparse_step`-th."""
    listed, step = raw.get("mlp_only_layers") or [], count(raw, "decoder_sparse_step", 1)
    if not isinstance(listed, list):
        raise BadWeights("config.json needs mlp_only_layers as a list of layers; fetch config.json again")
    return _dense([layer for layer in range(fields["num_layers"]) if layer in listed or (layer + 1) % step], fields)


def first_dense(raw: Raw, fields: Fields) -> Change:
    """Return the layers before `first_k_dense_replace`, which have no experts."""
    given = raw.get("first_k_dense_replace")
    return _dense(range(count(raw, "first_k_dense_replace") if given else 0), fields)


def _dense(layers: Collection[int], fields: Fields) -> Change:
    return Change("-dense", layers, {"feed_forward": feed_forward(fields)})


def checked(router: Router) -> Router:
    candidates = router.experts // router.groups * min(router.groups, router.kept_groups)
    if router.chosen > candidates or router.experts % router.groups or router.kept_groups > router.groups:
        raise BadWeights(
            f"config.json has {router.chosen} experts per token, of {router.experts} in {router.groups} groups, of "
            f"which {router.kept_groups} are kept; this does not fit, so fetch config.json again"
        )
    return router
