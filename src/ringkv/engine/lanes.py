"""Lanes: prompts before they get a slot. They are prefilled, scored and compressed here.

L layers of a group, H key-value heads, G query heads each, D head_dim, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ringkv.base.cache_spec import LayerGroup, places
from ringkv.base.engine import PrefillChunk
from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.cache.body import CacheRow
from ringkv.cache.compress.selection import Selection, select
from ringkv.cache.compress.staged_prompt import StagedPrompt
from ringkv.cache.layouts import layouts
from ringkv.engine.load import ModelWeights
from ringkv.engine.programs import Programs
from ringkv.engine.scoring import token_logprobs
from ringkv.engine.staging import Staging, Start
from ringkv.engine.turns import Turns
from ringkv.models.decoder import Decoder

_NOTHING = Start()


@dataclass
class _Lane:
    """The prompt that a lane holds."""

    tokens: tuple[int, ...] = ()
    start: Start = _NOTHING
    logits: Tensor | None = None  # float32 [V] of its last token, once all of it is prefilled
    selections: dict[KVChoice, Selection] = field(default_factory=dict)  # of the requests that share the prompt

    @property
    def entries(self) -> int:
        """One for each token except those that an earlier turn had evicted."""
        return len(self.tokens) - self.start.gap

    @property
    def read(self) -> int:
        """Tokens that were prefilled here, and so have queries."""
        return len(self.tokens) - self.start.tokens


class Lanes:
    """The staging workspace, and the prompts in it."""

    def __init__(
        self,
        decoder: Decoder,
        weights: ModelWeights,
        staging: Staging,
        programs: Programs,
        turns: Turns,
        lanes: int,
        capacity: int,
    ) -> None:
        """capacity: entries of the slots that prompts go to."""
        self._decoder, self._weights, self._programs, self._turns = decoder, weights, programs, turns
        self.staging, self._capacity = staging, capacity
        self._places = places(decoder.groups)
        self._lanes = [_Lane() for _ in range(lanes)]

    @property
    def window(self) -> int:
        """Last queries kept of each prompt."""
        return self.staging.window

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        return self._decoder.groups

    @property
    def bytes(self) -> int:
        return self.staging.bytes

    def begin(self, request: Request, lane: int, choice: KVChoice) -> int:
        """Load the cached prefix of a prompt into its lane, and return the number of cached tokens.

        It is 0 if the prompt's log-probabilities are requested: they come from its prefill.
        """
        is_scored = request.sampling.prompt_logprobs is not None
        start = Start() if is_scored else self._turns.begin(request, choice, self.staging.lane(lane))
        self._lanes[lane] = _Lane(request.tokens, start)
        return start.tokens

    def prefill(self, work: PrefillChunk) -> tuple[TokenLogprob, ...]:
        """Run one chunk, and return the log-probabilities of the next tokens if the request needs them."""
        request, lane = work.request, self._lanes[work.lane]
        last, logprobs = self._followed(work, self._chunk(work))
        if lane.start.is_dense:
            self._turns.staged(request, work.start, work.stop, self.staging.lane(work.lane))
        if work.is_last:
            lane.logits = self._programs.head_of_one([last, *self._weights.shared.values()])[0][0]
        return logprobs

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
            groups = self._decoder.groups
            plans = layouts(choice, prompt.entries, self._capacity, groups)
            views = [self.view(lane, group, choice.select.queries) for group in range(len(groups))]
            moved = tuple(plan.shifted(prompt.start.gap) for plan in plans)
            prompt.selections[choice] = Selection(moved, select(views, choice, plans))
        return prompt.selections[choice]

    def fill(self, lane: int, choice: KVChoice, slot: CacheRow) -> Selection:
        """Copy the selected entries of a lane's prompt to a slot."""
        selection = self.select(lane, choice)
        selection.fill(slot, self.staging.lane(lane))
        return selection

    def again(self, lane: int, group: int, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Prefill tokens start .. stop-1 of a staged prompt once more after its end, for selectors such as KVzip.

        Yields, for each piece of w tokens, its queries [L, H, G, w, D] and the keys of the repetition so far
        [L, H, tokens, D]. Overwrites the lane's entries after the prompt; the kept queries are restored at the end.
        """
        prompt, queries = self._lanes[lane], [plane[:, lane] for plane in self.staging.queries]
        before, (size, step), n = [one.clone() for one in queries], self._piece(), prompt.entries
        keys = self.staging.bodies[group].planes[0]
        try:
            for at in range(start, stop, step):
                piece = prompt.tokens[at : min(at + step, stop)]
                first = n + at - start
                self._run(piece, size, lane, torch.tensor([first, first + len(piece)]))
                yield queries[group][:, :, :, -len(piece) :], keys[:, lane, :, n : first + len(piece)]
        finally:
            for plane, was in zip(queries, before, strict=True):
                plane.copy_(was)

    def prompt_logits(self, tokens: Sequence[int], rows: int = 128) -> Iterator[Tensor]:
        """Yield float32 logits [at most `rows`, V] after each token, to score a text. Overwrites lane 0."""
        span = torch.tensor([0, len(tokens)])
        self._lanes[0] = _Lane()
        for start, size in self._programs.pieces(0, len(tokens), self.staging.entries):
            with torch.inference_mode():
                span[0] = start
                hidden = self._run(tokens[start : start + size], size, 0, span)[: len(tokens) - start]
            for some in hidden.split(rows):
                with torch.inference_mode():
                    logits = self._logits_after(some)
                yield logits

    def view(self, lane: int, group: int, queries: int) -> StagedPrompt:
        """Return a staged prompt in one group of layers, with its last `queries`, for a selector."""
        prompt, planes = self._lanes[lane], self.staging.bodies[group].read(lane, slice(self._lanes[lane].entries))
        first = self.staging.window - min(queries, prompt.read)
        return StagedPrompt(
            q=self.staging.queries[group][:, lane, :, :, first:],
            keys=planes[0],
            values=planes[-1],
            scale=self.groups[group].spec.scale,
            seen=len(prompt.tokens),
            rotate=partial(self._decoder.rotate, self._kind(group)),
            repeat=partial(self.again, lane, group),
            repeat_limit=self._room(prompt.entries),
        )

    def _kind(self, group: int) -> str:
        """Return the kind of a group's layers, which share one rotary embedding."""
        return self._decoder.kinds[self.groups[group].layers[0]]

    def _room(self, entries: int) -> int:
        """Return how many tokens `again` may prefill: its pieces must end inside the lane."""
        size, step = self._piece()
        return max(0, (self.staging.entries - entries - size) // step + 1) * step

    def _piece(self) -> tuple[int, int]:
        """Return the rows of the smallest prefill graph, and how many tokens of a piece keep their queries."""
        size = self._programs.smallest
        return size, min(size, self.staging.window)

    def _chunk(self, work: PrefillChunk) -> Iterator[Tensor]:
        """Run a chunk, and yield hidden states [tokens, hidden] of each piece."""
        tokens, lane = work.request.tokens, work.lane
        gap = self._lanes[lane].start.gap
        span = torch.tensor([0, len(tokens) - gap])
        for start, size in self._programs.pieces(work.start - gap, work.stop - gap, self.staging.entries):
            span[0] = start
            piece = tokens[start + gap : min(start + gap + size, work.stop)]
            yield self._run(piece, size, lane, span, gap)[: len(piece)]

    def _followed(self, work: PrefillChunk, pieces: Iterator[Tensor]) -> tuple[Tensor, tuple[TokenLogprob, ...]]:
        """Return a chunk's last hidden state [1, hidden], and log-probabilities of the next tokens if requested."""
        tokens, wanted = work.request.tokens, work.request.sampling.prompt_logprobs
        logprobs: list[TokenLogprob] = []
        read, last = work.start, torch.empty(0)
        for hidden in pieces:
            read, last = read + len(hidden), hidden[-1:]
            if wanted is not None:
                following = tokens[read - len(hidden) + 1 : read + 1]
                logprobs += token_logprobs(hidden, following, wanted, self._logits_after)
        return last, tuple(logprobs)

    def _logits_after(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [rows, V] of hidden states [rows, hidden]."""
        return self._decoder.logits(hidden, self._weights.shared)

    def _run(self, tokens: Sequence[int], size: int, lane: int, span: Tensor, gap: int = 0) -> Tensor:
        """Run one graph on a piece of a prompt, and return hidden states [size, hidden], padding included.

        span: the first token's place in the lane, and how many places the prompt takes. gap: a token's position in the
        text minus its place in the lane.
        """
        start = int(span[0]) + gap
        device = self.staging.queries[0].device
        padded = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        padded[: len(tokens)] = torch.tensor(tokens)
        rotations = self._decoder.rotations(torch.arange(start, start + size, device=device))
        x = self._decoder.embed(padded.to(device, non_blocking=True), self._weights.shared)
        for layer, (kind, weights) in enumerate(zip(self._decoder.kinds, self._weights.layers, strict=True)):
            group, row = self._places[layer]
            caches = (plane[lane] for plane in self.staging.bodies[group].layer(row))
            staged = [span, *caches, self.staging.queries[group][row, lane]]
            (x,) = self._programs.prefill[kind][size]([x, *rotations[kind], *staged, *weights.values()])
        return x
