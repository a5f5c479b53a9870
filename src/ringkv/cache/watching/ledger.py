"""ledger: what reviews note of each entry of a slot, and what they see of it.

L layers, H key-value heads, G query heads each, W queries of a review, n live entries, R reviews of the history.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.kernels.window_votes import window_votes


class Ledger(NamedTuple):
    """The entries of one layer of a slot, as views; a review changes them in place.

    positions int32 [H, n]. mass float32 [H, n]: the attention that an entry got from the prompt's last queries and all
    later ones, the mean of its query heads. counts uint8 [H, n, R]: how many queries of each of the last R reviews gave
    it at least 1/t, if the query's token is the t-th of the text; the newest review is last.
    """

    positions: Tensor
    mass: Tensor
    counts: Tensor

    def note(self, attention: Tensor, seen: int) -> None:
        """Add the attention of the last W of `seen` tokens, float32 [H, W, n]."""
        self.mass.add_(attention.sum(1))
        self.counts.copy_(torch.cat((self.counts[..., 1:], _high(attention, seen)[..., None]), -1))

    def append(self, count: int, seen: int) -> None:
        """Begin the last `count` entries, which hold the newest of `seen` tokens."""
        own = slice(self.positions.shape[1] - count, None)
        self.positions[:, own] = torch.arange(seen - count, seen, device=self.positions.device)
        self.mass[:, own] = 0
        self.counts[:, own] = 0


class Review(NamedTuple):
    """One layer of a slot in a review, after it was noted.

    q [H, G, W, D], keys and values [H, n, D], rotated. first: the first position whose query `ledger.counts` counts.
    seen: tokens so far.
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    ledger: Ledger
    first: int
    seen: int


def attention(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Return float32 [H, W, n], what the last W queries [H, G, W, D] give to keys [H, n, D]; mean over query heads."""
    return torch.stack([_of_head(*one, scale) for one in zip(q, keys, strict=True)])


def _of_head(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    window, n = q.shape[1], len(keys)
    scores = torch.matmul(q.float() * scale, keys.float().T)
    at = torch.arange(n, device=q.device)
    return scores.masked_fill_(at > at[n - window :, None], float("-inf")).softmax(-1).mean(0)


def of_prompt(prompt: StagedPrompt, queries: int) -> Tensor:
    """Return float32 [L, H, n], the mass that each token of a prompt gets from its last `queries`, or all it has."""
    each = ((q[:, :, -queries:].contiguous(), keys) for q, keys in zip(prompt.q, prompt.keys, strict=True))
    return torch.stack([window_votes(q, keys, 0, keys.shape[1], prompt.scale) / q.shape[1] for q, keys in each])


def _high(attention: Tensor, seen: int) -> Tensor:
    """Return uint8 [H, n], how many of the last W of `seen` tokens give at least 1/t."""
    window = attention.shape[1]
    tokens = torch.arange(seen - window + 1, seen + 1, device=attention.device)
    return (attention >= 1 / tokens[:, None]).sum(1).to(torch.uint8)
