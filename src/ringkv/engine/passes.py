"""Passes: pieces of prompts, and rows of slots if they ride, through all layers at once.

N rows: those of the pieces, in their order, then R rows of slots, then padding. L layers.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.cache.body import Body
from ringkv.cache.rows import Span
from ringkv.engine.load import ModelWeights
from ringkv.engine.programs import Programs
from ringkv.engine.staging import Staging
from ringkv.kernels.latent_slots import NO_SLOT
from ringkv.kernels.prefill_attend import Segment
from ringkv.kernels.slots import flat
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


class RowNumbers(NamedTuple):
    """Where rows write and read in the slots of one group of layers: int32 [R] each; slot as `SlotShare.places`."""

    slot: Tensor
    entry: Tensor
    live: Tensor  # 0 for a row that belongs to no slot

    def among(self, before: int, rows: int, no_slot: int) -> "RowNumbers":
        """Return numbers for a pass of so many rows, of which the first `before` are not the slots'.

        no_slot: the slot of rows that are not the slots'.
        """
        around = before, rows - before - len(self.slot)
        each = ((self.slot, no_slot), (self.entry, 0), (self.live, 0))
        return RowNumbers(*(torch.nn.functional.pad(one, around, value=value) for one, value in each))


class Fed(NamedTuple):
    """The rows of slots in one pass: their tokens and positions int64 [R], and their places by group of layers."""

    tokens: Tensor
    positions: Tensor
    at: tuple[RowNumbers, ...]


class Passes:
    """Runs passes over the staging and the slots."""

    def __init__(
        self, decoder: Decoder, weights: ModelWeights, staging: Staging, bodies: Sequence[Body], programs: Programs
    ) -> None:
        self.decoder, self.weights, self.staging, self.programs = decoder, weights, staging, programs
        self._device = staging.queries[0].device
        self._places = decoder.places
        self._staged = [staging.layer(*place) for place in decoder.places]
        self._slots = [flat(bodies[place.group].layer(place.row)) for place in decoder.places]
        self._no_slots = self._nothing_fed()
        self._no_slot = 0 if decoder.config.slot_share.count == 1 else NO_SLOT
        self._writers = 1 + max(decoder.config.kv_source)  # the layers after these read earlier layers' caches only

    def run(self, pieces: Sequence[Piece], fed: Fed | None = None) -> Tensor:
        """Run one pass, and return the hidden states [N, hidden] of its rows, padding included.

        If nothing is read after it, it ends with the last layer that has keys and values of its own.
        """
        fed = fed or self._no_slots
        before = sum(len(piece.tokens) for piece in pieces)
        rows = self.programs.passes.sizes.fit(before + len(fed.tokens))
        assert rows is not None
        after = rows - before - len(fed.tokens)
        tokens, positions = self._numbers(pieces, after)
        embedded = self.decoder.embed(_between(tokens, fed.tokens, before), self.weights.shared)
        x = embedded.x
        rotations = self.decoder.rotations(_between(positions, fed.positions, before))
        segments = self._segments(pieces)
        at = [numbers.among(before, rows, self._no_slot) for numbers in fed.at] if self.programs.rides else []
        graphs = self.programs.passes[rows]
        is_read = len(fed.tokens) or any(piece.is_read for piece in pieces)
        for layer, kind in enumerate(self.decoder.kinds[: None if is_read else self._writers]):
            weights = self.weights.layers[layer]
            (group, row, _), staged = self._places[layer], self._staged[layer]
            slots = [*at[group], *self._slots[layer]] if self.programs.rides else []
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
        spans = [self.staging.make_room(one.lane, one.start, one.start + len(one.tokens)) for one in pieces]
        groups = range(len(self.decoder.groups))
        each = (list(_placed(pieces, [by_group[group] for by_group in spans])) for group in groups)
        return [self.staging.tables(group, segments) for group, segments in enumerate(each)]

    def _moved(self, numbers: Tensor) -> Tensor:
        if self._device.type == "cuda":
            return numbers.pin_memory().to(self._device, non_blocking=True)
        return numbers

    def _nothing_fed(self) -> Fed:
        none = torch.empty(0, dtype=torch.int64, device=self._device)
        return Fed(none, none, tuple(RowNumbers(*[none.int()] * 3) for _ in self.decoder.groups))


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
