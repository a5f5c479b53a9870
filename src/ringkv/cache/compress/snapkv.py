"""SnapKV: the prompt's last queries vote for the tokens worth keeping.

L layers, H key-value heads, G query heads each, W window queries, n prompt tokens, D head_dim.
Source: SnapKV (arXiv 2404.14469); candidates as in SnapStream (arXiv 2511.03092), Eq. 3.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.kernels.window_votes import window_votes


def votes(q: Tensor, keys: Tensor, low: int, high: int, choice: KVChoice) -> Tensor:
    """float32 [L * H, high - low]: the pooled attention that each candidate low .. high-1 got from the last queries.

    q [L, H, G, W, D], the prompt's last W queries, and keys [L, H, n, D], both rotated. One decision per layer and
    key-value head: the mean over its G query heads.
    """
    return _pool(torch.cat([_of_layer(*layer, low, high, choice) for layer in zip(q, keys, strict=True)]), choice)


def _of_layer(q: Tensor, keys: Tensor, low: int, high: int, choice: KVChoice) -> Tensor:
    """float32 [H, high - low]: the attention that each candidate got, before it is pooled."""
    if choice.domain == "candidates":
        got = window_votes(q, keys, low, high)
    else:
        got = window_votes(q, keys, 0, keys.shape[1])[:, low:high]
    return got / q.shape[1]


def _pool(scores: Tensor, choice: KVChoice) -> Tensor:
    """Smooth along the tokens, so that one is kept with its neighbours; at the edges, over those there are."""
    width = choice.kernel
    if choice.pooling == "max":
        return F.max_pool1d(scores[None], width, stride=1, padding=width // 2)[0]
    return _sums(scores, width) / _sums(torch.ones_like(scores[:1]), width)


def _sums(scores: Tensor, width: int) -> Tensor:
    """Over each token and its neighbours; several times as fast as `F.avg_pool1d`."""
    return F.pad(scores, (width // 2, width // 2)).unfold(1, width, 1).sum(-1)
