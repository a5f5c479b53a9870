"""CalibratedBody: slots that are reviewed by what queries are expected to be, so that they keep none.

L layers of a group, R rows, H key-value heads, C entries per row. Decode attention reads plain slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.cache.body import Body
from ringkv.cache.formats.storage import Allocate
from ringkv.cache.reviewed_body import ReviewedBody, Turn
from ringkv.cache.watching.triattention import ExpectedQueries, score


@dataclass(frozen=True)
class CalibratedBody(ReviewedBody):
    """noted: the positions alone. expected: one per layer."""

    expected: tuple[ExpectedQueries, ...] = ()

    @classmethod
    def allocate(cls, group: LayerGroup, rows: int, entries: int, allocate: Allocate) -> "CalibratedBody":
        planes = Body.allocate(group, rows, entries, allocate).planes
        shape = len(group.layers), rows, group.spec.key.heads, entries
        return cls(group, planes, noted=(allocate(shape, dtype=torch.int32),))

    def expecting(self, expected: Sequence[ExpectedQueries]) -> "CalibratedBody":
        """Return the same memory, which reviews rank by these queries."""
        return replace(self, expected=tuple(expected))

    def observe(self, turn: Turn) -> None:
        (positions,) = turn.noted
        positions[:, -turn.newest :] = torch.arange(turn.seen - turn.newest, turn.seen, device=self.device)

    def scores(self, turn: Turn, is_fixed: Tensor) -> Tensor:
        return score(turn.planes[0], self.expected[turn.layer], turn.seen, is_fixed)
