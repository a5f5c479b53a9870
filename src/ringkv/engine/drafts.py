"""Drafts: tokens guessed ahead that run in a decode step's pass, and are kept if sampling gives the same ones.

B slots, R rows of one step, N drafts per slot, L layers of a group, V vocabulary. A slot may have fewer than N.

A step with drafts writes the entries that N steps without them would write, in the same order, so that its attention
and its logits have the same bits. What the drafts overwrote is copied first, and put back if a draft is not kept.
Source: speculative decoding (arXiv 2211.17192). Noise depends on seed, position and token alone, so a draft is kept if
it is the very token that sampling gives: exact at any temperature.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.cache.body import Body, Planes
from ringkv.cache.rings import Rings
from ringkv.engine.slot_share import SlotShare
from ringkv.kernels.sampling.tiers import FREE, Inputs

NONE = -2  # no draft; no sampler returns it


class Fed(NamedTuple):
    """One group's part of a step with T = 1 + N tokens per row."""

    entry: Tensor  # int32 [R, T]
    live: Tensor  # int32 [R, T], 0 for a token that does not run


class _Overwritten(NamedTuple):
    entries: Tensor  # int64 [this rank's rows, N] that the drafts of a step took
    copies: Planes  # what they held before


class Drafts:
    """The drafts of all slots: static tensors, filled by `propose` and settled by `verify` or `drop`."""

    def __init__(self, most: int, bodies: Sequence[Body], vocab: int, share: SlotShare) -> None:
        """bodies: of the slots that this rank has. share: which of all they are."""
        device, slots = bodies[0].device, bodies[0].rows * share.ranks
        self.most, self._bodies, self._share = most, bodies, share
        self.tokens = torch.full((slots, most), NONE, device=device)  # int64 [B, N]
        self.logits = torch.zeros(slots, most, vocab, device=device)  # float32 [B, N, V], after each draft
        self.sampled = torch.full_like(self.tokens, NONE)  # int64 [B, N], from these logits
        self._forced = torch.full((slots * most,), -1, device=device)
        self._overwritten: dict[int, list[_Overwritten]] = {}  # by rows of a step
        self._rows = torch.empty(0, dtype=torch.int64, device=device)
        self._open: dict[int, int] = {}  # by slot, its row in the step whose drafts are not settled

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.tokens, self.logits, self.sampled))

    @property
    def open(self) -> list[int]:
        """The slots that have drafts which were fed and not settled."""
        return list(self._open)

    def propose(self, drafts: Mapping[int, Sequence[int]], rows: Tensor) -> None:
        """Store the drafts of a step, by slot. rows int64 [R]: the slot of each row."""
        self.tokens.fill_(NONE)
        for slot, tokens in drafts.items():
            self.tokens[slot, : len(tokens)] = torch.tensor(tokens, device=self.tokens.device)
        places = {slot: row for row, slot in enumerate(rows.tolist())}
        self._rows, self._open = rows, {slot: places[slot] for slot in drafts}

    def feed(self, rows: Tensor, rings: Sequence[Rings]) -> list[Fed]:
        """Return the entries of a step's tokens, by group, and copy what its drafts will overwrite."""
        drafted = self.tokens[rows] != NONE
        runs = torch.cat((torch.ones_like(drafted[:, :1]), drafted), 1)
        fed = [Fed(*_ahead(ring, rows, runs)) for ring in rings]
        self._overwritten[len(rows)] = [
            _Overwritten(entries, body.copy(self._share.own_places(rows), entries))
            for entries, body in zip((self._share.own(at.entry[:, 1:].long()) for at in fed), self._bodies, strict=True)
        ]
        return fed

    def inputs(self, inputs: Inputs) -> list[Tensor]:
        """Return the arguments that sample after all drafts, from those that sample the tokens before them."""
        ahead = torch.arange(1, self.most + 1, device=self.tokens.device)
        return [
            self.logits.flatten(0, 1),
            self._forced,
            (inputs.position[:, None] + ahead).flatten(),
            inputs.seed.repeat_interleave(self.most),
            inputs.temperature.repeat_interleave(self.most),
            torch.where(self.tokens == NONE, FREE, inputs.tier[:, None]).int().flatten(),
        ]

    def verify(self, first: Tensor) -> Tensor:
        """Settle all drafts, and return how many are kept, int64 [B]. first int64 [B]: the tokens sampled before them.

        A draft is kept if it and all drafts before it equal the sampled tokens.
        """
        before = torch.cat((first[:, None], self.sampled[:, :-1]), 1)
        kept = (before == self.tokens).long().cumprod(1).bool()
        rejected = ~kept & (self.tokens != NONE)
        self._put_back(rejected[self._rows])
        self.tokens.fill_(NONE)
        self._open = {}
        return kept.sum(1)

    def drop(self, slot: int) -> None:
        """Reject the drafts of one slot."""
        row = self._open.pop(slot, None)
        if row is None:
            return
        rejected = torch.zeros(len(self._rows), self.most, dtype=torch.bool, device=self.tokens.device)
        rejected[row] = self.tokens[slot] != NONE
        self._put_back(rejected)
        self.tokens[slot] = NONE

    def _put_back(self, rejected: Tensor) -> None:
        """rejected bool [R, N]"""
        places, own = self._share.own_places(self._rows), self._share.own(rejected)
        for body, old in zip(self._bodies, self._overwritten[len(self._rows)], strict=True):
            body.put_back(places, old.entries, old.copies, own)


def _ahead(rings: Rings, rows: Tensor, runs: Tensor) -> Iterator[Tensor]:
    """Yield entries and live counts int32 [R, T] of a step's tokens, runs bool [R, T].

    A token that does not run has the first token's entry, which is written anyway, and no live entries.
    """
    tokens = range(runs.shape[1])
    entry = torch.stack([rings.next_entry(token)[rows] for token in tokens], 1)
    live = torch.stack([rings.live_after_next(token)[rows] for token in tokens], 1)
    yield torch.where(runs, entry, entry[:, :1])
    yield torch.where(runs, live, 0)
