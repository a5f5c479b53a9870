"""LaneStorage: where a group of layers stages the tokens of a lane.

FullStorage            an entry for each token, in the entries that the lane was given
SlidingWindowStorage   a window and a chunk for each lane, whose entries move up as tokens leave the window
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.kv import BLOCK
from ringkv.base.workspace import Workspace
from ringkv.cache.body import Body, Planes
from ringkv.cache.rows import Span


class LaneStorage(Protocol):
    def begin(self, lane: int, first: int, loaded: int) -> Span:
        """Return the span of a new lane whose entries begin at `first` and whose first `loaded` tokens are cached."""

    def make_room(self, body: Body, span: Span, start: int, stop: int) -> Span:
        """Make room for tokens start .. stop-1 in place, and return the span of the lane then."""

    def compact(self, body: Body, span: Span, full: Workspace, kept: Tensor | None) -> Span:
        """Let the entries `kept` int64 [L, H, full.kept] of a full lane be its first ones, or its newest if None.

        Returns the span of the lane then.
        """

    def copy(self, body: Body, span: Span) -> Planes:
        """Copy what tokens after a prompt's end may overwrite."""

    def write(self, body: Body, span: Span, planes: Planes) -> None:
        """Write such a copy back."""


class FullStorage:
    def begin(self, lane: int, first: int, loaded: int) -> Span:
        return Span(first)

    def make_room(self, body: Body, span: Span, start: int, stop: int) -> Span:
        return span

    def compact(self, body: Body, span: Span, full: Workspace, kept: Tensor | None) -> Span:
        if kept is None:
            body.move(0, span.shift + full.block, span.shift, full.kept)
        else:
            body.compact(0, span.shift, kept)
        return span

    def copy(self, body: Body, span: Span) -> Planes:
        return ()  # a lane has entries after its prompt

    def write(self, body: Body, span: Span, planes: Planes) -> None:
        assert not planes


class SlidingWindowStorage(NamedTuple):
    """window: tokens that a token attends to, itself included. size: entries of each lane.

    A lane begins at a multiple of BLOCK tokens, as kernels cut a prompt on such a grid and the store saves blocks.
    """

    window: int
    size: int

    def begin(self, lane: int, first: int, loaded: int) -> Span:
        return self._from(lane * self.size, loaded)

    def make_room(self, body: Body, span: Span, start: int, stop: int) -> Span:
        assert start >= span.low, "these tokens are no longer staged"
        if stop - span.low <= self.size:
            return span
        to = self._moved(body, span, start)
        assert stop - to.low <= self.size, "the piece is longer than a chunk"
        return to

    def compact(self, body: Body, span: Span, full: Workspace, kept: Tensor | None) -> Span:
        """The tokens that the next one attends to get earlier places, as in the other layers."""
        assert kept is None
        to = self._moved(body, span, full.size)
        assert to.low >= full.block, "the window is longer than what a compaction leaves"
        return Span(to.shift + full.block, to.low - full.block)

    def copy(self, body: Body, span: Span) -> Planes:
        at = self._place(span)
        return tuple(plane.clone() for plane in body.read(0, slice(at, at + self.size)))

    def write(self, body: Body, span: Span, planes: Planes) -> None:
        body.write(0, self._place(span), planes)

    def _place(self, span: Span) -> int:
        """Return the lane's first entry."""
        return span.low + span.shift

    def _moved(self, body: Body, span: Span, token: int) -> Span:
        """Move all tokens that `token` attends to to the lane's first entry, and return their span."""
        at = self._place(span)
        to = self._from(at, token)
        body.move(0, to.low + span.shift, at, token - to.low)
        return to

    def _from(self, at: int, token: int) -> Span:
        """Return the span, from entry `at` on, of all tokens that `token` attends to."""
        low = max(0, token - self.window + 1) // BLOCK * BLOCK
        return Span(at - low, low)


def storage_of(group: LayerGroup, chunk: int, is_partial: bool) -> LaneStorage:
    """Return a group's storage. is_partial: its layers hold fewer entries than tokens."""
    size = group.lane_entries(chunk)
    if not is_partial:
        return FullStorage()
    assert group.window is not None
    assert size is not None
    return SlidingWindowStorage(group.window, size)
