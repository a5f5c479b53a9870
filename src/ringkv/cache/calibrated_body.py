"""CalibratedBody: slots that are reviewed by what queries are expected to be, so that they keep none.

L layers of a group, R rows, H key-value heads, C entries per row. Decode attention reads plain slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.kv import KVChoice, Layout
from ringkv.cache.body import Body
from ringkv.cache.formats.storage import Allocate
from ringkv.cache.watching.evict import evict, fixed
from ringkv.cache.watching.triattention import ExpectedQueries, score


@dataclass(frozen=True, kw_only=True)
class CalibratedBody(Body):
    """positions: int32 [L, R, H, C], of the token that each entry holds. expected: one per layer."""

    positions: Tensor
    expected: tuple[ExpectedQueries, ...] = ()

    @classmethod
    def allocate(cls, group: LayerGroup, rows: int, entries: int, allocate: Allocate) -> "CalibratedBody":
        planes = Body.allocate(group, rows, entries, allocate).planes
        shape = len(group.layers), rows, group.spec.key.heads, entries
        return cls(group, planes, positions=allocate(shape, dtype=torch.int32))

    def expecting(self, expected: Sequence[ExpectedQueries]) -> "CalibratedBody":
        """Return the same memory, which reviews rank by these queries."""
        return replace(self, expected=tuple(expected))

    @property
    def bytes(self) -> int:
        return super().bytes + self.positions.nbytes

    def note(self, row: int, tokens: Tensor) -> None:
        self.positions[:, row, :, : tokens.shape[-1]] = tokens

    def review(self, row: int, layout: Layout, seen: int, choice: KVChoice) -> None:
        """Note the newest tokens, and keep the best entries of a slot that is full; in place."""
        live, count = layout.live(seen), min(layout.review, seen - layout.prompt)
        self.positions[:, row, :, live - count : live] = torch.arange(seen - count, seen, device=self.device)
        if live < layout.capacity:
            return
        for layer, expected in zip(range(len(self.group.layers)), self.expected, strict=True):
            planes = [one[layer, row, :, :live] for one in (*self.planes, self.positions)]
            is_fixed = fixed(planes[-1], layout, seen, choice)
            evict(planes, score(planes[0], expected, seen, is_fixed), is_fixed, layout.review)
