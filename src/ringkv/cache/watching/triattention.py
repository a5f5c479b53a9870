"""TriAttention: the entries that the queries to come will attend to most, by what is known of all queries, stay.

Queries before rotation vary little around their mean, so the mean says how the attention to a key changes with its
distance: a sum of cosines. Source: TriAttention (arXiv 2604.04921), where a pair f of elements is a complex number:

    mean over o of sum over f ( |q_f| |k_f| cos((t - j + o) w_f + phi_f) ) + sum over f ( (a_f - |q_f|) |k_f| )

q_f: the mean query. a_f: the mean length of queries. k_f: the key before rotation, of the token at j. phi_f: the angle
from k_f to q_f. t: the newest position. A cached key has j w_f in its angle already. So the first sum is a dot product
of cached keys with the mean query, rotated by t and averaged over the offsets o; no key is rotated back.

An element that does not rotate is a pair of its own. H key-value heads, G query heads each, n live entries, D elements,
F pairs.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.cache.compress.staged_prompt import Rotate

OFFSETS = tuple(2**power for power in range(17))
"""How far ahead the queries are that may attend to an entry: 1 to 65,536 tokens."""
LEAST_DEVIATION = 1e-6  # of scores, so that equal ones are not divided by 0


class Rotary(NamedTuple):
    """How a layer rotates: x [..., N, D] by int positions [N], and the lengths [..., F] of the pairs of x [..., D]."""

    rotate: Rotate
    lengths: Callable[[Tensor], Tensor]


class ExpectedQueries(NamedTuple):
    """What a layer's queries will be like.

    mean float32 [H, G, D]: rotated by each offset, and averaged. spread float32 [H, G, F]: how much longer queries are
    than their mean, on average.
    """

    mean: Tensor
    spread: Tensor
    rotary: Rotary

    @classmethod
    def of(cls, mean: Tensor, lengths: Tensor, rotary: Rotary) -> "ExpectedQueries":
        """mean [H, G, D], lengths [H, G, F]: of queries before rotation, and of the lengths of their pairs."""
        offsets = torch.tensor(OFFSETS, device=mean.device)
        ahead = rotary.rotate(mean[..., None, :].expand(-1, -1, len(offsets), -1), offsets)
        return cls(ahead.mean(-2), lengths - rotary.lengths(mean), rotary)

    def scores(self, keys: Tensor, newest: int) -> Tensor:
        """Return float32 [H, G, n], what each query head expects of cached keys [H, n, D] after position `newest`."""
        wide, at = keys.float(), torch.full((1,), newest, device=keys.device)
        mean = self.rotary.rotate(self.mean[..., None, :], at)[..., 0, :]
        return mean @ wide.mT + self.spread @ self.rotary.lengths(wide).mT


def score(keys: Tensor, expected: ExpectedQueries, seen: int, is_fixed: Tensor) -> Tensor:
    """Return float32 [H, n], none negative: what entries are worth after `seen` tokens.

    The scores of a query head are normalised over the entries that may be evicted; the highest of its query heads
    counts. An entry among the best of all heads is among the best of the head that ranks it highest, so the paper's
    union of each head's best needs no step of its own.
    """
    found = expected.scores(keys, seen - 1)
    free = ~is_fixed[:, None]
    count = free.sum(-1, keepdim=True)
    centered = found - (found * free).sum(-1, keepdim=True) / count
    deviation = ((centered.square() * free).sum(-1, keepdim=True) / count).sqrt().clamp(min=LEAST_DEVIATION)
    best = (centered / deviation).amax(1)
    return best - best.amin(-1, keepdim=True)
