"""Scissorhands: entries that got little attention in the last steps go.

Source: Scissorhands (arXiv 2305.17118), Algorithm 2, which as printed mixes two readings: it counts low weights, or
high ones. Below 1/t a weight is low; t counts all tokens, not those that are left. The history is that of
`Ledger.counts`.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from ringkv.base.kv import KVChoice, Reading
from ringkv.cache.watching.ledger import Review

READ: Mapping[Reading, Callable[[Tensor, Tensor, int], Tensor]] = {
    "low": lambda high, seen_by, counted: counted - (seen_by - high),
    "high": lambda high, seen_by, counted: high,
    "rate": lambda high, seen_by, counted: high / seen_by,
}
"""High weights of an entry, queries that saw it, and all queries that were counted -> its score."""


def score(review: Review, choice: KVChoice) -> Tensor:
    """Return float32 [H, n], by `choice.reading`."""
    high = review.ledger.counts.sum(-1).float()
    seen_by = review.seen - review.ledger.positions.clamp(min=review.first)
    return READ[choice.reading](high, seen_by.float(), review.seen - review.first)
