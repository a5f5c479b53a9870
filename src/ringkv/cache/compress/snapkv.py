"""SnapKV: the prompt's last queries vote for the tokens worth keeping.

H key-value heads, G query heads each, W window queries, n prompt tokens, D head_dim.
Source: SnapKV (arXiv 2404.14469); candidates as in SnapStream (arXiv 2511.03092), Eq. 3.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.kv import KVChoice


def votes(q: Tensor, keys: Tensor, low: int, high: int, choice: KVChoice) -> Tensor:
    """float32 [H, high - low]: the pooled attention that each candidate low .. high-1 got from the last queries.

    q [H, G, W, D], the prompt's last W queries, and keys [H, n, D], both rotated. One decision per key-value head: the
    mean over its G query heads. Heads go one after the other: the weights of one, G * W * n numbers, are all there is
    at a time.
    """
    return torch.cat([_votes_of_head(q[h : h + 1], keys[h : h + 1], low, high, choice) for h in range(len(keys))])


def _votes_of_head(q: Tensor, keys: Tensor, low: int, high: int, choice: KVChoice) -> Tensor:
    weights = _attention(q, keys, low, high) if choice.domain == "candidates" else _attention(q, keys)[..., low:high]
    return _pool(weights.mean(1).sum(1), choice)


def _attention(q: Tensor, keys: Tensor, low: int = 0, high: int | None = None) -> Tensor:
    """float32 [H, G, W, high-low]: softmax over keys low .. high-1, causal inside the window."""
    n, window, high = keys.shape[1], q.shape[2], keys.shape[1] if high is None else high
    scores = torch.matmul(q.flatten(1, 2), keys[:, low:high].transpose(-1, -2)).float().unflatten(1, q.shape[1:3])
    position = torch.arange(low, high, device=q.device)
    future = position > torch.arange(n - window, n, device=q.device)[:, None]
    weights: Tensor = scores.mul_(q.shape[-1] ** -0.5).masked_fill_(future, float("-inf")).softmax(-1)
    return weights.nan_to_num_(0.0)  # a query before the first candidate sees none of them


def _pool(scores: Tensor, choice: KVChoice) -> Tensor:
    """Smooth along the tokens, so that one is kept with its neighbours; at the edges, over those there are."""
    width = choice.kernel
    if choice.pooling == "max":
        return F.max_pool1d(scores[None], width, stride=1, padding=width // 2)[0]
    return F.avg_pool1d(scores[None], width, stride=1, padding=width // 2, count_include_pad=False)[0]
