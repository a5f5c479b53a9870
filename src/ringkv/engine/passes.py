"""Passes: pieces of prompts, and rows of slots if they ride, through all layers at once.

N rows: those of the pieces, in their order, then R rows of slots, then padding. L layers.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.cache.body import Body
from ringkv.cache.rows import Span
from ringkv.engine.programs import Programs
from ringkv.engine.staging import Staging
from ringkv.kernels.latent_slots import NO_SLOT
from ringkv.kernels.prefill_attend import Segment
from ringkv.kernels.slots import Rows, flat


class PromptPiece(NamedTuple):
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


class Fed(NamedTuple):
    """The rows of slots in one pass: their tokens and positions int64 [R], and by group of layers their numbers.

    The slot of a row is one of `SlotShare.places`.
    """

    tokens: Tensor
    positions: Tensor
    numbers: tuple[Rows, ...]


class Passes:
    """Runs passes over the staging and the slots."""

    def __init__(self, programs: Programs, staging: Staging, bodies: Sequence[Body]) -> None:
        self.programs, self.staging = programs, staging
        decoder, none = programs.decoder, torch.empty(0, dtype=torch.int64, device=staging.device)
        self._places, self._groups = decoder.places, range(len(decoder.groups))
        self._staged = [staging.layer(*place) for place in decoder.places]
        self._slots = [flat(bodies[place.group].layer(place.row)) for place in decoder.places]
        self._no_slots = Fed(none, none, tuple(Rows(*[none.int()] * 3) for _ in decoder.groups))
        self._no_slot = 0 if decoder.config.slot_share.count == 1 else NO_SLOT
        self._writers = 1 + max(decoder.config.kv_source)  # the layers after these read earlier layers' caches only

    def run(self, pieces: Sequence[PromptPiece], fed: Fed | None = None) -> Tensor:
        """Run one pass, and return the hidden states [N, stream] of its rows, padding included.

        If nothing is read after it, it ends with the last layer that has keys and values of its own.
        """
        fed = fed or self._no_slots
        before = sum(len(piece.tokens) for piece in pieces)
        rows = self.programs.passes.sizes.fit(before + len(fed.tokens))
        assert rows is not None
        tokens, positions = self._numbers(pieces, rows - before - len(fed.tokens))
        is_read = len(fed.tokens) or any(piece.is_read for piece in pieces)
        return self.programs.run(
            self.programs.passes[rows],
            _between(tokens, fed.tokens, before),
            _between(positions, fed.positions, before),
            self._arguments(pieces, fed, before, rows, None if is_read else self._writers),
        )

    def _arguments(
        self, pieces: Sequence[PromptPiece], fed: Fed, before: int, rows: int, layers: int | None
    ) -> Iterator[Sequence[Tensor]]:
        """Make room for the pieces in the staging, and yield the arguments of each of the first layers."""
        spans = [self.staging.make_room(piece.lane, piece.start, piece.start + len(piece.tokens)) for piece in pieces]
        segments = [
            self.staging.tables(group, list(_placed(pieces, [by_group[group] for by_group in spans])))
            for group in self._groups
        ]
        numbers = [self._among(slots, before, rows) for slots in fed.numbers] if self.programs.rides else []
        for (group, row, _), staged, slots in zip(self._places[:layers], self._staged, self._slots, strict=False):
            yield [segments[group][row], *staged, *((*numbers[group], *slots) if numbers else ())]

    def _among(self, numbers: Rows, before: int, rows: int) -> Rows:
        """Return numbers for a pass of so many rows, of which the first `before` are not the slots'."""
        around = before, rows - before - len(numbers.slot)
        each = zip(numbers, (self._no_slot, 0, 0), strict=True)
        return Rows(*(torch.nn.functional.pad(number, around, value=value) for number, value in each))

    def _numbers(self, pieces: Sequence[PromptPiece], after: int) -> Iterator[Tensor]:
        """Yield the tokens and the positions of pieces, and of so many rows of padding after them."""
        yield self._moved(torch.tensor([token for piece in pieces for token in piece.tokens] + [0] * after))
        starts = ((piece.start + piece.gap, len(piece.tokens)) for piece in pieces)
        positions = torch.cat([*(torch.arange(start, start + n) for start, n in starts), torch.zeros(after)])
        yield self._moved(positions.long())

    def _moved(self, numbers: Tensor) -> Tensor:
        device = self.staging.device
        return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers


def _between(rows: Tensor, others: Tensor, place: int) -> Tensor:
    """Insert `others` into rows at a place."""
    return torch.cat((rows[:place], others, rows[place:])) if len(others) else rows


def _placed(pieces: Sequence[PromptPiece], spans: Sequence[Span]) -> Iterator[Segment]:
    """Yield the segments of one group. Places count from the lane's first entry that is left."""
    row = 0
    for piece, (shift, low) in zip(pieces, spans, strict=True):
        start, length = piece.start - low, piece.length - low
        yield Segment(row, len(piece.tokens), piece.lane, low + shift, start, length)
        row += len(piece.tokens)
