"""Truncation by top_k, top_p and min_p without sorting the vocabulary.

B slots, V vocabulary. Tokens are ranked by logit, highest first, and ties by id, lowest first. top_k and top_p keep a
prefix of that order. The logit at its end is found by bisection over all float32 values: 32 masked sums per row for any
logits. Rows never share a sum, so a slot's tokens do not depend on its neighbours.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_PART = 256  # tokens
_BITS = 32  # of a float32
_LOWEST, _HIGHEST = -0x7F800001, 0x7F800000  # the ranks of -inf and inf, see `_float_of`
_MIN_MASS = 1e-300  # float64, below any token's probability mass


class _Kept(NamedTuple):
    """A prefix of the order: all logits above `last`, and the first `ties` of those equal to it; [B, 1] each."""

    last: Tensor
    ties: Tensor


def truncate(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Return float32 [B, V], the logits with -inf for tokens that are not kept. The highest logit is always kept.

    logits float32 [B, V]; temperature [B], 0 counts as 1; top_k [B, 1], 0 keeps all; top_p, min_p [B, 1].
    Keeps, in this order: the top_k highest; of these the fewest whose probabilities reach top_p (arXiv 1904.09751);
    those with at least min_p of the highest probability (arXiv 2407.01082).
    """
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    weights = (scaled - scaled.amax(-1, keepdim=True)).exp()  # probabilities, scaled so that the highest is 1
    kept = _nucleus(logits, weights, top_p, _highest(logits, top_k))
    keep = (logits > kept.last) | _first(logits == kept.last, kept.ties)
    return logits.masked_fill(~(keep & (weights >= min_p)), float("-inf"))


def _first(equal: Tensor, count: Tensor) -> Tensor:
    """Return which of the true elements of each row of bool [B, V] are among its first `count` [B, 1].

    They are counted by part: torch 2.11 cannot compile a scan of a whole vocabulary for CUDA.
    """
    vocab = equal.shape[1]
    parts = torch.nn.functional.pad(equal.int(), (0, -vocab % _PART)).unflatten(1, (-1, _PART))
    sizes = parts.sum(-1, keepdim=True, dtype=torch.int32)
    before = sizes.cumsum(1, dtype=torch.int32) - sizes
    place = (parts.cumsum(-1, dtype=torch.int32) + before).flatten(1)[:, :vocab]
    is_first: Tensor = equal & (place <= count)
    return is_first


def _highest(logits: Tensor, top_k: Tensor) -> _Kept:
    """Keep the top_k highest logits."""
    vocab = logits.shape[1]
    count = torch.where(top_k == 0, vocab, top_k).clamp(max=vocab).int()

    def above(bound: Tensor) -> Tensor:
        return (logits > bound).sum(-1, keepdim=True, dtype=torch.int32)

    last = _smallest(lambda bound: above(bound) < count, logits)
    return _Kept(last, count - above(last))


def _nucleus(logits: Tensor, weights: Tensor, top_p: Tensor, candidates: _Kept) -> _Kept:
    """Keep the fewest of `candidates` that reach top_p of its weight. Float64 sums make the order irrelevant."""

    def above(bound: Tensor) -> Tensor:
        return torch.where(logits > bound, weights, 0.0).sum(-1, keepdim=True, dtype=torch.float64)

    def of_one(logit: Tensor) -> Tensor:
        return torch.where(logits == logit, weights, 0.0).amax(-1, keepdim=True).double()

    target = (top_p * (above(candidates.last) + candidates.ties * of_one(candidates.last))).clamp(min=_MIN_MASS)
    last = _smallest(lambda bound: above(bound) < target, logits)
    ties = ((target - above(last)) / of_one(last)).ceil().int()
    return _Kept(torch.where(top_p == 1, candidates.last, last), torch.where(top_p == 1, candidates.ties, ties))


def _smallest(holds: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Return float32 [B, 1], the smallest value for which `holds` is true; it must be true for all larger ones."""
    rank = torch.full((logits.shape[0], 1), _LOWEST, dtype=torch.int64, device=logits.device)
    for bit in reversed(range(_BITS)):
        half = 1 << bit
        rank = torch.where(holds(_float_of(rank + half - 1)), rank, rank + half)
    return _float_of(rank)


def _float_of(rank: Tensor) -> Tensor:
    """Return the float32 value of an int64 rank: ranks are ordered like the values, and that of 0.0 is 0."""
    bits = rank.clamp(max=_HIGHEST).int()
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).view(torch.float32)
