"""Lanes: prompts before they get a slot. They are staged, scored and compressed here.

L layers of a group, H key-value heads, G query heads each, D head_dim, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.config import HeadShares
from ringkv.base.engine import Cached, PrefillChunk
from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice
from ringkv.base.repeat_words import FindWords, no_words
from ringkv.base.request import Request
from ringkv.base.workspace import Workspace
from ringkv.cache.compress.selection import Selection, StagedLane, compress
from ringkv.cache.compress.staged_prompt import GroupView, Rotate, StagedPrompt
from ringkv.cache.compress.vote_reduction import VoteReduction, vote_reduction
from ringkv.cache.compress.working_set import WorkingSet
from ringkv.cache.rows import CacheRow
from ringkv.engine.compaction import NOTHING, check_kept, working_set
from ringkv.engine.held_tokens import Inserted, tokens_at
from ringkv.engine.passes import Passes, Piece
from ringkv.engine.scoring import token_logprobs
from ringkv.engine.staging import Start
from ringkv.engine.turns import Turns
from ringkv.models.base import ModelConfig
from ringkv.models.decoder import Decoder

_NOTHING, _NO_WORKSPACE = Start(), Workspace(0, 0)
SELECTIONS = 8  # of one prompt, kept for requests that share it with the same choices


@dataclass
class _Lane:
    """The prompt that a lane holds."""

    tokens: tuple[int, ...] = ()
    start: Start = _NOTHING
    count: int = 0  # staged entries that are the lane's own
    workspace: Workspace = _NO_WORKSPACE
    working_set: WorkingSet = NOTHING  # what compactions keep
    dropped: int = 0  # entries that compactions have evicted from each head
    logits: Tensor | None = None  # float32 [V] of its last token, once all of it is prefilled
    selections: dict[KVChoice, Selection] = field(default_factory=dict)  # of the requests that share the prompt

    @property
    def gap(self) -> int:
        """Tokens that an earlier turn or a compaction evicted. A token's position is its place plus this."""
        return self.start.cached.gap + self.dropped

    @property
    def entries(self) -> int:
        """Entries once it is full, or its prompt is prefilled: one for each token that was not evicted."""
        return min(len(self.tokens) - self.gap, self.workspace.size)

    @property
    def read(self) -> int:
        """Tokens that were prefilled here, and so have queries."""
        return len(self.tokens) - self.start.cached.tokens

    @property
    def kept(self) -> int:
        """Entries of a head, on average. It is less than `entries` if an earlier turn left more in some."""
        return self.entries - self.start.missing


class LaneSizes(NamedTuple):
    """workspace: entries of the longest lane. chunk: tokens of a pass. capacity: entries of a slot."""

    workspace: Workspace
    chunk: int
    capacity: int


