"""SnapKV: the prompt's last queries vote for the tokens to keep.

H key-value heads, G query heads each, W window queries, n prompt tokens.
Source: SnapKV (arXiv 2404.14469).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.selectors import SnapKV
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.kernels.window_votes import window_votes


def votes(prompt: StagedPrompt, low: int, high: int, selector: SnapKV) -> Iterator[Tensor]:
    """Yield each candidate's pooled attention from the last queries, the mean of the G query heads."""
    for q, keys in zip(prompt.q, prompt.keys, strict=True):
        attention = window_votes(q, keys, prompt.scale)[:, low:high] / q.shape[1]
        yield pool(prompt.reduction.mean(attention), selector)


def pool(scores: Tensor, selector: SnapKV) -> Tensor:
    """Pool along the tokens, so that a token is kept with its neighbours. At the edges the window is shorter."""
    width = selector.kernel
    if selector.pooling == "max":
        return F.max_pool1d(scores[None], width, stride=1, padding=width // 2)[0]
    return _sums(scores, width) / _sums(torch.ones_like(scores[:1]), width)


def _sums(scores: Tensor, width: int) -> Tensor:
    """Return sums over each token and its neighbours; several times as fast as `F.avg_pool1d`."""
    return F.pad(scores, (width // 2, width // 2)).unfold(1, width, 1).sum(-1)
