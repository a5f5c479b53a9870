"""scores: how policies that watch decoding rank the entries of a slot. The lowest are evicted.

H key-value heads, n live entries.
"""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.cache.watching import h2o, reselect, scissorhands
from ringkv.cache.watching.ledger import Review


class Score(Protocol):
    """Returns float32 [H, n], what each entry is worth, none negative."""

    def __call__(self, review: Review, choice: KVChoice) -> Tensor: ...


SCORES: Mapping[str, Score] = {
    "h2o": h2o.score,
    "scissorhands": scissorhands.score,
    "reselect": reselect.score,
}
