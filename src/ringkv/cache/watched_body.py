"""WatchedBody: slots for policies that watch decoding. They keep the last queries, which reviews attend with.

L layers of a group, R rows, H key-value heads, G query heads each, C entries per row, N queries, D elements of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringkv.base.cache_spec import HISTORY, LayerGroup
from ringkv.cache.body import Body
from ringkv.cache.formats.earlier import Earlier
from ringkv.cache.formats.storage import Allocate
from ringkv.cache.reviewed_body import ReviewedBody, Turn
from ringkv.cache.watching.ledger import Ledger, Review, attention
from ringkv.cache.watching.scores import SCORES


@dataclass(frozen=True)
class WatchedBody(ReviewedBody):
    """Beside the planes are the queries [L, R, N + 1, H, G, D] of `keep_queries`.

    noted: the positions, masses and counts of a `Ledger`.
    """

    @classmethod
    def allocate(cls, group: LayerGroup, rows: int, entries: int, allocate: Allocate) -> "WatchedBody":
        planes = Body.allocate(group, rows, entries, allocate).planes
        layers, key = len(group.layers), group.spec.key
        queries = allocate((layers, rows, group.review + 1, key.heads, group.queries, key.width))
        each = (torch.int32, ()), (torch.float32, ()), (torch.uint8, (HISTORY,))
        noted = (allocate((layers, rows, key.heads, entries, *last), dtype=dtype) for dtype, last in each)
        return cls(group, planes, (queries,), tuple(noted))

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

    def observe(self, turn: Turn) -> None:
        ledger = Ledger(*turn.noted)
        ledger.append(turn.newest, turn.seen)
        ledger.note(attention(self._newest_queries(turn), turn.planes[0], self.group.spec.scale), turn.seen)

    def scores(self, turn: Turn, is_fixed: Tensor) -> Tensor:
        first = max(turn.layout.prompt, turn.seen - HISTORY * turn.layout.review)
        q, (keys, values), ledger = self._newest_queries(turn), turn.planes, Ledger(*turn.noted)
        review = Review(q, keys, values, self.group.spec.scale, ledger, first, turn.seen)
        return SCORES[turn.choice.policy](review, turn.choice)

    def _newest_queries(self, turn: Turn) -> Tensor:
        """Return [H, G, W, D], the queries of the tokens since the layer's last turn, oldest first.

        A review between them moves their entries, not their queries.
        """
        queries = self.beside[0][turn.layer, turn.row]
        newest = range(turn.seen - turn.newest, turn.seen)
        at = [turn.layout.entry(position) % (len(queries) - 1) for position in newest]
        return queries[torch.tensor(at, device=self.device)].permute(1, 2, 0, 3)
