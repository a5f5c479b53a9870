"""routing: which experts serve each token, and with what weight.

N tokens, E experts, K chosen for each token. All shapes are static: the choice is data.
"""

import torch
from torch import Tensor

from ringkv.models.experts import Router


def route(router: Router, logits: Tensor, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the chosen experts int64 [N, K], in ascending order, and their weights float32 [N, K].

    logits: float32 [N, E]. correction: float32 [E], added to the scores for the choice.
    """
    scores = logits.softmax(-1) if router.score == "softmax" else logits.sigmoid()
    ranked = scores if correction is None else scores + correction
    if router.groups > 1:
        ranked = _in_best_groups(router, ranked)
    chosen = ranked.topk(router.chosen, sorted=False).indices.sort(-1).values
    weights = scores.gather(-1, chosen)
    if router.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights if router.scale == 1.0 else weights * router.scale


def _in_best_groups(router: Router, ranked: Tensor) -> Tensor:
    """Return the scores [N, E], -inf outside the groups that are kept."""
    groups = ranked.unflatten(-1, (router.groups, -1))
    sums = groups.topk(router.best).values.sum(-1)
    kept = torch.zeros_like(sums).scatter_(-1, sums.topk(router.kept_groups, sorted=False).indices, 1.0)
    inside: Tensor = groups.masked_fill(kept[..., None] == 0, float("-inf"))
    return inside.flatten(-2)
