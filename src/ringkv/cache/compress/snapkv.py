"""SnapKV: the prompt's last queries vote for the tokens to keep.

H key-value heads, G query heads each, W window queries, n prompt tokens.
Source: SnapKV (arXiv 2404.14469); candidates as in SnapStream (arXiv 2511.03092), Eq. 3.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.selectors import Domain, Groups, SnapKV
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.cache.compress.vote_reduction import VoteReduction
from ringkv.kernels.window_votes import window_votes

CountVotes = Callable[[Tensor, Tensor], Tensor]
"""q [H, G, W, D], keys [H, n, D] -> the votes of each candidate, float32 [H, candidates]."""


def votes(prompt: StagedPrompt, low: int, high: int, selector: SnapKV) -> Tensor:
    """Return each candidate's pooled attention from the last queries, mean or maximum over the G query heads."""
    count = partial(_attention, low=low, high=high, scale=prompt.scale, domain=selector.domain)
    merged = partial(_GROUPS[selector.groups], count=count, reduction=prompt.reduction)
    return pool(torch.cat([merged(q, keys) for q, keys in zip(prompt.q, prompt.keys, strict=True)]), selector)


def _attention(q: Tensor, keys: Tensor, low: int, high: int, scale: float, domain: Domain) -> Tensor:
    """Return float32 [H, high - low], the attention to each candidate, summed over queries and query heads."""
    if domain == "candidates":
        return window_votes(q, keys, low, high, scale)
    return window_votes(q, keys, 0, keys.shape[1], scale)[:, low:high]


def _mean(q: Tensor, keys: Tensor, count: CountVotes, reduction: VoteReduction) -> Tensor:
    return reduction.mean(count(q, keys) / q.shape[1])


def _max(q: Tensor, keys: Tensor, count: CountVotes, reduction: VoteReduction) -> Tensor:
    return reduction.maximum(torch.stack([count(q[:, [group]], keys) for group in range(q.shape[1])]).amax(0))


_GROUPS: Mapping[Groups, Callable[..., Tensor]] = {"mean": _mean, "max": _max}


def pool(scores: Tensor, selector: SnapKV) -> Tensor:
    """Pool along the tokens, so that a token is kept with its neighbours. At the edges the window is shorter."""
    width = selector.kernel
    if selector.pooling == "max":
        return F.max_pool1d(scores[None], width, stride=1, padding=width // 2)[0]
    return _sums(scores, width) / _sums(torch.ones_like(scores[:1]), width)


def _sums(scores: Tensor, width: int) -> Tensor:
    """Return sums over each token and its neighbours; several times as fast as `F.avg_pool1d`."""
    return F.pad(scores, (width // 2, width // 2)).unfold(1, width, 1).sum(-1)
