"""Truncation: the tokens that top_k, top_p and min_p keep, found without sorting the vocabulary.

B slots, V vocabulary. Tokens are ranked by logit, the higher first, and equal logits by id, the lower first. What top_k
and top_p keep is the beginning of that order. The logit at its end is found by bisection over all float32 numbers: 32
masked sums of a row each, whatever its logits are. Rows never share a sum, so a slot's tokens depend on no neighbour.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_BITS = 32  # of a float32 number
_LOWEST, _HIGHEST = -0x7F800001, 0x7F800000  # the ranks of -inf and inf, see `_number`
_SMALL = 1e-300  # float64; a mass that any token's is above


class _Kept(NamedTuple):
    """The beginning of the order: all logits above `last`, and the first `ties` of those that equal it; [B, 1] each."""

    last: Tensor
    ties: Tensor


def truncate(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Return float32 [B, V], the logits with -inf for all that is not kept; the highest logit always is.

    logits float32 [B, V]; temperature [B], 0 counts as 1; top_k [B, 1], 0 keeps all; top_p, min_p [B, 1].
    In this order: the top_k highest; of their probabilities the fewest that reach top_p, the one that crosses it
    included (arXiv 1904.09751); those of at least min_p of the highest probability (arXiv 2407.01082).
    """
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    weights = (scaled - scaled.amax(-1, keepdim=True)).exp()  # probabilities, the highest being 1
    kept = _nucleus(logits, weights, top_p, _highest(logits, top_k))
    equal = logits == kept.last
    keep = (logits > kept.last) | (equal & (equal.cumsum(-1, dtype=torch.int32) <= kept.ties))
    return logits.masked_fill(~(keep & (weights >= min_p)), float("-inf"))


def _highest(logits: Tensor, top_k: Tensor) -> _Kept:
    """The top_k highest logits."""
    vocab = logits.shape[1]
    count = torch.where(top_k == 0, vocab, top_k).clamp(max=vocab).int()

    def above(number: Tensor) -> Tensor:
        return (logits > number).sum(-1, keepdim=True, dtype=torch.int32)

    last = _smallest(lambda number: above(number) < count, logits)
    return _Kept(last, count - above(last))


def _nucleus(logits: Tensor, weights: Tensor, top_p: Tensor, most: _Kept) -> _Kept:
    """Of `most` the fewest that hold top_p of its weight. Sums are float64, so that their order makes no difference."""

    def above(number: Tensor) -> Tensor:
        return torch.where(logits > number, weights, 0.0).sum(-1, keepdim=True, dtype=torch.float64)

    def of_one(number: Tensor) -> Tensor:
        return torch.where(logits == number, weights, 0.0).amax(-1, keepdim=True).double()

    wanted = (top_p * (above(most.last) + most.ties * of_one(most.last))).clamp(min=_SMALL)
    last = _smallest(lambda number: above(number) < wanted, logits)
    ties = ((wanted - above(last)) / of_one(last)).ceil().int()
    return _Kept(torch.where(top_p == 1, most.last, last), torch.where(top_p == 1, most.ties, ties))


def _smallest(holds: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Return float32 [B, 1], the smallest number for which `holds` is true; it is true for all larger ones too."""
    rank = torch.full((logits.shape[0], 1), _LOWEST, dtype=torch.int64, device=logits.device)
    for bit in reversed(range(_BITS)):
        half = 1 << bit
        rank = torch.where(holds(_number(rank + half - 1)), rank, rank + half)
    return _number(rank)


def _number(rank: Tensor) -> Tensor:
    """The float32 number of an int64 rank: ranks are in the order of the numbers, and that of 0.0 is 0."""
    bits = rank.clamp(max=_HIGHEST).int()
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).view(torch.float32)
