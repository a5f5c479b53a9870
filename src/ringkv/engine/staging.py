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


class Staged(NamedTuple):
    """A whole prompt in its lane, until the lane takes the next one; logits float32 [V] of its last token."""

    lane: int
    generation: int  # how many prompts its lane had taken then, this one included
    tokens: tuple[int, ...]
    logits: Tensor

    @property
    def length(self) -> int:
        return len(self.tokens)


def allocate(
    layers: int, lanes: int, heads: int, groups: int, tokens: int, width: int, window: int, like: Tensor
) -> Staging:
    """Zeroed once, so that padding never holds a NaN; the type and device are those of `like`."""
    keys, values = (like.new_zeros(layers, lanes, heads, tokens, width) for _ in range(2))
    return Staging(keys, values, like.new_zeros(layers, lanes, heads, groups, window, width))
