"""SnapKV: the prompt's last queries vote for the tokens worth keeping.

H key-value heads, G query heads each, W window queries, n prompt tokens.
Source: SnapKV (arXiv 2404.14469); candidates as in SnapStream (arXiv 2511.03092), Eq. 3.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.selectors import SnapKV
from ringkv.cache.compress.prompt import Prompt
from ringkv.kernels.window_votes import window_votes


def votes(prompt: Prompt, low: int, high: int, selector: SnapKV) -> Tensor:
    """The pooled attention that each candidate got from the last queries, mean or maximum over the G query heads."""
    layers = zip(prompt.q, prompt.keys, strict=True)
    return _pool(torch.cat([_of_layer(*layer, low, high, selector) for layer in layers]), selector)


def _of_layer(q: Tensor, keys: Tensor, low: int, high: int, selector: SnapKV) -> Tensor:
    """float32 [H, high - low]: the attention that each candidate got, before it is pooled."""
    if selector.groups == "max":
        each = (_got(q[:, [group]], keys, low, high, selector) for group in range(q.shape[1]))
        return torch.stack(list(each)).amax(0)
    return _got(q, keys, low, high, selector) / q.shape[1]


def _got(q: Tensor, keys: Tensor, low: int, high: int, selector: SnapKV) -> Tensor:
    """float32 [H, high - low]: attention to each candidate, summed over queries and query heads."""
    if selector.domain == "candidates":
        return window_votes(q, keys, low, high)
    return window_votes(q, keys, 0, keys.shape[1])[:, low:high]


def _pool(scores: Tensor, selector: SnapKV) -> Tensor:
    """Smooth along the tokens, so that one is kept with its neighbours; at the edges, over those there are."""
    width = selector.kernel
    if selector.pooling == "max":
        return F.max_pool1d(scores[None], width, stride=1, padding=width // 2)[0]
    return _sums(scores, width) / _sums(torch.ones_like(scores[:1]), width)


def _sums(scores: Tensor, width: int) -> Tensor:
    """Over each token and its neighbours; several times as fast as `F.avg_pool1d`."""
    return F.pad(scores, (width // 2, width // 2)).unfold(1, width, 1).sum(-1)
