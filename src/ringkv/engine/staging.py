"""The staging workspace: caches of the prompts being prefilled, fixed in size.

All lanes share one row of S entries. A lane is a run of these, as long as its prompt, and a window of queries. Layers
with a sliding window stage only what the next tokens attend to; see `lane_storage`.

L layers and N readers of a group, P lanes, H key-value heads, G query heads each, W last queries, D head_dim.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.engine import Cached
from ringkv.base.workspace import Workspace
from ringkv.cache.allocate import allocate_plain
from ringkv.cache.body import Body, Planes
from ringkv.cache.compress.unequal_heads import missing
from ringkv.cache.earlier import Earlier
from ringkv.cache.rows import CacheRow, Span
from ringkv.engine.held_tokens import Held
from ringkv.engine.lane_storage import LaneStorage, storage_of
from ringkv.kernels.prefill_attend import Segment, table, tables


class StagingSizes(NamedTuple):
    """lanes: P. entries: S, of all lanes. window: W. chunk: most tokens of one prompt in a pass.

    compacts: whether a prompt may be longer than its lane.
    """

    lanes: int
    entries: int
    window: int
    chunk: int
    compacts: bool = False


class Staging:
    """Entries of all lanes, and each lane's last queries, which select what is kept.

    bodies: one per group. queries: one per group, [N, P, H, G, W, D] of its N readers, rotated, right-aligned.
    tokens: one per group, int32 [L, H, S], which token each entry of a compacted lane holds; [L, H, 0] if lanes are not
    compacted, or the group has a sliding window. begins: one per group, int64 [L, P, H] on the CPU, the first place of
    each head in each lane; None if heads have equal slots, and so the same places.
    """

    def __init__(
        self,
        bodies: Sequence[Body],
        storages: Sequence[LaneStorage],
        queries: Sequence[Tensor],
        tokens: Sequence[Tensor],
        begins: Sequence[Tensor | None],
        entries: int,
    ) -> None:
        self.bodies, self.queries, self.tokens, self.entries = tuple(bodies), tuple(queries), tuple(tokens), entries
        self._begins = tuple(begins)
        self._storages = tuple(storages)
        self._lanes = [CacheRow(self.bodies, 0, tuple(Span() for _ in bodies), 0) for _ in range(self.lanes)]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.bodies) + sum(part.nbytes for part in (*self.queries, *self.tokens))

    @property
    def device(self) -> torch.device:
        return self.queries[0].device

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
        return [*(plane[row, 0] for plane in self.bodies[group].planes), self.queries[group][reader]]

    def tables(self, group: int, segments: Sequence[Segment]) -> Sequence[Tensor]:
        """Return the table of a pass's segments for each layer of a group."""
        begins = self._begins[group]
        if begins is None:
            return [table(segments)] * len(self.bodies[group].group.layers)
        return tables(segments, begins).unbind()

    def begin(self, lane: int, first: int, count: int, loaded: int = 0) -> CacheRow:
        """Give a lane the entries from `first` on. Its first `loaded` tokens are about to be written."""
        self.set_begins(lane, [None] * len(self.bodies))
        spans = tuple(storage.begin(lane, first, loaded) for storage in self._storages)
        self._lanes[lane] = CacheRow(self.bodies, 0, spans, count)
        return self._lanes[lane]

    def set_begins(self, lane: int, begins: Sequence[Tensor | None]) -> None:
        """Set the first place of each head of a lane, by group int64 [L, H]; None if all have the same places."""
        for own, new in zip(self._begins, begins, strict=True):
            assert own is not None or new is None, "these heads have equal slots"
            if own is not None:
                own[:, lane] = 0 if new is None else new

    def lane(self, lane: int) -> CacheRow:
        """Return a lane's entries."""
        return self._lanes[lane]

    def make_room(self, lane: int, start: int, stop: int) -> tuple[Span, ...]:
        """Make room for a lane's tokens start .. stop-1. Returns the lane's span in each group."""
        row = self._lanes[lane]
        each = zip(self._storages, self.bodies, row.spans, strict=True)
        spans = tuple(storage.make_room(body, span, start, stop) for storage, body, span in each)
        self._lanes[lane] = row._replace(spans=spans)
        return spans

    def compact(self, lane: int, full: Workspace, kept: Sequence[Tensor | None], dropped: int, following: int) -> None:
        """Compact a full lane in place, by group, to the entries `kept`; see `LaneStorage.compact`.

        dropped: entries that earlier compactions have evicted. following: tokens until the next compaction, or the
        prompt's end. If they are fewer than W, the last queries will be theirs and some of those that are there.
        """
        row = self._lanes[lane]
        each = zip(self._storages, self.bodies, row.spans, kept, strict=True)
        spans = tuple(storage.compact(body, span, full, places) for storage, body, span, places in each)
        for tokens, (shift, _), places in zip(self.tokens, row.spans, kept, strict=True):
            if places is not None:
                _note(tokens[..., shift : shift + full.size], places, dropped)
        self._lanes[lane] = row._replace(spans=spans)
        for windows in self.queries:
            left = windows[:, lane, ..., following:, :].clone()
            windows[:, lane, ..., : left.shape[-2], :] = left

    def tokens_of(self, lane: int, group: int, entries: Tensor) -> Tensor:
        """Return int64 like entries [L, H, n], which tokens these entries of a compacted lane hold; EMPTY for EMPTY."""
        tokens, (shift, _) = self.tokens[group], self._lanes[lane].spans[group]
        found = tokens.long().gather(2, (entries + shift).clamp(min=0))
        return torch.where(entries < 0, entries, found)

    def save(self, lane: int) -> "Saved":
        """Copy what tokens after the end of a lane's prompt may overwrite."""
        row, queries = self._lanes[lane], [windows[:, lane].clone() for windows in self.queries]
        each = zip(self._storages, self.bodies, row.spans, strict=True)
        return Saved(row, [storage.copy(body, span) for storage, body, span in each], queries)

    def restore(self, lane: int, saved: "Saved") -> None:
        """Write a copy back."""
        self._lanes[lane] = saved.row
        for storage, body, span, planes in zip(self._storages, self.bodies, saved.row.spans, saved.planes, strict=True):
            storage.write(body, span, planes)
        for windows, queries in zip(self.queries, saved.queries, strict=True):
            windows[:, lane] = queries


