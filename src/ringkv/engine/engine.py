"""LocalEngine: the verbs of `base.engine` on one device."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ringkv.base.compacted import check_compacted
from ringkv.base.config import EngineConfig
from ringkv.base.engine import Cached, Drafted, Limits, Packet, PrefillChunk
from ringkv.base.errors import BadToken, EmptyPrompt, InvalidRequest, PromptTooLong
from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.base.selectors import SELECTORS, is_built_in
from ringkv.cache.layouts import layouts
from ringkv.cache.steps import finished
from ringkv.engine.batch import Batch
from ringkv.engine.draft_model import DraftModel
from ringkv.engine.drafts import Drafts
from ringkv.engine.lane_answers import LaneAnswers
from ringkv.engine.lanes import Lanes
from ringkv.engine.passes import Fed, Passes, PromptPiece
from ringkv.engine.reviews import Reviews
from ringkv.engine.sampling.state import SampledStep
from ringkv.engine.turns import Turns
from ringkv.models.slot_formats import check_profile, check_request, check_residents_of_request, policies_of_requests


class LocalEngine:
    """A model, its caches and its graphs. Built by `engine.build`; all memory is allocated by then."""

    def __init__(
        self, config: EngineConfig, passes: Passes, lanes: Lanes, batch: Batch, drafts: Drafts, turns: Turns
    ) -> None:
        self.config, self.model, self.lanes, self.batch = config, batch.decoder.config, lanes, batch
        self._programs, self._passes = passes.programs, passes
        self._drafts, self._turns, self._reviews = drafts, turns, Reviews(batch)
        self._answers = LaneAnswers(batch)
        self.default_kv, self.weight_bytes = config.kv, passes.programs.weights.bytes
        self.prompt_logits = lanes.prompt_logits
        self._draft_model: DraftModel | None = None
        self._checked: tuple[int, ...] = ()  # the prompt admitted last
        self._filled: tuple[int, KVChoice, int] | None = None  # a lane whose prompt `select` has put in a slot

    @property
    def limits(self) -> Limits:
        config, bodies, programs = self.config, self.batch.bodies, self._programs
        return Limits(
            **config.shared,
            context=self.model.context,
            vocab=self.model.vocab_size,
            entry_bytes=sum(body.entry_bytes for body in bodies),
            slot_bytes=sum(body.bytes // body.rows for body in bodies),
            held_bytes=sum(body.bytes for body in bodies) + self.lanes.bytes + self._turns.bytes,
            staging_bytes=self.lanes.bytes,
            sampler_bytes=self.batch.logits.nbytes + self.batch.sampling.nbytes + self._drafts.nbytes,
            drafts=self._drafts.limit,
            staged_entries=config.staged_entries,
            unit=programs.unit if programs.packs else 0,
            packs=programs.packs,
            rides=programs.rides,
            kv_format=config.slot_format.encoding,
            page=config.page,
            resident=config.resident_pages,
            tier=config.tier,
            tier_bytes=sum((body.file_bytes + body.host_bytes) // body.rows for body in bodies),
            slot_ranks=config.slot_ranks,
            heads=tuple(self.lanes.groups[place.group].spec.key.heads for place in self.model.places),
            policies=tuple(policies_of_requests(self.lanes.groups, config.kv)),
            answers_in_lanes=config.answers_in_lanes,
            has_draft_model=config.drafter is not None,
        )

    def draft_with(self, other: "LocalEngine") -> None:
        """Let another engine with as many slots guess tokens ahead, as `EngineConfig.drafter` says."""
        self._draft_model = DraftModel(other, other.batch, other._drafts, self.batch)

    @property
    def builds(self) -> int:
        """Graphs compiled so far by this engine; constant once it is built."""
        return self._programs.backend.builds

    def admit(self, request: Request) -> None:
        """Raise InvalidRequest if the request could never be served."""
        n, limits, choice = len(request.tokens), self.limits, self._choice(request)
        check_request(self.lanes.groups, choice)
        check_profile(choice.heads, bool(self.config.head_shares))
        if self.config.rank.count > 1 and not is_built_in(choice.select):
            raise InvalidRequest(
                f"selector {choice.select.name} is from outside the package, which only an engine of one rank can use; "
                f"use tensor_parallel 1, or one of {', '.join(SELECTORS)}",
                "kv_select",
            )
        if n == 0:
            raise EmptyPrompt("the prompt is empty; give at least one token")
        if n >= limits.context:
            raise PromptTooLong(
                f"the prompt has {n:,} tokens and the model's context is {limits.context:,}, output included; "
                "shorten it, or take a model with a longer context"
            )
        if n > limits.prompt_tokens:
            raise PromptTooLong(
                f"the prompt has {n:,} tokens and the engine takes {limits.prompt_tokens:,}; "
                "shorten it, or start with a larger prompt_tokens"
            )
        if n > limits.workspace.size:
            check_compacted(choice, limits.workspace)
        self._check_tokens(request)
        holds = limits.workspace.size if limits.stays(n, choice) else limits.capacity
        plans = layouts(choice, n, holds, self.lanes.groups)
        check_residents_of_request(self.lanes.groups, plans, choice)
        if any(plan.selected for plan in plans) and choice.select.queries > self.config.kv.window:
            raise InvalidRequest(
                f"kv_window {choice.select.queries} is over the {self.config.kv.window} queries kept; "
                "use a smaller one, or start with a larger kv_window",
                "kv_window",
            )
        if any(plan.selected for plan in plans) or choice.reads_pages:
            self.lanes.check_repeatable(n, choice)

    def _check_tokens(self, request: Request) -> None:
        """Raise BadToken for one outside the vocabulary. The prompt that many requests share is checked once."""
        sampling, vocab = request.sampling, self.model.vocab_size
        named = {"forced": request.forced, "logit_bias": sampling.logit_bias, "stop_token_ids": sampling.stop_token_ids}
        if request.tokens != self._checked:
            named["prompt"] = request.tokens
        for field, tokens in named.items():
            if tokens and not 0 <= min(tokens) <= max(tokens) < vocab:
                bad = next(token for token in tokens if not 0 <= token < vocab)
                raise BadToken(f"token id {bad} is outside the vocabulary of {vocab}", field)
        self._checked = request.tokens

    @torch.inference_mode()
    def begin(self, request: Request, lane: int, entries: range | None = None) -> Cached:
        self._filled = None
        return self.lanes.begin(request, lane, entries, self._choice(request))

    @torch.inference_mode()
    def prefill(self, work: Sequence[PrefillChunk], feed: bool = False) -> list[tuple[TokenLogprob, ...]]:
        assert self._programs.packs or len(work) == 1, "passes of this engine take one prompt"
        assert self._programs.rides or not feed, "passes of this engine take no slots"
        if feed and self._draft_model:
            self._draft_model.feed()
        if feed:
            self._reviews.run()
        answers = self._answers.pieces() if feed else []
        *hidden, answered, fed = self._run_pass(work, answers, self.batch.fed() if feed else None)
        logprobs = [self.lanes.staged(chunk, rows) for chunk, rows in zip(work, hidden, strict=True)]
        ends = [(chunk.lane, rows[-1:]) for chunk, rows in zip(work, hidden, strict=True) if chunk.is_last]
        logits = self._logits([*(last for _, last in ends), answered, fed])
        for (lane, _), row in zip(ends, logits, strict=False):
            self.lanes.end(lane, row.clone())  # without the other rows
        if feed:
            self.batch.finish(logits[len(ends) + len(answers) :])
            self._answers.finish(logits[len(ends) : len(ends) + len(answers)])
        return logprobs

    def _run_pass(self, work: Sequence[PrefillChunk], answers: Sequence[PromptPiece], fed: Fed | None) -> list[Tensor]:
        """Return the hidden states of each chunk [T, stream], of answers in lanes, and of the slots that are fed."""
        pieces = [*(piece for chunk in work for piece in self.lanes.pieces(chunk)), *answers]
        if self._programs.packs:
            hidden = self._passes.run(pieces, fed)
        else:
            hidden = torch.cat([self._passes.run([piece])[: len(piece.tokens)] for piece in pieces])
        sizes = [*(chunk.stop - chunk.start for chunk in work), len(answers), len(fed.tokens) if fed else 0]
        return list(hidden[: sum(sizes)].split(sizes))

    def _logits(self, rows: Sequence[Tensor]) -> Tensor:
        """Return float32 logits [N, V] of hidden states [n, stream] each."""
        x = torch.cat(list(rows))
        if not len(x):
            return x
        if self._programs.packs:
            return self._programs.logits(x)
        return torch.cat([self._programs.logits_of_one(row) for row in x.split(1)])

    @torch.inference_mode()
    def select(self, lane: int, choice: KVChoice, slot: int | None = None) -> Iterator[None]:
        if slot is None:
            yield from self.lanes.select(lane, choice)
            return
        self._drafts.drop(slot)
        if self._stays(lane, choice):
            return
        yield from self.lanes.fill(lane, choice, self.batch.slot(slot))
        self._filled = lane, choice, slot

    @torch.inference_mode()
    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        if self._stays(lane, choice):
            held = self.lanes.held(lane)
            return layouts(choice, len(held.tokens), held.count, self.lanes.groups)
        return finished(self.lanes.select(lane, choice)).layouts

    @torch.inference_mode()
    def kept(self, lane: int, choice: KVChoice) -> list[NDArray[np.int64]]:
        if not self.lanes.knows_tokens(lane):
            raise InvalidRequest("it is not known which tokens the turns before have kept; set trace in each of them")
        if self._stays(lane, choice):
            each = [(layout.prompt - layout.recent, layout.prompt) for layout in self.compress(lane, choice)]
            places = zip(self.model.places, self.limits.heads, strict=True)
            return [np.tile(np.arange(*each[place.group]), (heads, 1)) for place, heads in places]
        tokens = list(self.lanes.tokens_of(lane, finished(self.lanes.select(lane, choice)).sources))
        return [tokens[place.group][place.row].cpu().numpy() for place in self.model.places]

    @torch.inference_mode()
    def insert(self, lane: int, slot: int, request: Request) -> None:
        choice = self._choice(request)
        if self._stays(lane, choice):
            self._answers.place(slot, lane, self.lanes.held(lane), request)
            return
        if self._filled != (lane, choice, slot):
            for _ in self.select(lane, choice, slot):
                pass
        self._filled, selection = None, finished(self.lanes.select(lane, choice))
        self.batch.place(slot, selection.layouts, self.lanes.logits(lane), request)
        self._reviews.enter(slot, choice, selection.layouts)
        if self._draft_model:
            self._draft_model.enter(slot, request)
        if choice.turns == "continue":
            self._turns.known[slot] = self.lanes.known(lane, selection, request.trace)

    @torch.inference_mode()
    def export(self, slot: int) -> Packet:
        self._drafts.drop(slot)
        return self.batch.export(slot)

    @torch.inference_mode()
    def restore(self, packet: Packet, slot: int) -> None:
        choice = self._choice(packet.request)
        is_filled = packet.seen == packet.layouts[0].prompt
        assert is_filled or not choice.review_interval, "a packet does not have what a review has selected to evict"
        self._drafts.drop(slot)
        try:
            self.batch.restore(slot, packet)
        except ValueError as error:
            raise InvalidRequest(f"{error}; take an engine with the same model, dtype and slots") from error
        self._reviews.enter(slot, choice, packet.layouts)

    @torch.inference_mode()
    def sample(
        self, forced: Mapping[int, int] | None = None, allowed: Mapping[int, bytes] | None = None
    ) -> SampledStep:
        step = self.batch.sample(forced or {}, allowed or {})
        if not (more := self._drafts.settle()):
            return step
        if self._draft_model:
            self._draft_model.settle(more[1].tolist())
        self._reviews.count(more[1])
        return replace(step, more=more)

    @torch.inference_mode()
    def forward(self, drafts: Drafted | None = None) -> Mapping[int, int]:
        if self._answers and self._programs.rides:
            self.prefill([], feed=True)
            return {}
        self._reviews.run()
        fed = self._guessed(drafts or {})
        runs = self._drafts.forward({slot: tokens for slot, tokens in fed.items() if tokens})
        if not runs:
            self.batch.forward()
        if self._draft_model and not runs:
            self._draft_model.settle([0] * self.config.slots)
        if self._answers:
            hidden = [self._passes.run([piece])[:1] for piece in self._answers.pieces()]
            self._answers.finish(self._logits(hidden))
        return {slot: len(tokens) for slot, tokens in fed.items()}

    def _guessed(self, drafts: Drafted) -> dict[int, Sequence[int]]:
        """Return the drafts of a step: none if it has too many rows for any.

        The draft model guesses those of which the number alone is given.
        """
        if self._draft_model:
            self._draft_model.feed()
        if not self._drafts.fits:
            return {}
        given = {slot: tokens for slot, tokens in drafts.items() if not isinstance(tokens, int)}
        rooms = {slot: count for slot, count in drafts.items() if isinstance(count, int)}
        return given | (self._draft_model.propose(rooms) if self._draft_model else {})

    @torch.inference_mode()
    def recalled(self, slot: int) -> int | None:
        counts = [body.recalled[:, slot].flatten() for body in self.batch.bodies if body.recalled is not None]
        return round(float(torch.cat(counts).float().mean())) if counts else None

    @torch.inference_mode()
    def leave(self, slot: int, tokens: tuple[int, ...]) -> None:
        request, slot_layouts = self.batch.owner(slot)
        self._drafts.drop(slot)
        read = partial(self.batch.whole_slot, slot)
        self._turns.save(slot, request, self._choice(request), tokens, slot_layouts, read)

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        self._drafts.drop(slot)
        self._reviews.leave(slot)
        self._turns.known.pop(slot, None)
        self._answers.release(slot)
        if self._draft_model:
            self._draft_model.leave(slot)
        self.batch.release(slot)

    def _stays(self, lane: int, choice: KVChoice) -> bool:
        return self.limits.stays(len(self.lanes.held(lane).tokens), choice)

    def _choice(self, request: Request) -> KVChoice:
        return request.kv or self.default_kv
