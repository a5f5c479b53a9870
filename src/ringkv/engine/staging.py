"""The staging workspace: caches of the prompts being prefilled, fixed in size.

All lanes share one row of S entries. A lane is a run of these, as long as its prompt, and a window of queries. Layers
with a sliding window stage only what the next tokens attend to.

L layers and N readers of a group, P lanes, H key-value heads, G query heads each, W last queries, D head_dim.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.config import EngineConfig
from ringkv.base.kv import BLOCK
from ringkv.base.workspace import Workspace
from ringkv.cache.allocate import allocate_plain
from ringkv.cache.body import Body, Planes
from ringkv.cache.rows import CacheRow, Span
from ringkv.kernels.prefill_attend import Segment, table, tables
from ringkv.models.decoder import Decoder


class LaneStorage(NamedTuple):
    """Where a group of layers stages the tokens of a lane.

    If `window` is None, each token has an entry, in the entries that a lane was given. Else a lane has a sliding window
    and a chunk, whose entries move up as tokens leave the window. window: tokens that a token attends to, itself
    included. size: entries of each such lane. It begins at a multiple of BLOCK tokens, as kernels cut a prompt on such
    a grid and the store saves blocks.
    """

    window: int | None = None
    size: int = 0

    def begin(self, lane: int, first: int, loaded: int) -> Span:
        """Return the span of a new lane whose entries begin at `first` and whose first `loaded` tokens are cached."""
        return Span(first) if self.window is None else self._from(lane * self.size, loaded)

    def make_room(self, body: Body, span: Span, start: int, stop: int) -> Span:
        """Make room for tokens start .. stop-1 in place, and return the span of the lane then."""
        assert start >= span.low, "these tokens are no longer staged"
        if self.window is None or stop - span.low <= self.size:
            return span
        moved = self._moved(body, span, start)
        assert stop - moved.low <= self.size, "the piece is longer than a chunk"
        return moved

    def compact(self, body: Body, span: Span, full: Workspace, kept: Tensor | None) -> Span:
        """Let the entries `kept` int64 [L, H, full.kept] of a full lane be its first ones, or its newest if None.

        The tokens that the next one attends to get earlier places in all layers. Returns the span of the lane then.
        """
        if kept is not None:
            body.compact(0, span.shift, kept)
            return span
        if self.window is None:
            body.move(0, span.shift + full.block, span.shift, full.kept)
            return span
        moved = self._moved(body, span, full.size)
        assert moved.low >= full.block, "the window is longer than what a compaction leaves"
        return Span(moved.shift + full.block, moved.low - full.block)

    def copy(self, body: Body, span: Span) -> Planes:
        """Copy what tokens after a prompt's end may overwrite: nothing, if the lane has entries after its prompt."""
        if self.window is None:
            return ()
        first = span.low + span.shift
        return tuple(plane.clone() for plane in body.read(0, slice(first, first + self.size)))

    def write(self, body: Body, span: Span, planes: Planes) -> None:
        """Write such a copy back."""
        if planes:
            body.write(0, span.low + span.shift, planes)

    def _moved(self, body: Body, span: Span, token: int) -> Span:
        """Move all tokens that `token` attends to to the lane's first entry, and return their span."""
        first = span.low + span.shift
        moved = self._from(first, token)
        body.move(0, moved.low + span.shift, first, token - moved.low)
        return moved

    def _from(self, first: int, token: int) -> Span:
        """Return the span, from entry `first` on, of all tokens that `token` attends to."""
        assert self.window is not None
        low = max(0, token - self.window + 1) // BLOCK * BLOCK
        return Span(first - low, low)


