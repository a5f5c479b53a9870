"""H2O: the entries that got the most attention so far stay.

Source: H2O (arXiv 2306.14048), Algorithm 1. The paper evicts one entry at each step; here a review evicts several. Of
the prompt's queries only the last ones count, whose queries staging has.
"""

from torch import Tensor

from ringkv.base.kv import KVChoice
from ringkv.cache.watching.ledger import Review


def score(review: Review, choice: KVChoice) -> Tensor:
    """Return the mass of attention, float32 [H, n]."""
    return review.ledger.mass
