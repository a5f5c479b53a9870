"""KeyDiff: keys unlike all others are kept, whatever is asked; no query is looked at.

H key-value heads, n prompt tokens, D head_dim.
Source: KeyDiff (arXiv 2504.15364), section 3: negative cosine similarity to the mean of the unit keys.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.selectors import KeyDiff
from ringkv.cache.compress.prompt import Prompt


def votes(prompt: Prompt, low: int, high: int, selector: KeyDiff) -> Tensor:
    """One less the cosine between each key and the prompt's mean direction, from 0 to 2."""
    return torch.cat([_of_layer(keys, low, high) for keys in prompt.keys])


def _of_layer(keys: Tensor, low: int, high: int) -> Tensor:
    """float32 [H, high - low] of keys [H, n, D]."""
    unit = F.normalize(keys.float(), dim=-1)
    anchor = F.normalize(unit.mean(1, keepdim=True), dim=-1)
    return 1 - (unit[:, low:high] * anchor).sum(-1).clamp(max=1)
