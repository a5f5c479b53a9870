"""attend: attention of a step in plain torch, for references.

B rows of a step, H key-value heads, Q queries of each, C entries, D elements of a vector.
"""

import torch
from torch import Tensor


def attend(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return attention of q [B, H, Q, D] to the `visible` bool [B, 1 or H, 1, C] of keys and values [B, H, C, D]."""
    scores = torch.matmul(q.float() * scale, keys.float().transpose(-1, -2))
    scores = scores.masked_fill(~visible, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = scores.softmax(-1).masked_fill((lse == float("-inf"))[..., None], 0.0)
    return torch.matmul(weights, values.float()).to(q.dtype), lse
