"""Drafts: tokens guessed ahead that run in a decode step's pass, and are kept if sampling gives the same ones.

B slots, R rows of one step, N drafts per slot, T = 1 + N, L layers of a group, V vocabulary. A slot may have fewer
than N.

A step with drafts writes the entries that N steps without them would write, in the same order, so that its attention
and its logits have the same bits. What the drafts overwrote is copied first, and put back if a draft is not kept.
Source: speculative decoding (arXiv 2211.17192). Noise depends on seed, position and token alone, so a draft is kept if
it is the very token that sampling gives: exact at any temperature.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from ringkv.base.sampling import SamplerTier
from ringkv.cache.body import Planes
from ringkv.cache.rings import Rings
from ringkv.engine.batch import Batch, captured_steps
from ringkv.graphs.capture import Capture
from ringkv.kernels.sampling import operators
from ringkv.kernels.sampling.tiers import DRAFT_SAMPLERS, FREE

NONE = -2  # no draft; no sampler returns it


class Drafts:
    """The drafts of all slots: static tensors, filled by `forward` and settled by `settle` or `drop`."""

    def __init__(self, batch: Batch, capture: Capture) -> None:
        self._batch, programs = batch, batch.programs
        self.limit = programs.drafted  # N
        slots, vocab = batch.logits.shape
        self._tokens = torch.full((slots, self.limit), NONE, device=batch.device)
        self._logits = torch.zeros(slots, self.limit, vocab, device=batch.device)  # after each draft
        self._sampled = torch.full_like(self._tokens, NONE)  # from these logits
        self._unforced = torch.full((slots * self.limit,), -1, device=batch.device)
        # By group: entries int64 [this rank's rows, N] that the drafts of a step took, and what these held before.
        self._overwritten: list[tuple[Tensor, Planes]] = []
        self._rows = torch.empty(0, dtype=torch.int64, device=batch.device)
        self._open: dict[int, int] = {}  # by slot, its row in the step whose drafts are not settled
        self._run = captured_steps(programs.drafts.sizes, self._forward, capture)
        self._run_sampler = {tier: capture(partial(self._sample, tier)) for tier in programs.sampling_drafts}
        batch.logits.zero_()  # clears what warming up captured graphs wrote

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self._tokens, self._logits, self._sampled))

    def forward(self, drafts: Mapping[int, Sequence[int]]) -> bool:
        """Feed the tokens sampled last with the drafts of slots; False, and nothing, if no step has so many rows."""
        size = self._batch.programs.drafts.sizes.fit(self._batch.needed) if drafts else None
        if size is None:
            return False
        self._batch.select(size)
        self._tokens.fill_(NONE)
        for slot, tokens in drafts.items():
            self._tokens[slot, : len(tokens)] = torch.tensor(tokens, device=self._tokens.device)
        self._rows = self._batch.rows[:size].clone()
        places = {slot: row for row, slot in enumerate(self._rows.tolist())}
        self._open = {slot: places[slot] for slot in drafts}
        # Not in the captured step: what that allocates is overwritten when the samplers run, before it is put back.
        self._overwritten = self._copies(size)
        self._run(size)
        return True

    @property
    def fits(self) -> bool:
        """Whether a step with all running slots may have drafts."""
        return self.limit > 0 and self._batch.programs.drafts.sizes.fit(self._batch.needed) is not None

    def replay(self, texts: Mapping[int, Sequence[int]]) -> None:
        """Feed 1 to 1 + N known tokens of each slot in one step: drafts that are all kept. Only if a step `fits`."""
        batch = self._batch
        for slot, (token, *_) in texts.items():
            batch.tokens[slot] = token
        if not self.forward({slot: tokens[1:] for slot, tokens in texts.items()}):
            raise AssertionError("no step has so many rows")
        count = (self._tokens != NONE).sum(1)
        last = self._logits[torch.arange(len(count), device=count.device), (count - 1).clamp(min=0)]
        batch.logits.copy_(torch.where(count[:, None] > 0, last, batch.logits))
        for rings in batch.rings:
            rings.advance(count.int())
        self._tokens.fill_(NONE)
        self._open = {}

    def _copies(self, size: int) -> list[tuple[Tensor, Planes]]:
        """Return what the drafts of the next step will overwrite."""
        share, rows = self._batch.share, self._batch.rows[:size]
        places, taken = share.own_places(rows), [share.own(entry[:, 1:].long()) for entry, _ in self._numbers(rows)]
        return [(entries, body.copy(places, entries)) for entries, body in zip(taken, self._batch.bodies, strict=True)]

    def _numbers(self, rows: Tensor) -> list[list[Tensor]]:
        """Return the entries and live counts int32 [R, T] of a step's tokens, by group."""
        is_drafted = self._tokens[rows] != NONE
        runs = torch.cat((torch.ones_like(is_drafted[:, :1]), is_drafted), 1)
        return [list(_ahead(rings, rows, runs)) for rings in self._batch.rings]

    def _forward(self, size: int) -> None:
        """Run one decode step with drafts. Only the sampled tokens are counted as seen."""
        batch, rows = self._batch, self._batch.rows[:size]
        slots, lengths = batch.share.places(rows), batch.rings[0].length[rows, None]
        numbers = self._numbers(rows)
        tokens = torch.cat((batch.tokens[rows, None], self._tokens[rows]), 1)
        positions = lengths + torch.arange(tokens.shape[1], device=batch.device)
        arguments = ([slots, *numbers[group], *tensors] for group, tensors in batch.slots)
        graphs = batch.programs.drafts[size]
        x = batch.programs.run(graphs, tokens.flatten().clamp(min=0), positions.flatten(), arguments)
        logits = batch.programs.logits(x).view(*tokens.shape, -1)
        batch.logits.index_copy_(0, rows, logits[:, 0])
        self._logits.index_copy_(0, rows, logits[:, 1:])
        for rings in batch.rings:
            rings.advance()

    def settle(self) -> tuple[Tensor, ...]:
        """Sample after all drafts, and keep those that were sampled, if any are open; after `Batch.sample`.

        A draft is kept if it and all drafts before it equal the sampled tokens. Returns the tokens sampled after drafts
        int64 [B, N], how many of them count int64 [B], and if a slot reports them, the scores of these tokens: their
        log-probabilities [B, N], and the top ids and theirs [B, N, TOP].
        """
        if not self._open:
            return ()
        batch = self._batch
        asked = [batch.owner(slot)[0].sampling for slot in self._open]
        tier = max(each.tier for each in asked)
        self._run_sampler[tier if tier in DRAFT_SAMPLERS else SamplerTier.TRUNCATED]()
        sampled = self._sampled.clone()
        scores = self._scores(sampled) if any(each.logprobs is not None for each in asked) else ()
        before = torch.cat((batch.tokens[:, None], sampled[:, :-1]), 1)
        is_kept = (before == self._tokens).long().cumprod(1).bool()
        self._put_back((~is_kept & (self._tokens != NONE))[self._rows])
        self._tokens.fill_(NONE)
        self._open = {}
        kept = is_kept.sum(1)
        runs = torch.cat((batch.tokens[:, None], sampled), 1)
        batch.tokens.copy_(runs.gather(1, kept[:, None])[:, 0])
        batch.sampling.count(sampled.where(torch.arange(self.limit, device=batch.device) < kept[:, None], -1))
        for rings in batch.rings:
            rings.advance(kept.int())
        return sampled, kept, *scores

    def _scores(self, sampled: Tensor) -> tuple[Tensor, ...]:
        scored = self._batch.sampling.scored.repeat_interleave(self.limit)
        scores = operators.top_logprobs(self._logits.flatten(0, 1), sampled.flatten(), scored)
        return tuple(score.unflatten(0, sampled.shape) for score in scores)

    def _sample(self, tier: SamplerTier) -> None:
        """Sample after each draft."""
        inputs, ahead = self._batch.sampler_inputs(), torch.arange(1, self.limit + 1, device=self._tokens.device)
        arguments = [
            self._logits.flatten(0, 1),
            self._unforced,
            (inputs.position[:, None] + ahead).flatten(),
            inputs.seed.repeat_interleave(self.limit),
            inputs.temperature.repeat_interleave(self.limit),
            torch.where(self._tokens == NONE, FREE, inputs.tier[:, None]).int().flatten(),
            inputs.params.repeat_interleave(self.limit, 0),
        ]
        (tokens,) = self._batch.programs.sampling_drafts[tier](arguments)
        self._sampled.copy_(tokens.view_as(self._sampled))

    def drop(self, slot: int) -> None:
        """Reject the drafts of one slot."""
        row = self._open.pop(slot, None)
        if row is None:
            return
        rejected = torch.zeros(len(self._rows), self.limit, dtype=torch.bool, device=self._tokens.device)
        rejected[row] = self._tokens[slot] != NONE
        self._put_back(rejected)
        self._tokens[slot] = NONE

    def _put_back(self, rejected: Tensor) -> None:
        """Write back what rejected drafts of the step, bool [R, N], overwrote."""
        places, mask = self._batch.share.own_places(self._rows), self._batch.share.own(rejected)
        for body, (entries, copies) in zip(self._batch.bodies, self._overwritten, strict=True):
            body.put_back(places, entries, copies, mask)


def _ahead(rings: Rings, rows: Tensor, runs: Tensor) -> Iterator[Tensor]:
    """Yield entries and live counts int32 [R, T] of a step's tokens, runs bool [R, T].

    A token that does not run has the first token's entry, which is written anyway, and no live entries.
    """
    tokens = range(runs.shape[1])
    entry = torch.stack([rings.next_entry(token)[rows] for token in tokens], 1)
    live = torch.stack([rings.live_after_next(token)[rows] for token in tokens], 1)
    yield torch.where(runs, entry, entry[:, :1])
    yield torch.where(runs, live, 0)
