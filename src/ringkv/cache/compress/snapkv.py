"""SnapKV: the prompt's last queries vote for the tokens worth keeping.

H key-value heads, G query heads each, W window queries, n prompt tokens.
Source: SnapKV (arXiv 2404.14469); candidates as in SnapStream (arXiv 2511.03092), Eq. 3.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.selectors import Domain, Groups, SnapKV
from ringkv.cache.compress.prompt import Prompt
from ringkv.kernels.window_votes import window_votes

Count = Callable[[Tensor, Tensor], Tensor]
"""q [H, G, W, D], keys [H, n, D] -> the votes of each candidate, float32 [H, candidates]."""


def votes(prompt: Prompt, low: int, high: int, selector: SnapKV) -> Tensor:
    """The pooled attention that each candidate got from the last queries, mean or maximum over the G query heads."""
    count = partial(_got, low=low, high=high, scale=prompt.scale, domain=selector.domain)
    merged = _GROUPS[selector.groups]
    return _pool(torch.cat([merged(q, keys, count) for q, keys in zip(prompt.q, prompt.keys, strict=True)]), selector)


def _got(q: Tensor, keys: Tensor, low: int, high: int, scale: float, domain: Domain) -> Tensor:
    """float32 [H, high - low]: attention to each candidate, summed over queries and query heads."""
    if domain == "candidates":
        return window_votes(q, keys, low, high, scale)
    return window_votes(q, keys, 0, keys.shape[1], scale)[:, low:high]


def _mean(q: Tensor, keys: Tensor, count: Count) -> Tensor:
    return count(q, keys) / q.shape[1]


def _most(q: Tensor, keys: Tensor, count: Count) -> Tensor:
    return torch.stack([count(q[:, [group]], keys) for group in range(q.shape[1])]).amax(0)


_GROUPS: Mapping[Groups, Callable[[Tensor, Tensor, Count], Tensor]] = {"mean": _mean, "max": _most}


def _pool(scores: Tensor, selector: SnapKV) -> Tensor:
    """Smooth along the tokens, so that one is kept with its neighbours; at the edges, over those there are."""
    width = selector.kernel
    if selector.pooling == "max":
        return F.max_pool1d(scores[None], width, stride=1, padding=width // 2)[0]
    return _sums(scores, width) / _sums(torch.ones_like(scores[:1]), width)


def _sums(scores: Tensor, width: int) -> Tensor:
    """Over each token and its neighbours; several times as fast as `F.avg_pool1d`."""
    return F.pad(scores, (width // 2, width // 2)).unfold(1, width, 1).sum(-1)
