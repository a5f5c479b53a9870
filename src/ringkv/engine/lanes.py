"""Lanes: prompts on their way to a slot: begun, prefilled, scored, and compressed.

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
    logits: Tensor | None = None  # float32 [V] of its last token, once it is prefilled whole
    selections: dict[KVChoice, Selection] = field(default_factory=dict)  # of the requests that share the prompt

    @property
    def entries(self) -> int:
        """One for each token except those that an earlier turn had evicted."""
        return len(self.tokens) - self.start.gap

    @property
    def read(self) -> int:
        """Tokens that were prefilled here, whose last queries are known."""
        return len(self.tokens) - self.start.tokens


class Lanes:
    """The staging workspace at work."""

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
        """Fill a lane with the cached part of a prompt; how many tokens that is.

        None if every token of the prompt is to be scored: its log-probabilities come from its prefill.
        """
        is_scored = request.sampling.prompt_logprobs is not None
        start = Start() if is_scored else self._turns.begin(request, choice, self.staging.lane(lane))
        self._lanes[lane] = _Lane(request.tokens, start)
        return start.tokens

    def prefill(self, work: PrefillChunk) -> tuple[TokenLogprob, ...]:
        """Run one chunk; the log-probabilities of the tokens that follow its own, if the request wants them."""
        request, lane = work.request, self._lanes[work.lane]
        last, logprobs = self._followed(work, self._chunk(work))
        if lane.start.is_dense:
            self._turns.staged(request, work.start, work.stop, self.staging.lane(work.lane))
        if work.is_last:
            lane.logits = self._programs.head_of_one([last, *self._weights.shared.values()])[0][0]
        return logprobs

    def logits(self, lane: int) -> Tensor:
        """float32 [V] of the prompt's last token."""
        logits = self._lanes[lane].logits
        assert logits is not None, "the lane's prompt is not prefilled yet"
        return logits

    def select(self, lane: int, choice: KVChoice) -> Selection:
        """What a slot will hold; computed once for each choice. Leaves the staged prompt as it is."""
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
        """Copy what a slot is to hold of a lane's prompt."""
        selection = self.select(lane, choice)
        selection.fill(slot, self.staging.lane(lane))
        return selection

    def again(self, lane: int, group: int, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Prefill tokens start .. stop-1 of a staged prompt once more, after its end, for selectors that look at that.

        For a piece of w tokens at a time: queries [L, H, G, w, D], and the repetition's keys so far [L, H, tokens, D].
        The lane's entries after the prompt are overwritten; all else is as it was in the end.
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
        """float32 [at most `rows`, V] after each token in turn, to score a text. It takes lane 0 as a prompt would."""
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
        """A staged prompt as selectors see it, in one group of layers, with its last `queries`."""
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
        """Of a group's layers, which share one rotary embedding."""
        return self._decoder.kinds[self.groups[group].layers[0]]

    def _room(self, entries: int) -> int:
        """How many tokens `again` may read at once: its pieces must end where the lane ends."""
        size, step = self._piece()
        return max(0, (self.staging.entries - entries - size) // step + 1) * step

    def _piece(self) -> tuple[int, int]:
        """Rows of the smallest prefill graph, and how many tokens of a piece have their queries kept."""
        size = self._programs.smallest
        return size, min(size, self.staging.window)

    def _chunk(self, work: PrefillChunk) -> Iterator[Tensor]:
        """Run a chunk: hidden states [tokens, hidden], piece by piece."""
        tokens, lane = work.request.tokens, work.lane
        gap = self._lanes[lane].start.gap
        span = torch.tensor([0, len(tokens) - gap])
        for start, size in self._programs.pieces(work.start - gap, work.stop - gap, self.staging.entries):
            span[0] = start
            piece = tokens[start + gap : min(start + gap + size, work.stop)]
            yield self._run(piece, size, lane, span, gap)[: len(piece)]

    def _followed(self, work: PrefillChunk, pieces: Iterator[Tensor]) -> tuple[Tensor, tuple[TokenLogprob, ...]]:
        """The last of a chunk's hidden states [1, hidden]; the log-probability of each following token, if wanted."""
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
        """float32 [rows, V], from [rows, hidden]."""
        return self._decoder.logits(hidden, self._weights.shared)

    def _run(self, tokens: Sequence[int], size: int, lane: int, span: Tensor, gap: int = 0) -> Tensor:
        """One graph's worth of a prompt: hidden states [size, hidden]; rows past the true tokens are padding.

        span: the first token's place in the lane, and how many places the prompt takes. `gap`: how much further on in
        the text a token stands than its place in the lane says.
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
