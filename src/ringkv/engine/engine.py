"""LocalEngine: the verbs of `base.engine` on one device.

B slots, L layers, H key-value heads, C entries per slot, D head_dim, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Limits, Prefilled, Prefix, Work
from ringkv.base.errors import BadToken, EmptyPrompt, InvalidRequest, PromptTooLong
from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice, Layout
from ringkv.base.request import Request
from ringkv.base.sampling import SamplerTier
from ringkv.cache.compress.prompt import Prompt
from ringkv.cache.layouts import layout
from ringkv.cache.slots import Slots
from ringkv.engine.load import ModelWeights
from ringkv.engine.prefix import TensorPrefix, compress, copy_to
from ringkv.engine.programs import Programs
from ringkv.engine.sampling.sampled import SampledStep
from ringkv.engine.sampling.state import SamplingState
from ringkv.engine.scoring import token_logprobs
from ringkv.engine.staging import Staged, Staging, Start
from ringkv.engine.turns import Turns
from ringkv.graphs.capture import Capture
from ringkv.models.decoder import Decoder


class LocalEngine:
    """A model, its caches and its graphs. Built by `engine.build`; all memory is allocated by then."""

    def __init__(
        self,
        config: EngineConfig,
        decoder: Decoder,
        weights: ModelWeights,
        staging: Staging,
        planes: tuple[Tensor, Tensor],
        programs: Programs,
        capture: Capture,
        turns: Turns,
    ) -> None:
        self._config, self._decoder, self._weights, self._turns = config, decoder, weights, turns
        self._staging, self._planes, self._programs = staging, planes, programs
        device, vocab = planes[0].device, decoder.config.vocab_size
        self._generations = [0] * config.lanes  # prompts that each lane has taken
        self._starts = [Start()] * config.lanes  # what its prompt began with
        self._layouts: list[Layout | None] = [None] * config.slots
        self._slots = Slots.empty(config.slots, device)
        self._sampling = SamplingState.neutral(config.slots, vocab, device)
        self._asked: list[Request | None] = [None] * config.slots
        self._logits = torch.zeros(config.slots, vocab, device=device)
        self._tokens = torch.zeros(config.slots, dtype=torch.int64, device=device)
        self._forced = torch.full_like(self._tokens, -1)
        self._scores: dict[SamplerTier, tuple[Tensor, ...]] = {}
        self._layers = [
            [keys, values, *layer.values()] for keys, values, layer in zip(*planes, weights.layers, strict=True)
        ]
        self._run_forward = capture(self._forward)
        self._run_sampler = {tier: capture(partial(self._sample, tier)) for tier in SamplerTier}
        self._reset()

    @property
    def limits(self) -> Limits:
        config, model = self._config, self._decoder.config
        keys = self._planes[0]
        return Limits(
            slots=config.slots,
            capacity=config.capacity,
            prompt_tokens=config.prompt_tokens,
            context=model.context,
            chunk=config.chunk,
            lanes=config.lanes,
            vocab=model.vocab_size,
            entry_bytes=2 * keys[:, 0, :, 0].numel() * keys.element_size(),
            held_bytes=sum(plane.nbytes for plane in self._planes) + self._staging.bytes + self._turns.bytes,
        )

    @property
    def default_kv(self) -> KVChoice:
        return self._config.kv

    @property
    def weight_bytes(self) -> int:
        return self._weights.bytes

    @property
    def builds(self) -> int:
        """Graphs compiled so far by this engine; constant once it is built."""
        return self._programs.backend.builds

    def admit(self, request: Request) -> None:
        """Refuse what could never be served, before any work."""
        n, limits, choice = len(request.tokens), self.limits, request.kv or self.default_kv
        if n == 0:
            raise EmptyPrompt("the prompt is empty; give at least one token")
        if n >= limits.context:
            raise PromptTooLong(
                f"the prompt has {n:,} tokens and the model's context is {limits.context:,}, output included; "
                "shorten it, or take a model with a longer context"
            )
        if n > limits.prompt_tokens:
            raise PromptTooLong(
                f"the prompt has {n:,} tokens and the staging workspace takes {limits.prompt_tokens:,}; "
                "shorten it, or start with a larger --max-prompt"
            )
        named = {"logit_bias": request.sampling.logit_bias, "stop_token_ids": request.sampling.stop_token_ids}
        for field, tokens in {"prompt": request.tokens, "forced": request.forced, **named}.items():
            if bad := next((t for t in tokens if not 0 <= t < limits.vocab), None):
                raise BadToken(f"token id {bad} is outside the vocabulary of {limits.vocab}", field)
        plan = layout(choice, n, limits.capacity)
        if plan.picked and choice.window > self._config.kv.window:
            raise InvalidRequest(
                f"kv_window {choice.window} is over the {self._config.kv.window} queries kept; "
                "ask for less, or start with a larger --kv-window",
                "kv_window",
            )

    @torch.inference_mode()
    def begin(self, request: Request, lane: int) -> int:
        """Nothing is taken as known where every token of the prompt is to be scored."""
        is_scored = request.sampling.prompt_logprobs is not None
        kv = request.kv or self.default_kv
        self._generations[lane] += 1
        self._starts[lane] = Start() if is_scored else self._turns.begin(request, kv, self._lane(lane))
        return self._starts[lane].tokens

    @torch.inference_mode()
    def prefill(self, work: Work) -> Prefilled:
        request, lane, begun = work.request, work.lane, self._starts[work.lane]
        last, logprobs = self._followed(work, self._read(work))
        if begun.is_dense:
            self._turns.staged(request, work.start, work.stop, self._lane(lane))
        if not work.is_last:
            return Prefilled(None, logprobs)
        logits = self._programs.head_of_one([last, *self._head])[0][0]
        return Prefilled(Staged(lane, self._generations[lane], request.tokens, logits, begun), logprobs)

    def _read(self, work: Work) -> Iterator[Tensor]:
        """Run a chunk: hidden states [tokens, hidden], piece by piece."""
        tokens, lane = work.request.tokens, work.lane
        gap, room = self._starts[lane].gap, self._staging.keys.shape[3]
        span = torch.tensor([0, len(tokens) - gap])
        for start, size in self._programs.pieces(work.start - gap, work.stop - gap, room):
            span[0] = start
            piece = tokens[start + gap : min(start + gap + size, work.stop)]
            yield self._prefill_piece(piece, size, lane, span, gap)[: len(piece)]

    def _followed(self, work: Work, pieces: Iterator[Tensor]) -> tuple[Tensor, tuple[TokenLogprob, ...]]:
        """The last hidden state [1, hidden] of a chunk; if requested, the log-probability of the token after each."""
        tokens, wanted = work.request.tokens, work.request.sampling.prompt_logprobs
        logprobs: list[TokenLogprob] = []
        read, last = work.start, self._logits
        for hidden in pieces:
            read, last = read + len(hidden), hidden[-1:]
            if wanted is not None:
                following = tokens[read - len(hidden) + 1 : read + 1]
                logprobs += token_logprobs(hidden, following, wanted, self._logits_after)
        return last, tuple(logprobs)

    def prompt_logits(self, tokens: Sequence[int], rows: int = 128) -> Iterator[Tensor]:
        """float32 [at most `rows`, V] after each token in turn, to score a text. It takes a lane as a prompt would."""
        span, lane = torch.tensor([0, len(tokens)]), 0
        self._generations[lane] += 1
        self._starts[lane] = Start()
        for start, size in self._programs.pieces(0, len(tokens), self._staging.keys.shape[3]):
            with torch.inference_mode():
                span[0] = start
                hidden = self._prefill_piece(tokens[start : start + size], size, lane, span)[: len(tokens) - start]
            for some in hidden.split(rows):
                with torch.inference_mode():
                    logits = self._logits_after(some)
                yield logits

    @torch.inference_mode()
    def compress(self, staged: Staged, choice: KVChoice) -> TensorPrefix:
        self._check_staged(staged)
        return compress(self._seen(staged, choice.window), staged, choice, self._config.capacity)

    def room(self, staged: Staged) -> int:
        """How many tokens `read_again` may read at once: its pieces must end where the lane ends."""
        size, step = self._piece()
        return max(0, (self._staging.keys.shape[3] - staged.length - size) // step + 1) * step

    @torch.inference_mode()
    def read_again(self, staged: Staged, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Read tokens start .. stop-1 of a staged prompt once more, after its end, for selectors that want to see that.

        For a piece of w tokens at a time: queries [L, H, G, w, D], and the repetition's keys so far [L, H, tokens, D].
        The lane's entries after the prompt are overwritten; all else is as it was in the end.
        """
        self._check_staged(staged)
        lane, n, window = staged.lane, staged.length, self._staging.window[:, staged.lane]
        before, (size, step) = window.clone(), self._piece()
        try:
            for at in range(start, stop, step):
                piece = staged.tokens[at : min(at + step, stop)]
                first = n + at - start
                self._prefill_piece(piece, size, lane, torch.tensor([first, first + len(piece)]))
                yield window[:, :, :, -len(piece) :], self._staging.keys[:, lane, :, n : first + len(piece)]
        finally:
            window.copy_(before)

    @torch.inference_mode()
    def insert(self, prefix: Prefix, slot: int, request: Request) -> None:
        assert isinstance(prefix, TensorPrefix)
        self._check_staged(prefix.staged)
        keys, values = self._planes
        copy_to((keys[:, slot], values[:, slot]), prefix, self._staging)
        self._logits[slot] = prefix.staged.logits
        self._slots.place(slot, prefix.layout)
        self._layouts[slot] = prefix.layout
        self._sampling.enter(slot, request)
        self._asked[slot] = request

    @torch.inference_mode()
    def sample(
        self, forced: Mapping[int, int] | None = None, allowed: Mapping[int, bytes] | None = None
    ) -> SampledStep:
        self._forced.fill_(-1)
        for slot, token in (forced or {}).items():
            self._forced[slot] = token
        for slot, tokens in (allowed or {}).items():
            self._sampling.allow(slot, tokens)
        params = [request.sampling if request else None for request in self._asked]
        tier = max((p.tier for p in params if p), default=SamplerTier.GREEDY)
        self._run_sampler[tier]()
        wanted = [p.logprobs if p else None for p in params]
        # Copies: a captured step may reuse the scores' memory, and the next step overwrites the tokens.
        return SampledStep(self._tokens.clone(), wanted, tuple(score.clone() for score in self._scores[tier]))

    @torch.inference_mode()
    def forward(self) -> None:
        self._run_forward()

    @torch.inference_mode()
    def leave(self, slot: int, tokens: tuple[int, ...]) -> None:
        request, layout = self._asked[slot], self._layouts[slot]
        assert request is not None, "the slot is free"
        assert layout is not None
        planes = self._planes[0][:, slot], self._planes[1][:, slot]
        self._turns.left(request, request.kv or self.default_kv, tokens, layout, planes)

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        self._slots.release(slot)
        self._asked[slot] = None
        self._logits[slot].zero_()

    def _seen(self, staged: Staged, window: int) -> Prompt:
        """A staged prompt as selectors see it."""
        staging, lane, n = self._staging, staged.lane, staged.length
        return Prompt(
            q=staging.window[:, lane, :, :, -min(window, staged.read) :],
            keys=staging.keys[:, lane, :, :n],
            values=staging.values[:, lane, :, :n],
            seen=len(staged.tokens),
            turn=self._decoder.turn,
            follow=partial(self.read_again, staged),
            room=self.room(staged),
        )

    def _piece(self) -> tuple[int, int]:
        """Rows of the smallest prefill graph, and how many tokens of a piece have their queries kept."""
        size = min(self._programs.prefill)
        return size, min(size, self._staging.window.shape[4])

    def _check_staged(self, staged: Staged) -> None:
        assert staged.generation == self._generations[staged.lane], "the lane has taken another prompt since"

    def _logits_after(self, hidden: Tensor) -> Tensor:
        """float32 [rows, V], from [rows, hidden]."""
        return self._decoder.logits(hidden, self._weights.shared)

    @property
    def _head(self) -> list[Tensor]:
        return list(self._weights.shared.values())

    def _lane(self, lane: int) -> tuple[Tensor, Tensor]:
        """Its keys and values [L, H, S, D]."""
        return self._staging.keys[:, lane], self._staging.values[:, lane]

    def _prefill_piece(self, tokens: Sequence[int], size: int, lane: int, span: Tensor, gap: int = 0) -> Tensor:
        """One graph's worth of a prompt: hidden states [size, hidden]; rows past the true tokens are padding.

        span: the first token's place in the lane, and how many places the prompt takes. `gap`: how much further on in
        the text a token stands than its place in the lane says.
        """
        device = self._logits.device
        padded = torch.zeros(size, dtype=torch.int64)
        padded[: len(tokens)] = torch.tensor(tokens)
        start = int(span[0]) + gap
        rotation = self._decoder.rotation(torch.arange(start, start + size, device=device))
        x = self._decoder.embed(padded.to(device), self._weights.shared)
        graph = self._programs.prefill[size]
        staging = self._staging
        for layer, weights in enumerate(self._weights.layers):
            planes = (plane[layer, lane] for plane in (staging.keys, staging.values, staging.window))
            (x,) = graph([x, *rotation, span, *planes, *weights.values()])
        return x

    def _forward(self) -> None:
        """One decode step on static buffers: reads `_tokens`, leaves `_logits`, counts the tokens as seen."""
        entry, live = self._slots.next_entry(), self._slots.live_after_next()
        rotation = self._decoder.rotation(self._slots.length)
        x = self._decoder.embed(self._tokens.clamp(min=0), self._weights.shared)
        for layer in self._layers:
            (x,) = self._programs.decode([x, *rotation, entry, live, *layer])
        self._logits.copy_(self._programs.head([x, *self._head])[0])
        self._slots.advance()

    def _sample(self, tier: SamplerTier) -> None:
        """Fill `_tokens` from `_logits` and count them, and the tier's scores if its graph gives any."""
        inputs = self._sampling.inputs(self._logits, self._forced, self._slots.length.long())
        tokens, *scores = self._programs.sampling[tier](list(inputs))
        self._tokens.copy_(tokens)
        self._sampling.count(self._tokens)
        self._scores[tier] = tuple(scores)

    def _reset(self) -> None:
        """Leave nothing behind of what warming up a captured graph wrote."""
        for slot in range(self._config.slots):
            self.release(slot)
