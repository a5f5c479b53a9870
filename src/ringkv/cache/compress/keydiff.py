"""KeyDiff: keeps the keys that differ most from all others. It uses no queries.

H key-value heads, n prompt tokens, D head_dim.
Source: KeyDiff (arXiv 2504.15364), section 3: negative cosine similarity to the mean of the unit keys.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ringkv.base.selectors import KeyDiff
from ringkv.cache.compress.staged_prompt import StagedPrompt


def votes(prompt: StagedPrompt, low: int, high: int, selector: KeyDiff) -> Tensor:
    """Return 1 minus the cosine between each key and the prompt's mean direction, from 0 to 2."""
    return torch.cat([differences(keys, low, high) for keys in prompt.keys])


def differences(vectors: Tensor, low: int, high: int) -> Tensor:
    """Return float32 [H, high - low], 1 minus the cosine between vectors [H, n, D] and their mean direction."""
    unit = F.normalize(vectors.float(), dim=-1)
    anchor = F.normalize(unit.mean(1, keepdim=True), dim=-1)
    return 1 - (unit[:, low:high] * anchor).sum(-1).clamp(max=1)
