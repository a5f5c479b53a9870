"""The staging workspace: dense caches of the prompts being prefilled, fixed in size.

All lanes share one row of S entries. A lane is a run of these, as long as its prompt, and a window of queries.

L layers and N readers of a group, P lanes, H key-value heads, G query heads each, W last queries, D head_dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.engine import Cached
from ringkv.cache.body import Body, CacheRow


@dataclass(frozen=True)
class Staging:
    """Entries of all lanes, and each lane's last queries, which select what is kept."""

    bodies: tuple[Body, ...]  # one per group
    queries: tuple[Tensor, ...]  # one per group: [N, P, H, G, W, D] of its N readers, rotated, right-aligned

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.bodies) + sum(part.nbytes for part in self.queries)

    @property
    def entries(self) -> int:
        """S, entries of all lanes."""
        return self.bodies[0].entries

    @property
    def lanes(self) -> int:
        """P, prompts that are staged at once."""
        return self.queries[0].shape[1]

    @property
    def window(self) -> int:
        """W, queries kept per lane."""
        return self.queries[0].shape[4]

    def layer(self, group: int, row: int, reader: int) -> list[Tensor]:
        """Return one layer's planes [H, S, D], and its windows [P, H, G, W, D], the arguments of its graph."""
        return [*(plane[0] for plane in self.bodies[group].layer(row)), self.queries[group][reader]]

    def entries_of(self, first: int, count: int) -> CacheRow:
        """Return a lane's entries."""
        return CacheRow(self.bodies, 0, first, count)


class Start(NamedTuple):
    """What a lane begins with. is_dense: each cached token has an entry, at its own place."""

    cached: Cached = Cached()
    is_dense: bool = True


def allocate(
    groups: Sequence[LayerGroup], readers: Sequence[int], lanes: int, entries: int, window: int, like: Tensor
) -> Staging:
    """Allocate zeroed entries, so that padding never holds a NaN, with the dtype and device of `like`.

    readers: layers that read each group's caches.
    """
    return Staging(
        tuple(Body.allocate(group, 1, entries, like.new_zeros) for group in groups),
        tuple(
            like.new_zeros(count, lanes, g.spec.key.heads, g.queries, window, g.spec.key.width)
            for g, count in zip(groups, readers, strict=True)
        ),
    )
