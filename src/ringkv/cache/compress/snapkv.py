"""SnapKV: the prompt's last queries vote for the tokens worth keeping.

H key-value heads, G query heads each, W window queries, n prompt tokens, D head_dim.
Source: SnapKV (arXiv 2404.14469); candidates as in SnapStream (arXiv 2511.03092), Eq. 3.
"""

import torch.nn.functional as F
from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.kernels.window_votes import window_votes


def votes(q: Tensor, keys: Tensor, low: int, high: int, choice: KVChoice) -> Tensor:
    """float32 [H, high - low]: the pooled attention that each candidate low .. high-1 got from the last queries.

    q [H, G, W, D], the prompt's last W queries, and keys [H, n, D], both rotated. One decision per key-value head: the
    mean over its G query heads.
    """
    if choice.domain == "candidates":
        got = window_votes(q, keys, low, high)
    else:
        got = window_votes(q, keys, 0, keys.shape[1])[:, low:high]
    return _pool(got / q.shape[1], choice)


def _pool(scores: Tensor, choice: KVChoice) -> Tensor:
    """Smooth along the tokens, so that one is kept with its neighbours; at the edges, over those there are."""
    width = choice.kernel
    if choice.pooling == "max":
        return F.max_pool1d(scores[None], width, stride=1, padding=width // 2)[0]
    return F.avg_pool1d(scores[None], width, stride=1, padding=width // 2, count_include_pad=False)[0]
