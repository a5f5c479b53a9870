"""Lanes: prompts before they get a slot. They are staged and compressed here.

L layers of a group, H key-value heads, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Cached, PrefillChunk
from ringkv.base.errors import PromptTooLong
from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice
from ringkv.base.repeat_words import FindWords
from ringkv.base.request import Request
from ringkv.base.selectors import KVzip
from ringkv.cache.compress.selection import Selection, StagedLane, compress
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.cache.rows import CacheRow
from ringkv.cache.steps import Steps
from ringkv.cache.store.conversations import Known
from ringkv.engine.compaction import Compaction
from ringkv.engine.passes import Passes, PromptPiece
from ringkv.engine.prompt_views import Lane, PromptViews
from ringkv.engine.turns import Turns, tokens_at
from ringkv.kernels.sampling.tiers import scores

SELECTIONS = 8  # of one prompt, kept for requests that share it with the same choices
SCORED = 128  # tokens whose logits are computed at once


class Lanes:
    """The staging workspace, and the prompts in it."""

    def __init__(self, passes: Passes, turns: Turns, config: EngineConfig, find_words: FindWords) -> None:
        self.staging, self.groups = passes.staging, passes.programs.decoder.groups
        self._passes, self._programs, self._turns, self._config = passes, passes.programs, turns, config
        self._views = PromptViews(passes, config.head_shares, find_words)
        self._compaction = Compaction(passes.staging, config)
        self._lanes: dict[int, Lane] = {}

    @property
    def bytes(self) -> int:
        return self.staging.bytes + self._compaction.bytes

    def begin(self, request: Request, lane: int, entries: range | None, choice: KVChoice) -> Cached:
        """Load the cached prefix of a prompt into its lane.

        It is empty if the prompt's log-probabilities are requested: they come from its prefill.
        """
        workspace = self._config.workspace
        if entries is None:
            entries = range(lane * workspace.size, (lane + 1) * workspace.size)
        assert min(len(request.tokens), workspace.size) <= len(entries), "the lane is shorter than its prompt"
        assert entries.stop <= self.staging.entries, "the lane lies outside the staging"
        begin = partial(self.staging.begin, lane, entries.start)
        is_scored = request.sampling.prompt_logprobs is not None
        loaded = self._turns.begin(request, None if is_scored else choice, len(entries), begin)
        if loaded.known.begins:
            self.staging.set_begins(lane, loaded.known.begins)
        kept = self._compaction.working_set(choice, len(request.tokens))
        self._lanes[lane] = Lane(request.tokens, loaded, len(entries), workspace, kept)
        return loaded.cached

    def pieces(self, work: PrefillChunk) -> Iterator[PromptPiece]:
        """Yield the pieces that each take a pass; one if a pass may have any size.

        There is room for the whole chunk, because `staged` stores it when all of its pieces have run. A full lane is
        compacted first.
        """
        lane = self._lanes[work.lane]
        if lane.workspace.compacts(work.start):
            self._compaction.run(work.lane, lane, self._views.of_groups(work.lane, lane, self.staging.window))
        assert work.stop <= lane.workspace.stop(work.start), "a chunk ends where its lane is compacted"
        gap, is_scored = lane.gap, work.request.sampling.prompt_logprobs is not None
        self.staging.make_room(work.lane, work.start - gap, work.stop - gap)
        for start, size in self._programs.pieces(work.start - gap, work.stop - gap):
            tokens = work.request.tokens[start + gap : min(start + gap + size, work.stop)]
            is_read = is_scored or start + len(tokens) > lane.entries - self.staging.window
            yield PromptPiece(tokens, work.lane, start, lane.entries, gap, is_read)

    def staged(self, work: PrefillChunk, hidden: Tensor) -> tuple[TokenLogprob, ...]:
        """Note that a chunk has run. Returns the log-probabilities of the next tokens if the request needs them.

        hidden [T, stream]: the hidden states of its tokens.
        """
        request, lane = work.request, self._lanes[work.lane]
        if lane.loaded.is_dense and not lane.dropped:
            self._turns.staged(request, work.start, work.stop, self.staging.lanes[work.lane])
        wanted = request.sampling.prompt_logprobs
        if wanted is None:
            return ()
        return tuple(self._token_logprobs(hidden, request.tokens[work.start + 1 : work.stop + 1], wanted))

    def _token_logprobs(self, hidden: Tensor, following: Sequence[int], wanted: int) -> Iterator[TokenLogprob]:
        """Yield the log-probability of the token that follows each row of hidden states, with `wanted` top tokens."""
        tokens = torch.tensor(following, device=hidden.device)
        # After the prompt's last token follows none.
        for rows, ids in zip(hidden[: len(following)].split(SCORED), tokens.split(SCORED), strict=True):
            of_rows = (of_row.tolist() for of_row in scores(self._logits_after(rows), ids))
            for logprob, top, values in zip(*of_rows, strict=True):
                yield TokenLogprob(logprob, tuple(zip(top[:wanted], values[:wanted], strict=True)))

    def held(self, lane: int) -> Lane:
        return self._lanes[lane]

    def end(self, lane: int, logits: Tensor) -> None:
        """Store float32 logits [V] of the prompt's last token."""
        self._lanes[lane].logits = logits

    def logits(self, lane: int) -> Tensor:
        """Return float32 logits [V] of the prompt's last token."""
        logits = self._lanes[lane].logits
        assert logits is not None, "the lane's prompt is not prefilled yet"
        return logits

    def check_repeatable(self, tokens: int, choice: KVChoice) -> None:
        """Raise PromptTooLong if a lane has no room to prefill a prompt of so many tokens again, and kvzip needs that.

        A conversation that goes on may have fewer entries than tokens; then it is known once they are in the lane.
        """
        if not isinstance(choice.select, KVzip) or choice.turns == "continue":
            return
        longest = self._views.longest_repeatable(self._config.workspace.size)
        if tokens > longest:
            setting = "prefill_workspace" if self._config.prefill_workspace else "prompt_tokens"
            raise PromptTooLong(
                f"kv_select kvzip prefills a prompt again after its end, so it takes {longest:,} tokens here, and the "
                f"prompt has {tokens:,}; shorten it, choose kv_select snapkv, or start with a larger {setting}"
            )

    def select(self, number: int, choice: KVChoice) -> Steps[Selection]:
        """Select what a slot will hold, once for each choice. The staged prompt is unchanged at the end."""
        lane = self._lanes[number]
        assert lane.logits is not None, "the lane's prompt is not prefilled yet"
        if choice not in lane.selections:
            self._compaction.check(choice, lane)
            views, evicted = partial(self._views.of_groups, number, lane), len(lane.tokens) - lane.kept
            staged = StagedLane(self.groups, lane.kept, evicted, self.staging.window, views, self.staging.device)
            selection = yield from compress(staged, choice, self._config.capacity)
            if len(lane.selections) == SELECTIONS:
                del lane.selections[next(iter(lane.selections))]
            lane.selections[choice] = selection
        return lane.selections[choice]

    def fill(self, lane: int, choice: KVChoice, slot: CacheRow | None) -> Steps[Selection]:
        """Copy the selected entries of a lane's prompt to a slot. slot: None if another rank has it."""
        selection = yield from self.select(lane, choice)
        if slot is not None:
            fixed, earlier = [layout.fixed for layout in selection.layouts], self._lanes[lane].loaded.earlier
            yield from self.staging.lanes[lane].fill(slot, selection.sources, fixed, selection.saliency, earlier)
            slot.note(self.tokens_of(lane, selection.sources))
        return selection

    def knows_tokens(self, lane: int) -> bool:
        """Whether it is known which tokens all entries of a lane hold: also those that an earlier turn has left."""
        loaded = self._lanes[lane].loaded
        return len(loaded.known.tokens) > 0 or loaded.cached.gap + loaded.missing == 0

    def tokens_of(self, number: int, entries: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield which tokens a lane's entries [L, H, n] of each group hold, or -1 for one that is not known."""
        lane = self._lanes[number]
        held: Sequence[Tensor | None] = lane.loaded.known.tokens or [None] * len(self.groups)
        for group, (of_group, tokens) in enumerate(zip(entries, held, strict=True)):
            places = self._compaction.places_of(number, lane, group, of_group)
            yield tokens_at(places, lane.loaded.cached, tokens)

    def known(self, lane: int, selection: Selection, trace: bool) -> Known:
        """Return what the next turn may have to know of a slot that was filled. trace: also which tokens it holds."""
        tokens = self.tokens_of(lane, selection.sources) if trace and self.knows_tokens(lane) else ()
        votes = [votes.cpu() for votes in selection.votes if votes is not None]
        return Known([held.to("cpu", torch.int32) for held in tokens], votes)

    def view(self, lane: int, group: int, queries: int) -> StagedPrompt:
        """Return a staged prompt in one group of layers, with its last `queries`."""
        return self._views.of_group(lane, self._lanes[lane], group, queries)

    @torch.inference_mode()
    def prompt_logits(self, tokens: Sequence[int], rows: int = SCORED) -> Iterator[Tensor]:
        """Yield float32 logits [at most `rows`, V] after each token, to score a text. Overwrites lane 0."""
        assert len(tokens) <= self.staging.entries, "the text is longer than the staging"
        self._lanes.pop(0, None)
        self.staging.begin(0, 0)
        chunk = self._config.chunk
        for first in range(0, len(tokens), chunk):
            for start, size in self._programs.pieces(first, min(first + chunk, len(tokens))):
                piece = PromptPiece(tokens[start : start + size], 0, start, len(tokens))
                hidden = self._passes.run([piece])[: len(piece.tokens)]
                yield from map(self._logits_after, hidden.split(rows))

    def _logits_after(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [rows, V] of hidden states [rows, stream], in a number of rows that no graph has."""
        return self._programs.decoder.logits(hidden, self._programs.weights.shared)
