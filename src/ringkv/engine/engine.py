"""LocalEngine: the verbs of `base.engine` on one device."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ringkv.base.compacted import check_compacted
from ringkv.base.config import EngineConfig
from ringkv.base.engine import Cached, Limits, Packet, PrefillChunk
from ringkv.base.errors import BadToken, EmptyPrompt, InvalidRequest, PromptTooLong
from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request
from ringkv.cache.layouts import layouts
from ringkv.engine.batch import Batch
from ringkv.engine.held_tokens import Inserted
from ringkv.engine.lanes import Lanes
from ringkv.engine.prefill import Prefill
from ringkv.engine.reviews import Reviews
from ringkv.engine.sampling.sampled import SampledStep
from ringkv.engine.turns import Turns
from ringkv.models.config import ModelConfig
from ringkv.models.slot_formats import (
    check_profile,
    check_request,
    check_residents_of_request,
    policies_of_requests,
)


class LocalEngine:
    """A model, its caches and its graphs. Built by `engine.build`; all memory is allocated by then."""

    def __init__(
        self,
        config: EngineConfig,
        model: ModelConfig,
        lanes: Lanes,
        batch: Batch,
        prefill: Prefill,
        turns: Turns,
        weight_bytes: int,
    ) -> None:
        self.config, self.model, self.lanes, self.batch, self._prefill = config, model, lanes, batch, prefill
        self.weight_bytes = weight_bytes
        self._turns, self._reviews = turns, Reviews(batch)
        self._inserted: dict[int, Inserted] = {}  # of slots whose next turn may continue

    @property
    def limits(self) -> Limits:
        config = self.config
        return Limits(
            slots=config.slots,
            capacity=config.capacity,
            prompt_tokens=config.prompt_tokens,
            context=self.model.context,
            chunk=config.chunk,
            lanes=self.lanes.count,
            vocab=self.model.vocab_size,
            entry_bytes=self.batch.entry_bytes,
            slot_bytes=self.batch.slot_bytes,
            held_bytes=self.batch.held_bytes + self.lanes.bytes + self._turns.bytes,
            staging_bytes=self.lanes.bytes,
            sampler_bytes=self.batch.sampler_bytes,
            drafts=self.batch.drafts,
            staged_entries=self.lanes.staging.entries,
            prefill_workspace=config.prefill_workspace,
            unit=self._prefill.unit,
            packs=self._prefill.packs,
            rides=self._prefill.rides,
            max_step=config.max_step,
            kv_format=config.slot_format.encoding,
            page=config.page,
            resident=config.resident_pages,
            tier=config.tier,
            tier_bytes=self.batch.tier_bytes,
            slot_ranks=config.slot_ranks,
            heads=tuple(self.lanes.groups[place.group].spec.key.heads for place in self.model.places),
            policies=tuple(policies_of_requests(self.lanes.groups, config.kv)),
        )

    @property
    def default_kv(self) -> KVChoice:
        return self.config.kv

    @property
    def builds(self) -> int:
        """Graphs compiled so far by this engine; constant once it is built."""
        return self.batch.builds

    def admit(self, request: Request) -> None:
        """Raise InvalidRequest if the request could never be served."""
        n, limits, choice = len(request.tokens), self.limits, self._choice(request)
        check_request(self.lanes.groups, choice)
        check_profile(choice.heads, bool(self.config.head_shares))
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
        named = {"logit_bias": request.sampling.logit_bias, "stop_token_ids": request.sampling.stop_token_ids}
        for field, tokens in {"prompt": request.tokens, "forced": request.forced, **named}.items():
            if bad := next((t for t in tokens if not 0 <= t < limits.vocab), None):
                raise BadToken(f"token id {bad} is outside the vocabulary of {limits.vocab}", field)
        plans = layouts(choice, n, limits.capacity, self.lanes.groups)
        check_residents_of_request(self.lanes.groups, plans, choice)
        if any(plan.selected for plan in plans) and choice.select.queries > self.lanes.window:
            raise InvalidRequest(
                f"kv_window {choice.select.queries} is over the {self.lanes.window} queries kept; "
                "use a smaller one, or start with a larger kv_window",
                "kv_window",
            )

    @torch.inference_mode()
    def begin(self, request: Request, lane: int, entries: range | None = None) -> Cached:
        return self.lanes.begin(request, lane, entries, self._choice(request))

    @torch.inference_mode()
    def prefill(self, work: Sequence[PrefillChunk], feed: bool = False) -> list[tuple[TokenLogprob, ...]]:
        if feed:
            self._reviews.run()
        return self._prefill.run(work, feed)

    @torch.inference_mode()
    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        return self.lanes.select(lane, choice).layouts

    @torch.inference_mode()
    def kept(self, lane: int, choice: KVChoice) -> list[NDArray[np.int64]]:
        if not self.lanes.knows_tokens(lane):
            raise InvalidRequest("it is not known which tokens the turns before have kept; set trace in each of them")
        tokens = list(self.lanes.tokens_of(lane, self.lanes.select(lane, choice).sources))
        return [tokens[place.group][place.row].cpu().numpy() for place in self.model.places]

    @torch.inference_mode()
    def insert(self, lane: int, slot: int, request: Request) -> None:
        selection = self.lanes.fill(lane, self._choice(request), self.batch.slot(slot))
        self.batch.place(slot, selection.layouts, self.lanes.logits(lane), request)
        self._reviews.enter(slot, self._choice(request), selection.layouts)
        if self._choice(request).turns == "continue":
            self._inserted[slot] = self.lanes.known(lane, selection, request.trace)

    @torch.inference_mode()
    def export(self, slot: int) -> Packet:
        return self.batch.export(slot)

    @torch.inference_mode()
    def restore(self, packet: Packet, slot: int) -> None:
        assert self._choice(packet.request).review_interval == 0, "a packet has nothing of what reviews note"
        try:
            self.batch.restore(slot, packet)
        except ValueError as error:
            raise InvalidRequest(f"{error}; take an engine with the same model, dtype and slots") from error

    @torch.inference_mode()
    def sample(
        self, forced: Mapping[int, int] | None = None, allowed: Mapping[int, bytes] | None = None
    ) -> SampledStep:
        return self.batch.sample(forced or {}, allowed or {})

    @torch.inference_mode()
    def forward(self, drafts: Mapping[int, Sequence[int]] | None = None) -> None:
        self._reviews.run()
        self.batch.forward(drafts or {})

    @torch.inference_mode()
    def recalled(self, slot: int) -> int | None:
        return self.batch.recalled(slot)

    @torch.inference_mode()
    def leave(self, slot: int, tokens: tuple[int, ...]) -> None:
        request, slot_layouts = self.batch.owner(slot)
        whole, inserted = partial(self.batch.whole_slot, slot), self._inserted.get(slot, Inserted())
        self._turns.left(request, self._choice(request), tokens, slot_layouts, whole, inserted)

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        self._reviews.leave(slot)
        self._inserted.pop(slot, None)
        self.batch.release(slot)

    def prompt_logits(self, tokens: Sequence[int], rows: int = 128) -> Iterator[Tensor]:
        """Yield float32 logits [at most `rows`, V] after each token, to score a text. Overwrites lane 0."""
        return self.lanes.prompt_logits(tokens, rows)

    def _choice(self, request: Request) -> KVChoice:
        return request.kv or self.config.kv