class Saved(NamedTuple):
    """A lane, its planes in each group that stages a part of them, and its queries."""

    row: CacheRow
    planes: list[Planes]
    queries: list[Tensor]


class Start(NamedTuple):
    """What a lane begins with. is_dense: each cached token has an entry, at its own place.

    earlier: by group and plane, the encoded entries among them. held, begins, votes: what is known of the entries that
    a conversation left, see `SavedConversation`.
    """

    cached: Cached = Cached()
    is_dense: bool = True
    earlier: Sequence[Sequence[Earlier]] = ()
    held: Held = ()
    begins: Sequence[Tensor | None] = ()
    votes: Sequence[Tensor] = ()

    @property
    def missing(self) -> int:
        """Entries that heads have less, on average, than the one with the most."""
        return missing(self.begins[0] if self.begins else None)


def allocate(groups: Sequence[LayerGroup], readers: Sequence[int], sizes: StagingSizes, like: Tensor) -> Staging:
    """Allocate zeroed entries, so that padding never holds a NaN, with the dtype and device of `like`.

    readers: layers that read each group's caches.
    """
    lanes, entries, window, chunk, compacts = sizes
    held = [group.staged_entries(entries, lanes, chunk) for group in groups]
    return Staging(
        [allocate_plain(group, 1, count, like.new_zeros) for group, count in zip(groups, held, strict=True)],
        [storage_of(group, chunk, count < entries) for group, count in zip(groups, held, strict=True)],
        [
            like.new_zeros(count, lanes, g.spec.key.heads, g.queries, window, g.spec.key.width)
            for g, count in zip(groups, readers, strict=True)
        ],
        [
            like.new_zeros(
                len(g.layers), g.spec.key.heads, entries if compacts and g.window is None else 0, dtype=torch.int32
            )
            for g in groups
        ],
        [
            torch.zeros(len(g.layers), lanes, g.spec.key.heads, dtype=torch.int64) if g.slots.is_ragged else None
            for g in groups
        ],
        entries,
    )


def _note(tokens: Tensor, kept: Tensor, dropped: int) -> None:
    """Note in place, int32 [L, H, size], which tokens a lane holds once its entries `kept` are its first ones.

    dropped: entries that earlier compactions have evicted; if there are none, its tokens are in order so far.
    """
    size, left = tokens.shape[2], kept.shape[2]
    places = torch.arange(size, dtype=tokens.dtype, device=tokens.device)
    if not dropped:
        tokens[:] = places
    tokens[..., :left] = tokens.gather(2, kept)
    tokens[..., left:] = places[left:] + dropped + size - left
