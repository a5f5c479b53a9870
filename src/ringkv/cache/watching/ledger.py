"""ledger: what reviews note of each entry of a slot.

H key-value heads, G query heads each, W queries of a review, n live entries, R reviews of the history, D elements of a
head.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Ledger(NamedTuple):
    """The entries of one layer of a slot, as views; a review changes them in place.

    positions int32 [H, n]: of the token that each entry holds. counts uint8 [H, n, R]: how many queries of each of the
    last R reviews gave it at least 1/t, if the query's token is the t-th of the text; the newest review is last.
    """

    positions: Tensor
    counts: Tensor

    def append(self, count: int, seen: int) -> None:
        """Begin the last `count` entries, which hold the newest of `seen` tokens."""
        newest = slice(self.positions.shape[1] - count, None)
        self.positions[:, newest] = torch.arange(seen - count, seen, device=self.positions.device)
        self.counts[:, newest] = 0

    def note(self, attention: Tensor, seen: int) -> None:
        """Add the attention of the last W of `seen` tokens, float32 [H, W, n]."""
        tokens = torch.arange(seen - attention.shape[1] + 1, seen + 1, device=attention.device)
        high = (attention >= 1 / tokens[:, None]).sum(1).to(torch.uint8)
        self.counts.copy_(torch.cat((self.counts[..., 1:], high[..., None]), -1))

    def scores(self, first: int) -> Tensor:
        """Return float32 [H, n], none negative: how many queries gave each entry a high weight or did not see it.

        So the entries with the most low weights have the lowest scores. first: the first position whose query is
        counted.
        """
        return self.counts.sum(-1).float() + (self.positions - first).clamp(min=0)


def attention(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Return float32 [H, W, n], what the last W queries [H, G, W, D] give to keys [H, n, D]; mean over query heads."""
    return torch.stack([_of_head(*head, scale) for head in zip(q, keys, strict=True)])


def _of_head(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    window, n = q.shape[1], len(keys)
    scores = torch.matmul(q.float() * scale, keys.float().T)
    places = torch.arange(n, device=q.device)
    return scores.masked_fill_(places > places[n - window :, None], float("-inf")).softmax(-1).mean(0)
