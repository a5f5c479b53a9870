"""window_votes: the attention that a prompt's tokens get from its last queries (SnapKV, arXiv 2404.14469).

H key-value heads, G query heads each, W window queries, n prompt tokens, D head_dim.
"""

import torch
from torch import Tensor

from ringkv.kernels.library import LIBRARY
from ringkv.kernels.packing import fits_tiles


def window_votes(q: Tensor, keys: Tensor, first: int, last: int, scale: float) -> Tensor:
    """Return float32 [H, last - first]: softmax(scale q keys^T) over keys first .. last-1, summed over G * W queries.

    q [H, G, W, D] are the prompt's last W queries and keys [H, n, D], both rotated. Query w sees keys 0 .. n-W+w. A
    query that sees none of keys first .. last-1 adds nothing.
    """
    if fits_tiles(q, "window_votes"):
        out: Tensor = torch.ops.ringkv.window_votes(q, keys, first, last, scale)
        return out
    return reference(q, keys, first, last, scale)


def reference(q: Tensor, keys: Tensor, first: int, last: int, scale: float) -> Tensor:
    """Implement `window_votes` in plain torch, in float32, one head at a time to bound the memory for weights."""
    return torch.stack([_head_votes(q[h], keys[h], first, last, scale) for h in range(len(keys))])


def _head_votes(q: Tensor, keys: Tensor, first: int, last: int, scale: float) -> Tensor:
    window, n = q.shape[1], len(keys)
    scores = torch.matmul(q.float(), keys[first:last].float().transpose(-1, -2))
    position = torch.arange(first, last, device=q.device)
    future = position > torch.arange(n - window, n, device=q.device)[:, None]
    weights = scores.mul_(scale).masked_fill_(future, float("-inf")).softmax(-1)
    return weights.nan_to_num_(0.0).sum((0, 1))


LIBRARY.impl("window_votes", reference, "CompositeExplicitAutograd")
