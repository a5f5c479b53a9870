"""Expected attention: what queries to come would attend to, if they are like those seen.

H key-value heads, G query heads each, W window queries, n prompt tokens, D head_dim.
Source: Expected Attention (arXiv 2510.00636). Queries before their rotation are taken for a Gaussian, which is turned
to the positions that follow. With s the scale of scores, the expected weight of a key k is
exp(s mu k + s^2 k' Sigma k / 2), and it counts by the length of its value. The paper estimates mu and Sigma from all
tokens of the prompt; here they are of its last W.
"""

import torch
from torch import Tensor

from ringkv.base.selectors import ExpectedAttention
from ringkv.cache.compress.prompt import Prompt

AHEAD = 512  # positions over which the rotation is averaged


def votes(prompt: Prompt, low: int, high: int, selector: ExpectedAttention) -> Tensor:
    """Expected weights as shares of the candidates, mean over the G query heads, times the values' lengths."""
    n, window = prompt.seen, prompt.q.shape[3]
    back = -torch.arange(n - window, n, device=prompt.keys.device)
    ahead = _mean_turn(prompt, n)
    layers = zip(prompt.q, prompt.keys[:, :, low:high], prompt.values[:, :, low:high], strict=True)
    return torch.cat(
        [_of_layer(prompt.turn(q, back) @ ahead, keys, values, prompt.scale) for q, keys, values in layers]
    )


def _mean_turn(prompt: Prompt, n: int) -> Tensor:
    """float32 [D, D], which a row is multiplied by: the mean of the rotations to n .. n + AHEAD - 1."""
    width, device = prompt.keys.shape[-1], prompt.keys.device
    unit = torch.eye(width, device=device)[:, None].expand(-1, AHEAD, -1)
    return prompt.turn(unit, torch.arange(n, n + AHEAD, device=device)).mean(1)


def _of_layer(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """float32 [H, candidates]; q float32 [H, G, W, D] are the queries turned ahead."""
    mean = q.mean(2, keepdim=True)
    spread = q - mean
    heads = keys.float()
    scores = (mean @ heads[:, None].transpose(-1, -2))[:, :, 0] * scale  # [H, G, candidates]
    # k' Sigma k is the mean over the window of (spread k) squared: Sigma itself is never made.
    scores += (spread @ heads[:, None].transpose(-1, -2)).square().mean(2) * (scale**2 / 2)
    expected: Tensor = scores.softmax(-1).mean(1) * values.float().norm(dim=-1)
    return expected
