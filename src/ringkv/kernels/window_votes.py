"""window_votes: the attention that a prompt's tokens get from its last queries (SnapKV, arXiv 2404.14469).

H key-value heads, G query heads each, W window queries, n prompt tokens, D head_dim.
"""

import torch
from torch import Tensor

from ringkv.kernels.library import register
from ringkv.kernels.packing import fits_tiles


def window_votes(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Return float32 [H, n]: softmax(scale q keys^T), summed over G * W queries.

    q [H, G, W, D] are the prompt's last W queries and keys [H, n, D], both rotated. Query w sees keys 0 .. n-W+w.
    """
    if fits_tiles(q, "window_votes"):
        out: Tensor = torch.ops.ringkv.window_votes(q, keys, scale)
        return out
    return reference(q, keys, scale)


def reference(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Implement `window_votes` in plain torch, in float32, one head at a time to bound the memory for weights."""
    return torch.stack([_head_votes(*head, scale) for head in zip(q, keys, strict=True)])


def _head_votes(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    window, n = q.shape[1], len(keys)
    scores = torch.matmul(q.float(), keys.float().transpose(-1, -2))
    position = torch.arange(n, device=q.device)
    future = position > position[n - window :, None]
    weights = scores.mul_(scale).masked_fill_(future, float("-inf")).softmax(-1)
    return weights.sum((0, 1))


register("window_votes", reference)
