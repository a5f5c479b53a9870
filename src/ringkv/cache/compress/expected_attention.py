"""Expected attention: the attention of future queries, if they are distributed like those of the prompt.

H key-value heads, G query heads each, W window queries, n prompt tokens, D head_dim.
Source: Expected Attention (arXiv 2510.00636). Queries before rotation are modelled as a Gaussian, which is rotated to
the positions that follow. With s the scale of scores, the expected weight of a key k is
exp(s mu k + s^2 k' Sigma k / 2). It is multiplied by the norm of the value. The paper estimates mu and Sigma from all
tokens of the prompt; here they are estimated from the last W.
"""

import torch
from torch import Tensor

from ringkv.base.selectors import ExpectedAttention
from ringkv.cache.compress.staged_prompt import Rotate, StagedPrompt
from ringkv.cache.compress.vote_reduction import VoteReduction

AHEAD = 512  # positions over which the rotation is averaged


def votes(prompt: StagedPrompt, low: int, high: int, selector: ExpectedAttention) -> Tensor:
    """Return expected weights as shares of the candidates, averaged over G query heads, times the values' norms."""
    n, window = prompt.seen, prompt.q[0].shape[2]
    back = -torch.arange(n - window, n, device=prompt.keys.device)
    ahead = {rotate: _mean_rotation(prompt, rotate, n) for rotate in set(prompt.rotate)}
    layers = zip(prompt.q, prompt.rotate, prompt.keys[:, :, low:high], prompt.values[:, :, low:high], strict=True)
    return torch.cat(
        [
            _layer_votes(rotate(q, back) @ ahead[rotate], keys, values, prompt.scale, prompt.reduction)
            for q, rotate, keys, values in layers
        ]
    )


def _mean_rotation(prompt: StagedPrompt, rotate: Rotate, n: int) -> Tensor:
    """Return float32 [D, D], the mean of the rotations to positions n .. n + AHEAD - 1, for row vectors."""
    width, device = prompt.keys.shape[-1], prompt.keys.device
    unit = torch.eye(width, device=device)[:, None].expand(-1, AHEAD, -1)
    return rotate(unit, torch.arange(n, n + AHEAD, device=device)).mean(1)


def _layer_votes(q: Tensor, keys: Tensor, values: Tensor, scale: float, reduction: VoteReduction) -> Tensor:
    """Return float32 [H, candidates]; q float32 [H, G, W, D] are the queries rotated ahead."""
    mean = q.mean(2, keepdim=True)
    spread = q - mean
    heads = keys.float()
    scores = (mean @ heads[:, None].transpose(-1, -2))[:, :, 0] * scale  # [H, G, candidates]
    # k' Sigma k is the mean over the window of (spread k) squared: Sigma itself is never computed.
    scores += (spread @ heads[:, None].transpose(-1, -2)).square().mean(2) * (scale**2 / 2)
    expected: Tensor = reduction.mean(scores.softmax(-1).mean(1)) * values.float().norm(dim=-1)
    return expected
