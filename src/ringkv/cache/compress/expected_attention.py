"""Expected attention: the attention of future queries, if they are distributed like those of the prompt.

H key-value heads, G query heads each, W window queries, n prompt tokens, D head_dim.
Source: Expected Attention (arXiv 2510.00636). Queries before rotation are modelled as a Gaussian, which is rotated to
the positions that follow. With s the scale of scores, the expected weight of a key k is
exp(s mu k + s^2 k' Sigma k / 2). It is multiplied by the norm of the value. The paper estimates mu and Sigma from all
tokens of the prompt; here they are estimated from the last W.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ringkv.base.selectors import ExpectedAttention
from ringkv.cache.compress.staged_prompt import Rotate, StagedPrompt, pieces
from ringkv.cache.compress.vote_reduction import VoteReduction

AHEAD = 512  # positions over which the rotation is averaged
ROWS = 16  # of its matrix that are computed at once


def votes(prompt: StagedPrompt, low: int, high: int, selector: ExpectedAttention) -> Iterator[Tensor]:
    """Yield expected weights as shares of the candidates, averaged over G query heads, times the values' norms."""
    n, window = prompt.seen, prompt.q[0].shape[2]
    back = -torch.arange(n - window, n, device=prompt.keys.device)
    ahead = {rotate: _mean_rotation(prompt, rotate, n) for rotate in set(prompt.rotate)}
    layers = zip(prompt.q, prompt.rotate, prompt.keys[:, :, low:high], prompt.values[:, :, low:high], strict=True)
    for q, rotate, keys, values in layers:
        yield _layer_votes(rotate(q, back) @ ahead[rotate], keys, values, prompt.scale, prompt.reduction)


def _mean_rotation(prompt: StagedPrompt, rotate: Rotate, n: int) -> Tensor:
    """Return float32 [D, D], the mean of the rotations to positions n .. n + AHEAD - 1, for row vectors."""
    width, device = prompt.keys.shape[-1], prompt.keys.device
    ahead = torch.arange(n, n + AHEAD, device=device)
    unit = torch.eye(width, device=device)[:, None].expand(-1, AHEAD, -1)
    return torch.cat([rotate(some, ahead).mean(1) for some in unit.split(ROWS)])


def _layer_votes(q: Tensor, keys: Tensor, values: Tensor, scale: float, reduction: VoteReduction) -> Tensor:
    """Return float32 [H, candidates]; q float32 [H, G, W, D] are the queries rotated ahead."""
    mean = q.mean(2)
    spread, queries = (q - mean[:, :, None]).flatten(1, 2), q.shape[1:3]
    scores = mean.new_empty(*mean.shape[:2], keys.shape[1])
    each = pieces(keys, spread.shape[1])
    for some, of_some in zip(each, scores.split(each[0].shape[1], -1), strict=True):
        vectors = some.float().transpose(-1, -2)
        # k' Sigma k is the mean over the window of (spread k) squared: Sigma itself is never computed.
        of_some[:] = (spread @ vectors).square_().unflatten(1, queries).mean(2) * (scale**2 / 2)
        of_some += (mean @ vectors) * scale
    norms = torch.cat([some.float().norm(dim=-1) for some in pieces(values)], 1)
    return reduction.mean(torch.stack([head.softmax(-1).mean(0) for head in scores])) * norms
