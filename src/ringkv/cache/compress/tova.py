"""TOVA: the prompt's last query votes, and all heads of a layer keep the same tokens.

L layers, H key-value heads, G query heads each, n prompt tokens.
Source: TOVA (arXiv 2401.06104), which evicts at every step; here it selects once, at the end of the prompt.
"""

import torch
from torch import Tensor

from ringkv.base.selectors import TOVA
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.cache.compress.vote_reduction import VoteReduction
from ringkv.kernels.window_votes import window_votes


def votes(prompt: StagedPrompt, low: int, high: int, selector: TOVA) -> Tensor:
    """Return the last query's attention, averaged over the layer's H * G query heads."""
    layers = zip(prompt.q, prompt.keys, strict=True)
    return torch.cat([_layer_votes(*layer, low, high, prompt.scale, prompt.reduction) for layer in layers])


def _layer_votes(q: Tensor, keys: Tensor, low: int, high: int, scale: float, reduction: VoteReduction) -> Tensor:
    """Return float32 [H, high - low]; all rows are equal."""
    attention = window_votes(q[:, :, -1:].contiguous(), keys, scale)[:, low:high]
    return reduction.mean_of_all(attention.mean(0) / q.shape[1]).expand(len(keys), -1)
