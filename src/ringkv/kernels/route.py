"""route: which experts serve each row, and with what weight, as one operator.

M rows, E experts, K chosen for each row. A row's bits depend on the row alone. Compiled loops over all rows do not
promise that: the last elements of a loop have another exponential function than the ones before.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.router import Router
from ringkv.kernels.library import grouped, register


class Route(NamedTuple):
    """experts: int64 [M, K], in ascending order. weights: float32 [M, K]. gates: float32 [M, gates]."""

    experts: Tensor
    weights: Tensor
    gates: Tensor


def route(logits: Tensor, correction: Tensor | None, router: Router, gates: int = 0) -> Route:
    """Choose experts by the first E columns of logits float32 [M, at least E + gates].

    correction: float32 [E], added to the scores for the choice alone. gates: columns after the experts', which are
    returned through a sigmoid. Of experts with equal scores the first is chosen.
    """
    return Route(*torch.ops.ringkv.route(logits, correction, *router, gates))


def reference(logits: Tensor, correction: Tensor | None, router: Router, gates: int) -> tuple[Tensor, Tensor, Tensor]:
    """Implement `route` in plain torch."""
    of_experts = logits[:, : router.experts]
    scores = of_experts.sigmoid() if router.is_sigmoid else of_experts.softmax(-1)
    ranked = scores if correction is None else scores + correction
    if router.groups > 1:
        ranked = _in_best_groups(ranked, router.groups, router.kept_groups, router.best)
    chosen = ranked.sort(dim=-1, descending=True, stable=True).indices[:, : router.chosen].sort(-1).values
    weights = scores.gather(-1, chosen)
    if router.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * router.scale, logits[:, router.experts : router.experts + gates].sigmoid()


def _in_best_groups(ranked: Tensor, groups: int, kept: int, best: int) -> Tensor:
    """Return the scores [M, E], -inf outside the groups with the highest sums of their `best` scores."""
    parts = ranked.unflatten(-1, (groups, -1))
    sums = parts.topk(best).values.sum(-1)
    order = sums.sort(dim=-1, descending=True, stable=True).indices[:, :kept]
    is_kept = torch.zeros_like(sums).scatter_(-1, order, 1.0)
    inside: Tensor = parts.masked_fill(is_kept[..., None] == 0, float("-inf"))
    return inside.flatten(-2)


def _cuda(logits: Tensor, correction: Tensor | None, router: Router, gates: int) -> tuple[Tensor, Tensor, Tensor]:
    from ringkv.kernels.gpu import route as gpu  # loads Triton

    return gpu.route(logits, correction, router, gates)


def _shape(logits: Tensor, correction: Tensor | None, router: Router, gates: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = logits.shape[0]
    return (
        logits.new_empty(rows, router.chosen, dtype=torch.int64),
        logits.new_empty(rows, router.chosen),
        logits.new_empty(rows, gates),
    )


register("route", grouped(reference), grouped(_shape), grouped(_cuda))
