"""TOVA: the prompt's very last query decides, for all heads of a layer alike.

L layers, H key-value heads, G query heads each, n prompt tokens.
Source: TOVA (arXiv 2401.06104), which evicts at every step; here it chooses once, at the end of the prompt.
"""

import torch
from torch import Tensor

from ringkv.base.selectors import TOVA
from ringkv.cache.compress.prompt import Prompt
from ringkv.kernels.window_votes import window_votes


def votes(prompt: Prompt, low: int, high: int, selector: TOVA) -> Tensor:
    """The attention of the last query, as the mean over the layer's H * G query heads."""
    return torch.cat([_of_layer(*layer, low, high, prompt.scale) for layer in zip(prompt.q, prompt.keys, strict=True)])


def _of_layer(q: Tensor, keys: Tensor, low: int, high: int, scale: float) -> Tensor:
    """float32 [H, high - low], each row the same."""
    got = window_votes(q[:, :, -1:].contiguous(), keys, 0, keys.shape[1], scale)[:, low:high]
    return (got.mean(0) / q.shape[1]).expand(len(keys), -1)