class Lanes:
    """The staging workspace, and the prompts in it."""

    def __init__(
        self,
        passes: Passes,
        turns: Turns,
        sizes: LaneSizes,
        find_words: FindWords = no_words,
        shares: HeadShares = (),
    ) -> None:
        self.decoder, self._weights, self.staging = passes.decoder, passes.weights, passes.staging
        self._passes, self._programs, self._turns, self._sizes = passes, passes.programs, turns, sizes
        self._words, self._shares = cache(find_words), shares
        self._lanes = [_Lane() for _ in range(passes.staging.lanes)]
        self._readers = _readers(passes.decoder)
        self._reductions = [_reduction(passes.decoder.config, group) for group in passes.decoder.groups]

    @property
    def count(self) -> int:
        return len(self._lanes)

    @property
    def window(self) -> int:
        """Last queries kept of each prompt."""
        return self.staging.window

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        return self.decoder.groups

    @property
    def bytes(self) -> int:
        return self.staging.bytes

    def begin(self, request: Request, lane: int, entries: range | None, choice: KVChoice) -> Cached:
        """Load the cached prefix of a prompt into its lane.

        It is empty if the prompt's log-probabilities are requested: they come from its prefill.
        """
        workspace = self._sizes.workspace
        first, count = lane * workspace.size, workspace.size
        if entries is not None:
            first, count = entries.start, len(entries)
        needed = min(len(request.tokens), workspace.size)
        assert needed <= count <= self.staging.entries - first, "the lane lies outside the staging"
        is_scored = request.sampling.prompt_logprobs is not None
        begin = partial(self.staging.begin, lane, first, count)
        start = self._turns.begin(request, choice if not is_scored else None, count, begin)
        if start.begins:
            self.staging.set_begins(lane, start.begins)
        kept = working_set(choice, len(request.tokens), workspace, self._sizes.capacity, self.window)
        self._lanes[lane] = _Lane(request.tokens, start, count, workspace, kept)
        return start.cached

    def knows_tokens(self, lane: int) -> bool:
        """Whether it is known which tokens all entries of a lane hold: also those that an earlier turn has left."""
        start = self._lanes[lane].start
        return len(start.held) > 0 or start.cached.gap + start.missing == 0

    def known(self, lane: int, selection: Selection, trace: bool) -> Inserted:
        """Return what the next turn may have to know of a slot that was filled. trace: also which tokens it holds."""
        tokens = self.tokens_of(lane, selection.sources) if trace and self.knows_tokens(lane) else ()
        votes = [own for own in selection.votes if own is not None]
        return Inserted(tuple(own.to("cpu", torch.int32) for own in tokens), tuple(own.cpu() for own in votes))

    def pieces(self, work: PrefillChunk) -> Iterator[Piece]:
        """Yield the pieces that each take a pass; one if a pass may have any size.

        There is room for the whole chunk, because `staged` stores it when all of its pieces have run. A full lane is
        compacted first.
        """
        lane = self._lanes[work.lane]
        if lane.workspace.compacts(work.start):
            self._compact(work.lane)
        assert work.stop <= lane.workspace.stop(work.start), "a chunk ends where its lane is compacted"
        gap, is_scored = lane.gap, work.request.sampling.prompt_logprobs is not None
        self.staging.make_room(work.lane, work.start - gap, work.stop - gap)
        for start, size in self._programs.pieces(work.start - gap, work.stop - gap):
            tokens = work.request.tokens[start + gap : min(start + gap + size, work.stop)]
            is_read = is_scored or start + len(tokens) > lane.entries - self.window
            yield Piece(tokens, work.lane, start, lane.entries, gap, is_read)

    def staged(self, work: PrefillChunk, hidden: Tensor) -> tuple[TokenLogprob, ...]:
        """Note that a chunk has run. Returns the log-probabilities of the next tokens if the request needs them.

        hidden [T, hidden]: the hidden states of its tokens.
        """
        request, lane = work.request, self._lanes[work.lane]
        if lane.start.is_dense and not lane.dropped:
            self._turns.staged(request, work.start, work.stop, self.staging.lane(work.lane))
        wanted = request.sampling.prompt_logprobs
        if wanted is None:
            return ()
        following = request.tokens[work.start + 1 : work.stop + 1]
        return tuple(token_logprobs(hidden, following, wanted, self._logits_after))

    def end(self, lane: int, logits: Tensor) -> None:
        """Store float32 logits [V] of the prompt's last token."""
        self._lanes[lane].logits = logits

    def logits(self, lane: int) -> Tensor:
        """Return float32 logits [V] of the prompt's last token."""
        logits = self._lanes[lane].logits
        assert logits is not None, "the lane's prompt is not prefilled yet"
        return logits

    def select(self, lane: int, choice: KVChoice) -> Selection:
        """Select what a slot will hold, once for each choice. The staged prompt is unchanged."""
        prompt = self._lanes[lane]
        assert prompt.logits is not None, "the lane's prompt is not prefilled yet"
        if choice not in prompt.selections:
            if prompt.dropped:
                check_kept(choice, prompt.workspace, prompt.working_set)
            if len(prompt.selections) == SELECTIONS:
                del prompt.selections[next(iter(prompt.selections))]
            prompt.selections[choice] = compress(self._staged(lane), choice, self._sizes.capacity)
        return prompt.selections[choice]

    def _staged(self, lane: int) -> StagedLane:
        """Return a lane's prompt as `compress` needs it."""
        prompt, device = self._lanes[lane], self.staging.device
        evicted = len(prompt.tokens) - prompt.kept
        return StagedLane(self.groups, prompt.kept, evicted, self.window, partial(self._views, lane), device)

    def _compact(self, lane: int) -> None:
        """Evict entries of a full lane, before the next token is prefilled."""
        prompt, full = self._lanes[lane], self._sizes.workspace
        kept = prompt.working_set.places(self._views(lane, self.window), full)
        here = [None if places is None else places.to(self.staging.device) for places in kept]
        following = min(full.block, len(prompt.tokens) - full.size - prompt.gap)
        self.staging.compact(lane, full, here, prompt.dropped, following)
        prompt.dropped += full.block

    def tokens_of(self, lane: int, entries: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield which tokens a lane's entries [L, H, n] of each group hold; -1 for one that is not known."""
        prompt = self._lanes[lane]
        held: Sequence[Tensor | None] = prompt.start.held or [None] * len(self.groups)
        for group, own in zip(range(len(self.groups)), entries, strict=True):
            if prompt.dropped and self.groups[group].window is None:
                places = self.staging.tokens_of(lane, group, own)
            else:
                places = torch.where(own < 0, own, own + prompt.dropped)
            yield tokens_at(places, prompt.start.cached, held[group])

    def _views(self, lane: int, queries: int) -> list[GroupView]:
        """Return a view of a lane in each group, with its last queries."""
        groups, shares = enumerate(self.groups), self._shares or ((),) * self.decoder.config.num_layers
        start, none = self._lanes[lane].start, (None,) * len(self.groups)
        return [
            GroupView(
                group,
                partial(self.view, lane, at, queries),
                [shares[layer] for layer in group.layers],
                (start.begins or none)[at],
                (start.votes or none)[at],
            )
            for at, group in groups
        ]

    def fill(self, lane: int, choice: KVChoice, slot: CacheRow | None) -> Selection:
        """Copy the selected entries of a lane's prompt to a slot; None if another rank has it."""
        selection = self.select(lane, choice)
        if slot is not None:
            selection.fill(slot, self.staging.lane(lane), self._lanes[lane].start.earlier)
            slot.note(self.tokens_of(lane, selection.sources))
        return selection

    def again(self, lane: int, group: int, start: int, stop: int) -> Iterator[tuple[list[Tensor], Tensor]]:
        """Prefill the tokens at places start .. stop-1 of a staged prompt once more after its end, as KVzip does.

        The words that ask for it come first, and are part of the repetition.
        Yields, for each piece of w tokens, its queries [H, G, w, D] by layer and the keys of the repetition so far
        [L, H, tokens, D]. Overwrites the lane's entries after the prompt; what else changes is restored at the end.
        """
        prompt, saved = self._lanes[lane], self.staging.save(lane)
        step, n, gap = self._repeated, prompt.entries, prompt.gap
        repeated = (*self._words().before(start + gap), *prompt.tokens[start + gap : stop + gap])
        try:
            for at in range(0, len(repeated), step):
                tokens, first = repeated[at : at + step], n + at
                self._passes.run([Piece(tokens, lane, first, first + len(tokens), gap)])
                planes = self.staging.lane(lane).read_group(group, slice(n, first + len(tokens)))
                yield self._queries(lane, group, len(tokens)), planes[0]
        finally:
            self.staging.restore(lane, saved)

    def prompt_logits(self, tokens: Sequence[int], rows: int = 128) -> Iterator[Tensor]:
        """Yield float32 logits [at most `rows`, V] after each token, to score a text. Overwrites lane 0."""
        assert len(tokens) <= self.staging.entries, "the text is longer than the staging"
        self._lanes[0] = _Lane()
        self.staging.begin(0, 0, len(tokens))
        for start, size in self._programs.pieces_of(len(tokens), self._sizes.chunk):
            piece = Piece(tokens[start : start + size], 0, start, len(tokens))
            with torch.inference_mode():
                hidden = self._passes.run([piece])[: len(piece.tokens)]
            for some in hidden.split(rows):
                with torch.inference_mode():
                    logits = self._logits_after(some)
                yield logits

    def view(self, lane: int, group: int, queries: int) -> StagedPrompt:
        """Return a staged prompt in one group of layers, with its last `queries`, for a selector."""
        prompt = self._lanes[lane]
        planes, spec = self.staging.lane(lane).read_group(group, slice(prompt.entries)), self.groups[group].spec
        start = prompt.start
        return StagedPrompt(
            q=self._queries(lane, group, min(queries, prompt.read)),
            keys=planes[0],
            values=planes[-1][..., : spec.value_width],
            scale=spec.scale,
            seen=prompt.entries + prompt.gap,
            rotate=self._rotations(group),
            repeat=partial(self.again, lane, group),
            repeat_limit=self._room(prompt),
            reduction=self._reductions[group],
            words=self._words,
            begins=start.begins[group] if start.begins else None,
            known=start.votes[group] if start.votes else None,
        )

    def _queries(self, lane: int, group: int, count: int) -> list[Tensor]:
        """Return the last `count` queries that read each layer's cache: [H, G, count, D] by layer.

        If several layers read a cache, G is the query heads of all of them.
        """
        last = self.staging.queries[group][:, lane, :, :, self.staging.window - count :]
        return [_joined([last[reader] for reader in readers]) for readers in self._readers[group]]

    def _rotations(self, group: int) -> list[Rotate]:
        """Return the rotary embedding of each layer of a group, one object for each kind."""
        by_kind = {kind: partial(self.decoder.rotate, kind) for kind in self.decoder.layers}
        return [by_kind[self.decoder.kinds[layer]] for layer in self.groups[group].layers]

    def _room(self, prompt: _Lane) -> int:
        """Return how many tokens `again` may prefill, words included: whole pieces that end inside the lane."""
        left = prompt.count - prompt.entries - self._programs.repeated
        return max(0, left // self._repeated + 1) * self._repeated

    @property
    def _repeated(self) -> int:
        """Tokens of a piece that `again` prefills: its queries must fit into a window."""
        return min(self._programs.repeated, self.staging.window)

    def _logits_after(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [rows, V] of hidden states [rows, hidden]."""
        return self.decoder.logits(hidden, self._weights.shared)


def _readers(decoder: Decoder) -> list[list[list[int]]]:
    """Return the readers of each layer's cache, by group and row."""
    found: list[list[list[int]]] = [[[] for _ in group.layers] for group in decoder.groups]
    for place in decoder.places:
        found[place.group][place.row].append(place.reader)
    return found


def _reduction(config: ModelConfig, group: LayerGroup) -> VoteReduction:
    """Return how ranks vote on what a group of layers keeps."""
    whole = config.layer(config.kinds[group.layers[0]])
    return vote_reduction(config.rank, whole.attention.cache.key.heads, whole.attention.queries, config.exchange)


def _joined(heads: Sequence[Tensor]) -> Tensor:
    """Join query heads [H, G, ...] of several layers that read one cache."""
    return heads[0] if len(heads) == 1 else torch.cat(list(heads), dim=1)