class Staging:
    """Entries of all lanes, and each lane's last queries, which select what is kept.

    entries: S. lanes: the entries of each. bodies: one per group. queries: one per group, [N, P, H, G, W, D] of its N
    readers, rotated, right-aligned.
    """

    def __init__(self, decoder: Decoder, config: EngineConfig, like: Tensor) -> None:
        """Allocate zeroed entries, so that padding never holds a NaN, with the dtype and device of `like`."""
        lanes, self.entries, self.device = config.lanes, config.staged_entries, like.device
        self.groups, readers = decoder.groups, Counter(place.group for place in decoder.places)
        bodies: list[Body] = []
        self.queries: list[Tensor] = []
        self._storages: list[LaneStorage] = []
        # By group int64 [L, P, H] on the CPU, the first place of each head in each lane, or None if heads have equal
        # slots, and so the same places.
        self._begins: list[Tensor | None] = []
        for index, group in enumerate(self.groups):
            heads, size = group.spec.key.heads, group.lane_entries(config.chunk) or 0
            count = group.staged_entries(self.entries, lanes, config.chunk)
            bodies.append(allocate_plain(group, 1, count, like.new_zeros))
            self._storages.append(LaneStorage(group.window, size) if count < self.entries else LaneStorage())
            shape = readers[index], lanes, heads, group.queries, config.kv.window, group.spec.key.width
            self.queries.append(like.new_zeros(shape))
            begins = torch.zeros(len(group.layers), lanes, heads, dtype=torch.int64)
            self._begins.append(begins if group.slots.is_ragged else None)
        self.bodies = tuple(bodies)
        self.lanes = [CacheRow(self.bodies, 0, (Span(),) * len(bodies))] * lanes

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.bodies) + sum(part.nbytes for part in self.queries)

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
            return [table(segments)] * len(self.groups[group].layers)
        return tables(segments, begins).unbind()

    def begin(self, lane: int, first: int, loaded: int = 0) -> CacheRow:
        """Give a lane the entries from `first` on. Its first `loaded` tokens are about to be written."""
        self.set_begins(lane, [None] * len(self.bodies))
        spans = tuple(storage.begin(lane, first, loaded) for storage in self._storages)
        self.lanes[lane] = CacheRow(self.bodies, 0, spans)
        return self.lanes[lane]

    def set_begins(self, lane: int, begins: Sequence[Tensor | None]) -> None:
        """Set the first place of each head of a lane, by group int64 [L, H], or None if heads have the same places."""
        for places, new in zip(self._begins, begins, strict=True):
            assert places is not None or new is None, "these heads have equal slots"
            if places is not None:
                places[:, lane] = 0 if new is None else new

    def make_room(self, lane: int, start: int, stop: int) -> tuple[Span, ...]:
        """Make room for a lane's tokens start .. stop-1. Returns the lane's span in each group."""
        row = self.lanes[lane]
        each = zip(self._storages, self.bodies, row.spans, strict=True)
        spans = tuple(storage.make_room(body, span, start, stop) for storage, body, span in each)
        self.lanes[lane] = row._replace(spans=spans)
        return spans

    def compact(self, lane: int, full: Workspace, kept: Sequence[Tensor | None], following: int) -> None:
        """Compact a full lane in place, by group, to the entries `kept`; see `LaneStorage.compact`.

        following: tokens until the next compaction, or the prompt's end. If they are fewer than W, the last queries
        will be theirs and some of those that are there.
        """
        row = self.lanes[lane]
        each = zip(self._storages, self.bodies, row.spans, kept, strict=True)
        spans = tuple(storage.compact(body, span, full, places) for storage, body, span, places in each)
        self.lanes[lane] = row._replace(spans=spans)
        for windows in self.queries:
            left = windows[:, lane, ..., following:, :].clone()
            windows[:, lane, ..., : left.shape[-2], :] = left

    @contextmanager
    def preserved(self, lane: int) -> Iterator[None]:
        """Write back at the end what tokens after the end of a lane's prompt have overwritten."""
        row, queries = self.lanes[lane], [windows[:, lane].clone() for windows in self.queries]
        each = list(zip(self._storages, self.bodies, row.spans, strict=True))
        copies = [storage.copy(body, span) for storage, body, span in each]
        try:
            yield
        finally:
            self.lanes[lane] = row
            for (storage, body, span), planes in zip(each, copies, strict=True):
                storage.write(body, span, planes)
            for windows, copy in zip(self.queries, queries, strict=True):
                windows[:, lane] = copy
