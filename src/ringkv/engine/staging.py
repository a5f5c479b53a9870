"""The staging workspace: dense caches of the prompts being prefilled, fixed in size.

L layers of a group, P lanes, H key-value heads, G query heads each, W last queries, D head_dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.cache.body import Body, CacheRow


@dataclass(frozen=True)
class Staging:
    """Lanes of S entries, and each lane's last queries, which select what is kept."""

    bodies: tuple[Body, ...]  # one per group
    queries: tuple[Tensor, ...]  # one per group: [L, P, H, G, W, D], rotated, right-aligned

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.bodies) + sum(part.nbytes for part in self.queries)

    @property
    def entries(self) -> int:
        """S, entries per lane."""
        return self.bodies[0].entries

    @property
    def window(self) -> int:
        """W, queries kept per lane."""
        return self.queries[0].shape[4]

    def lane(self, lane: int) -> CacheRow:
        return CacheRow(self.bodies, lane)


class Start(NamedTuple):
    """The cached prefix of a prompt: its `tokens`, and their `entries` in the lane, one each if `is_dense`."""

    tokens: int = 0
    entries: int = 0
    is_dense: bool = True

    @property
    def gap(self) -> int:
        """Tokens without an entry. A token's position is its place in the lane plus this."""
        return self.tokens - self.entries


def allocate(groups: Sequence[LayerGroup], lanes: int, tokens: int, window: int, like: Tensor) -> Staging:
    """Allocate zeroed lanes, so that padding never holds a NaN, with the dtype and device of `like`."""
    return Staging(
        tuple(Body.allocate(group, lanes, tokens, like.new_zeros) for group in groups),
        tuple(
            like.new_zeros(len(g.layers), lanes, g.spec.key.heads, g.queries, window, g.spec.key.width) for g in groups
        ),
    )
