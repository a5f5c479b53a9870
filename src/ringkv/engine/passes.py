"""Passes: pieces of prompts, and rows of slots if they ride, through all layers at once.

N rows: those of the pieces, in their order, then R rows of slots, then padding. L layers.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.cache.body import Body, Span
from ringkv.engine.fed import Fed, RowNumbers
from ringkv.engine.load import ModelWeights
from ringkv.engine.prefetch import Prefetch
from ringkv.engine.programs import Programs
from ringkv.engine.staging import Staging
from ringkv.kernels.latent_slots import NO_SLOT
from ringkv.kernels.prefill_attend import Segment
from ringkv.models.decoder import Decoder


class Piece(NamedTuple):
    """Tokens of a prompt that one pass prefills.

    start: the place of the first token in the lane. length: the places that the whole prompt takes. gap: a token's
    position in the text minus its place. is_read: whether its hidden states or its queries are used after the pass;
    else only its keys and values are.
    """

    tokens: Sequence[int]
    lane: int
    start: int
    length: int
    gap: int = 0
    is_read: bool = True


class Passes:
    """Runs passes over the staging and the slots."""

    def __init__(
        self,
        decoder: Decoder,
        weights: ModelWeights,
        staging: Staging,
        bodies: Sequence[Body],
        programs: Programs,
        prefetch: Prefetch | None,
    ) -> None:
        self._decoder, self._weights, self._staging, self._programs = decoder, weights, staging, programs
        self._device, self._prefetch = staging.queries[0].device, prefetch
        self._places = decoder.places
        self._staged = [staging.layer(*place) for place in decoder.places]
        self._slots = [bodies[place.group].layer(place.row) for place in decoder.places]
        self._no_slots = self._nothing_fed()
        self._no_slot = 0 if decoder.config.slot_share.count == 1 else NO_SLOT
        self._writers = 1 + max(decoder.config.kv_source)  # the layers after these read earlier layers' caches only

    def run(self, pieces: Sequence[Piece], fed: Fed | None = None) -> Tensor:
        """Run one pass, and return the hidden states [N, hidden] of its rows, padding included.

        If nothing is read after it, it ends with the last layer that has keys and values of its own.
        """
        fed = fed or self._no_slots
        before = sum(len(piece.tokens) for piece in pieces)
        rows = self._programs.passes.sizes.fit(before + len(fed.tokens))
        assert rows is not None
        after = rows - before - len(fed.tokens)
        tokens, positions = self._numbers(pieces, after)
        embedded = self._decoder.embed(_between(tokens, fed.tokens, before), self._weights.shared)
        x = embedded.x
        rotations = self._decoder.rotations(_between(positions, fed.positions, before))
        segments = self._segments(pieces)
        at = [numbers.among(before, rows, self._no_slot) for numbers in fed.at] if self._programs.rides else []
        graphs = self._programs.passes[rows]
        is_read = len(fed.tokens) or any(piece.is_read for piece in pieces)
        of_slots = self._decoder.rotations(fed.positions) if self._prefetch else {}
        for layer, kind in enumerate(self._decoder.kinds[: None if is_read else self._writers]):
            if self._prefetch and len(fed.tokens):
                self._prefetch.before(layer, len(fed.tokens), x[before : before + len(fed.tokens)], of_slots, fed)
            weights = self._weights.layers[layer]
            (group, row, _), staged = self._places[layer], self._staged[layer]
            slots = [*at[group], *self._slots[layer]] if self._programs.rides else []
            arguments = [embedded.layer_argument(layer, x), *rotations[kind]]
            (x,) = graphs[kind]([*arguments, segments[group][row], *staged, *slots, *weights.values()])
        return x

    def _numbers(self, pieces: Sequence[Piece], after: int) -> Iterator[Tensor]:
        """Yield the tokens and the positions of pieces, and of so many rows of padding after them."""
        tokens = [token for piece in pieces for token in piece.tokens] + [0] * after
        yield self._moved(torch.tensor(tokens))
        starts = ((piece.start + piece.gap, len(piece.tokens)) for piece in pieces)
        yield self._moved(
            torch.cat([*(torch.arange(start, start + n) for start, n in starts), torch.zeros(after)]).long()
        )

    def _segments(self, pieces: Sequence[Piece]) -> list[Sequence[Tensor]]:
        """Make room for the pieces in the staging, and return the table of their segments by group and layer."""
        spans = [self._staging.make_room(one.lane, one.start, one.start + len(one.tokens)) for one in pieces]
        groups = range(len(self._decoder.groups))
        each = (list(_placed(pieces, [by_group[group] for by_group in spans])) for group in groups)
        return [self._staging.tables(group, segments) for group, segments in enumerate(each)]

    def _moved(self, numbers: Tensor) -> Tensor:
        if self._device.type == "cuda":
            return numbers.pin_memory().to(self._device, non_blocking=True)
        return numbers

    def _nothing_fed(self) -> Fed:
        none = torch.empty(0, dtype=torch.int64, device=self._device)
        return Fed(none, none, tuple(RowNumbers(*[none.int()] * 3) for _ in self._decoder.groups))


def _between(rows: Tensor, others: Tensor, at: int) -> Tensor:
    """Insert `others` into rows at a place."""
    return torch.cat((rows[:at], others, rows[at:])) if len(others) else rows


def _placed(pieces: Sequence[Piece], spans: Sequence[Span]) -> Iterator[Segment]:
    """Yield the segments of one group. Places count from the lane's first entry that is left."""
    row = 0
    for piece, (shift, low) in zip(pieces, spans, strict=True):
        start, length = piece.start - low, piece.length - low
        yield Segment(row, len(piece.tokens), piece.lane, low + shift, start, length)
        row += len(piece.tokens)
