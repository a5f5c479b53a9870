"""Routers and dense layers of mixtures of experts, read from config.json. No torch."""

from ringkv.base.errors import BadWeights, UnsupportedModel
from ringkv.base.router import Router
from ringkv.base.shown import shown
from ringkv.models.fields import Raw, count, decimal, flag

EXPERTS = ("num_experts", "num_local_experts")
"""Settings that families with experts support; others refuse them."""


def router(raw: Raw, normalised: bool) -> Router:
    """Return a softmax router. normalised: norm_topk_prob if config.json leaves it out."""
    named = EXPERTS[0] if raw.get(EXPERTS[0]) is not None else EXPERTS[1]
    return checked(
        Router(
            count(raw, named),
            count(raw, "num_experts_per_tok"),
            normalised=flag(raw, "norm_topk_prob", normalised),
        )
    )


def corrected_router(raw: Raw) -> Router:
    """Return DeepSeek-V3's router, which GLM-4.5 has too: sigmoid scores, chosen in the best groups."""
    return checked(
        Router(
            count(raw, "n_routed_experts"),
            count(raw, "num_experts_per_tok"),
            is_sigmoid=True,
            normalised=flag(raw, "norm_topk_prob", True),
            scale=decimal(raw, "routed_scaling_factor", 1.0),
            groups=count(raw, "n_group", 1),
            kept_groups=count(raw, "topk_group", 1),
            best=2,
        )
    )


def grouped_router(raw: Raw) -> Router:
    """Return DeepSeek-V2's router: softmax, and the best groups if `topk_method` is group_limited_greedy."""
    method = raw.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedModel(
            f"topk_method {shown(method)} is not implemented; ringkv supports greedy and group_limited_greedy"
        )
    is_grouped = method == "group_limited_greedy"
    return checked(
        Router(
            count(raw, "n_routed_experts"),
            count(raw, "num_experts_per_tok"),
            normalised=False,
            scale=decimal(raw, "routed_scaling_factor", 1.0),
            groups=count(raw, "n_group", 1) if is_grouped else 1,
            kept_groups=count(raw, "topk_group", 1) if is_grouped else 1,
        )
    )


def dense_layers(raw: Raw) -> tuple[int, ...]:
    """Return the layers without experts: `mlp_only_layers`, and those between each `decoder_sparse_step`-th."""
    listed, step = raw.get("mlp_only_layers") or [], count(raw, "decoder_sparse_step", 1)
    if not isinstance(listed, list):
        raise BadWeights("config.json needs mlp_only_layers as a list of layers; fetch config.json again")
    return tuple(at for at in range(count(raw, "num_hidden_layers")) if at in listed or (at + 1) % step)


def first_dense(raw: Raw) -> tuple[int, ...]:
    """Return the layers before `first_k_dense_replace`, which have no experts."""
    given = raw.get("first_k_dense_replace")
    return tuple(range(min(count(raw, "num_hidden_layers"), count(raw, "first_k_dense_replace") if given else 0)))


def checked(router: Router) -> Router:
    candidates = router.experts // router.groups * min(router.groups, router.kept_groups)
    if router.chosen > candidates or router.experts % router.groups or router.kept_groups > router.groups:
        raise BadWeights(
            f"config.json has {router.chosen} experts per token, of {router.experts} in {router.groups} groups, of "
            f"which {router.kept_groups} are kept; this does not fit, so fetch config.json again"
        )
    return router
