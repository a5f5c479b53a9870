"""The staging workspace: dense keys and values of the prompts being prefilled, fixed in size.

L layers, P lanes, H key-value heads, G query heads each, S prompt tokens, D head_dim, W window.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class Staging:
    keys: Tensor  # [L, P, H, S, D]
    values: Tensor  # [L, P, H, S, D]
    window: Tensor  # [L, P, H, G, W, D], each lane's last W queries, rotated, right-aligned

    @property
    def bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.window.nbytes


class Start(NamedTuple):
    """The first `tokens` of a prompt need no prefill: `entries` in its lane stand for them, one each if `is_dense`."""

    tokens: int = 0
    entries: int = 0
    is_dense: bool = True

    @property
    def gap(self) -> int:
        """Tokens without an entry: by so much a token's position is more than its place in the lane."""
        return self.tokens - self.entries


class Staged(NamedTuple):
    """A whole prompt in its lane, until the lane takes the next one; logits float32 [V] of its last token."""

    lane: int
    generation: int  # how many prompts its lane had taken then, this one included
    tokens: tuple[int, ...]
    logits: Tensor
    start: Start = Start()

    @property
    def length(self) -> int:
        """Entries, one for each token but those that an earlier turn had evicted."""
        return len(self.tokens) - self.start.gap

    @property
    def read(self) -> int:
        """Tokens that were prefilled in this lane, whose last queries are known."""
        return len(self.tokens) - self.start.tokens


def allocate(
    layers: int, lanes: int, heads: int, groups: int, tokens: int, width: int, window: int, like: Tensor
) -> Staging:
    """Zeroed once, so that padding never holds a NaN; the type and device are those of `like`."""
    keys, values = (like.new_zeros(layers, lanes, heads, tokens, width) for _ in range(2))
    return Staging(keys, values, like.new_zeros(layers, lanes, heads, groups, window, width))
