"""WatchedBody: slots for policies that watch decoding. They keep the last queries, which reviews attend with.

L layers of a group, R rows, H key-value heads, G query heads each, C entries per row, N queries, D elements of each.
A review is plain torch between two steps, one slot at a time. So decode attention is unchanged, and what a slot keeps
does not depend on its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.cache_spec import HISTORY, LayerGroup
from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.body import Body, Planes
from ringkv.cache.formats.earlier import Earlier
from ringkv.cache.formats.storage import Allocate
from ringkv.cache.watching.evict import evict, fixed
from ringkv.cache.watching.ledger import Ledger, Review, attention
from ringkv.cache.watching.scores import SCORES


@dataclass(frozen=True)
class WatchedBody(Body):
    """Beside the planes are the queries [L, R, N + 1, H, G, D] of `keep_queries`.

    noted: the positions, masses and counts of a `Ledger`, [L, R, H, C, ...] each.
    """

    noted: Planes = ()

    @classmethod
    def allocate(cls, group: LayerGroup, rows: int, entries: int, allocate: Allocate) -> "WatchedBody":
        planes = Body.allocate(group, rows, entries, allocate).planes
        layers, key = len(group.layers), group.spec.key
        queries = allocate((layers, rows, group.review + 1, key.heads, group.queries, key.width))
        each = (torch.int32, ()), (torch.float32, ()), (torch.uint8, (HISTORY,))
        noted = (allocate((layers, rows, key.heads, entries, *last), dtype=dtype) for dtype, last in each)
        return cls(group, planes, (queries,), tuple(noted))

    @property
    def bytes(self) -> int:
        return super().bytes + sum(one.nbytes for one in self.noted)

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
        super().take(row, source, source_row, index, fixed, saliency, earlier)
        assert saliency is not None
        _, mass, counts = (one[:, row] for one in self.noted)
        counts.zero_()
        mass[..., : index.shape[-1]] = saliency

    def note(self, row: int, tokens: Tensor) -> None:
        self.noted[0][:, row, :, : tokens.shape[-1]] = tokens

    def review(self, row: int, layout: Layout, seen: int, choice: KVChoice) -> None:
        """Note the attention of the newest queries, and keep the best entries of a slot that is full; in place."""
        live, count = layout.live(seen), min(layout.review, seen - layout.prompt)
        newest = torch.arange(live - count, live, device=self.device) % (self.beside[0].shape[2] - 1)
        first = max(layout.prompt, seen - HISTORY * layout.review)
        for layer, queries in enumerate(self.beside[0][:, row]):
            planes = [one[layer, row, :, :live] for one in (*self.planes, *self.noted)]
            keys, values, *noted = planes
            q, ledger, scale = queries[newest].permute(1, 2, 0, 3), Ledger(*noted), self.group.spec.scale
            ledger.append(count, seen)
            ledger.note(attention(q, keys, scale), seen)
            if live == layout.capacity:
                scores = SCORES[choice.policy](Review(q, keys, values, scale, ledger, first, seen), choice)
                evict(planes, scores, fixed(ledger.positions, layout, seen, choice), layout.review)
