"""HeadsBody: slots whose entries all heads of all layers divide, each taking as many as it needs.

L layers of a group, R rows, H key-value heads, C entries per head on average, D elements of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.cache.body import Body, Planes, WholeRows
from ringkv.cache.formats.earlier import Earlier
from ringkv.cache.formats.storage import Allocate


@dataclass(frozen=True)
class HeadsBody(WholeRows):
    """Planes [1, R, 1, L H C, D]; beside them are the `places` int32 [L, R, H, 2] of `decode_attend_heads`."""

    average: int = 0

    @classmethod
    def allocate(cls, group: LayerGroup, rows: int, entries: int, allocate: Allocate) -> "HeadsBody":
        layers, heads = len(group.layers), group.spec.key.heads
        planes = (allocate((1, rows, 1, layers * heads * entries, one.width)) for one in group.spec.planes)
        places = allocate((layers, rows, heads, 2), dtype=torch.int32)
        return cls(group, tuple(planes), (places,), entries)

    @property
    def entries(self) -> int:
        return self.average

    def layer(self, index: int) -> Planes:
        return (*(plane[0] for plane in self.planes), self.beside[0][index])

    def take(
        self,
        row: int,
        source: Body,
        source_row: int,
        index: Tensor,
        fixed: int = 0,
        saliency: Tensor | None = None,
        earlier: Sequence[Earlier] = (),
    ) -> None:
        """Fill a row with entries int64 [L, H, n]; a head with fewer entries than n has EMPTY after its own."""
        counts = (index >= 0).sum(-1)
        layers, heads = counts.shape
        more = counts - int(counts.sum()) // (layers * heads)
        room = more + self.average
        first = room.flatten().cumsum(0).view_as(room) - room
        self.beside[0][:, row] = torch.stack((first, more), -1)
        for plane, theirs in zip(self.planes, source.planes, strict=True):
            own = plane[0, row, 0]
            for layer, starts in enumerate(first.tolist()):
                for head, (start, count) in enumerate(zip(starts, counts[layer].tolist(), strict=True)):
                    taken = index[layer, head, :count]
                    own[start : start + count] = theirs[layer, source_row, head].index_select(0, taken)
                    own[start + count : start + int(room[layer, head])] = 0

    def lengths(self, row: int, live: int) -> Tensor:
        return self.beside[0][:, row, :, 1].cpu().long() + live

    def in_order(self, row: int, order: Tensor, fixed: int) -> Tensor:
        """Of each head its own entries before the ring, then the ring's in their order; head after head."""
        heads = self.beside[0][:, row].flatten(0, 1).tolist()
        protected = torch.arange(fixed + max(more for _, more in heads), device=order.device)
        ring = order[fixed:]
        return torch.cat([part + first for first, more in heads for part in (protected[: fixed + more], ring + more)])

    def copy(self, rows: Tensor, entries: Tensor) -> Planes:
        """Return copies of entries int64 [N, n] of rows int64 [N], which are in the ring: [L, N, n, H, D] each."""
        at = self._in_rings(rows, entries)
        return tuple(plane[0, rows[:, None, None], 0, at] for plane in self.planes)

    def put_back(self, rows: Tensor, entries: Tensor, copies: Planes, mask: Tensor) -> None:
        at, kept = self._in_rings(rows, entries), mask[:, :, None, None]
        for plane, copy in zip(self.planes, copies, strict=True):
            to = 0, rows[:, None, None], 0, at
            plane[to] = torch.where(kept, copy, plane[to])

    def _in_rings(self, rows: Tensor, entries: Tensor) -> Tensor:
        """Return int64 [L, N, n, H], the places of entries int64 [N, n] of rows int64 [N] in their slots."""
        first_and_more = self.beside[0][:, rows].sum(-1)
        return first_and_more[:, :, None].long() + entries[..., None]
