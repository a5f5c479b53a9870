"""Scissorhands: entries that got little attention in the last steps go.

H key-value heads, n live entries.
Source: Scissorhands (arXiv 2305.17118), Algorithm 2, which as printed mixes two readings: it counts low weights, or
high ones. Below 1/t a weight is low; t counts all tokens, not those that are left. The history is that of
`Ledger.counts`.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from ringkv.base.kv import Reading
from ringkv.cache.watching.ledger import Ledger

READ: Mapping[Reading, Callable[[Tensor, Tensor, int], Tensor]] = {
    "low": lambda high, seen_by, counted: counted - (seen_by - high),
    "high": lambda high, seen_by, counted: high,
    "rate": lambda high, seen_by, counted: high / seen_by,
}
"""High weights of an entry, queries that saw it, and all queries that were counted -> its score."""


def score(ledger: Ledger, first: int, seen: int, reading: Reading) -> Tensor:
    """Return float32 [H, n], none negative: the scores of entries after `seen` tokens. The lowest are evicted.

    first: the first position whose query `ledger.counts` counts.
    """
    high = ledger.counts.sum(-1).float()
    seen_by = seen - ledger.positions.clamp(min=first)
    return READ[reading](high, seen_by.float(), seen - first)
