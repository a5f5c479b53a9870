"""DraftModel: a smaller model of the same vocabulary that guesses the tokens which the target model samples next.

B slots, N drafts per slot. The draft model has a slot for each slot of the target, with a budget of its own: sinks and
the newest tokens (StreamingLLM), so that its memory is fixed too. It is prefilled with the newest tokens of the text
alone, in chunks between decode steps. Drafts are sampled with the seed and the position of the target's tokens, so
equal distributions give equal tokens at any temperature. Source: speculative decoding (arXiv 2211.17192).

What it guesses never changes an answer, so rejected drafts are not taken out of its ring: their entries are
overwritten by the tokens that take their positions.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import ceil
from time import monotonic

import torch
from torch import Tensor

from ringkv.base.engine import Engine, PrefillChunk
from ringkv.base.request import Request
from ringkv.engine.batch import Batch
from ringkv.engine.drafts import Drafts

FAR = 32  # tokens; a draft model that is further behind the text begins again with so many
MOST = 8  # tokens that a slot may be fed before it is checked again
LAST = 2**31  # no output has as many tokens


@dataclass
class Text:
    """A request's text. seen: leading tokens that the draft model has seen, or skipped; 0: it is not in its slot."""

    request: Request
    tokens: list[int]
    seen: int = 0
    first: int | None = None  # newest tokens that the draft model begins with; None: as many as it takes


@dataclass
class Filling:
    """A text that is prefilled in the draft model's lane, for a slot. seen: tokens of the text, up to its end."""

    slot: int
    request: Request
    seen: int
    done: int = 0


class DraftModel:
    """The draft model's engine, with what it knows of each slot's text."""

    def __init__(self, engine: Engine, batch: Batch, drafts: Drafts, target: Batch) -> None:
        """batch, drafts: of the draft model's engine. target: the batch whose tokens are guessed."""
        self._engine, self._batch, self._drafts, self._target = engine, batch, drafts, target
        self._limits = limits = engine.limits
        self._unit = limits.unit or limits.chunk  # a prompt may be cut at multiples of this
        self._texts: dict[int, Text] = {}
        self._filling: Filling | None = None
        self._open: dict[int, list[int]] = {}  # drafts that the target runs, and that are not settled
        self._rows = self._unit  # of a prefill that takes `Limits.max_step`

    def enter(self, slot: int, request: Request) -> None:
        """Begin to guess for a request that has just got a slot."""
        if request.sampling.takes_drafts:
            self._texts[slot] = Text(request, list(request.tokens))

    def leave(self, slot: int) -> None:
        """Guess no more for a slot."""
        self._open.pop(slot, None)
        if self._texts.pop(slot, None):
            self._empty(slot)

    def feed(self) -> None:
        """Note the tokens that the target is fed next."""
        if self._texts:
            tokens = self._target.tokens.tolist()
            for slot, text in self._texts.items():
                text.tokens.append(tokens[slot])

    def propose(self, rooms: Mapping[int, int]) -> dict[int, list[int]]:
        """Return at most so many drafts of the tokens that follow the one which the target is fed next, by slot.

        A slot has none while the draft model is prefilled with its text.
        """
        may_fill, ready = True, list[int]()
        for slot in rooms:
            if self._is_ready(slot):
                ready.append(slot)
            elif may_fill and slot in self._texts:
                may_fill = not self._fill(slot)
        if ready:
            self._catch_up(ready)
            count = max(rooms[slot] for slot in ready)
            guesses = self._guess(ready, count)
            self._open = {slot: self._before_end(slot, guesses[slot][: rooms[slot]]) for slot in ready}
        return {slot: self._open.get(slot, []) for slot in rooms if slot in self._texts}

    def settle(self, kept: Sequence[int]) -> None:
        """Report how many drafts of each slot were sampled. The draft model forgets the others."""
        for slot, drafts in self._open.items():
            text = self._texts[slot]
            text.tokens += drafts[: kept[slot]]
            beyond = max(0, text.seen - len(text.tokens))
            text.seen -= beyond
            for rings in self._batch.rings:
                rings.length[slot] -= beyond
        self._open = {}

    def _is_ready(self, slot: int) -> bool:
        """Whether the draft model has a slot's text, or nearly. If it is far behind, it has to begin again."""
        text = self._texts.get(slot)
        if text is None or text.seen == 0:
            return False
        behind, length = len(text.tokens) - text.seen, int(self._batch.rings[0].length[slot])
        if behind <= FAR and length + behind + MOST < self._limits.context:
            return True
        text.seen, text.first = 0, FAR
        self._empty(slot)
        return False

    def _empty(self, slot: int) -> None:
        if self._filling and self._filling.slot == slot:
            self._filling = None
        self._engine.release(slot)

    def _fill(self, slot: int) -> bool:
        """Prefill a chunk of a slot's text, and put it in its slot after the last; False if the lane is in use."""
        text, limits = self._texts[slot], self._limits
        if self._filling is None:
            most = min(text.first or limits.prompt_tokens, limits.longest_prompt)
            sampling = replace(text.request.sampling, logprobs=None, prompt_logprobs=None)
            request = replace(
                text.request, tokens=tuple(text.tokens[-most:]), sampling=sampling, kv=None, forced=(), trace=False
            )
            self._filling = Filling(slot, request, len(text.tokens))
            self._engine.begin(request, 0)
        filling = self._filling
        if filling.slot != slot:
            return False
        began, unit = monotonic(), self._unit
        stop = min(len(filling.request.tokens), filling.done + max(unit, min(self._rows, limits.chunk) // unit * unit))
        self._engine.prefill([PrefillChunk(filling.request, 0, filling.done, stop)])
        if limits.max_step:
            self._rows = int((stop - filling.done) * limits.max_step / (monotonic() - began))
        filling.done = stop
        if stop == len(filling.request.tokens):
            self._engine.insert(0, slot, filling.request)
            text.seen, self._filling = filling.seen, None
        return True

    def _catch_up(self, ready: Sequence[int]) -> None:
        """Feed the tokens that the draft model has not seen. The last of each slot are fed in one step."""
        unseen = {slot: self._texts[slot].tokens[self._texts[slot].seen :] for slot in ready}
        many = 1 + self._drafts.limit if self._drafts.fits else 1
        for left in reversed(range(max(ceil(len(tokens) / many) for tokens in unseen.values()))):
            now = {slot: tokens[: len(tokens) - left * many] for slot, tokens in unseen.items()}
            now = {slot: tokens for slot, tokens in now.items() if tokens}
            for slot, tokens in now.items():
                del unseen[slot][: len(tokens)]
            if any(len(tokens) > 1 for tokens in now.values()):
                self._run(now, partial(self._drafts.replay, now))
            else:
                for slot, (token,) in now.items():
                    self._batch.tokens[slot] = token
                self._run(now, self._batch.forward)

    def _guess(self, ready: Sequence[int], count: int) -> list[list[int]]:
        """Return `count` guesses of each slot of the batch."""
        tier = max(self._texts[slot].request.sampling.tier for slot in ready)
        position, guesses = self._target.rings[0].length.long() + 1, list[Tensor]()
        for ahead in range(count):
            if ahead:
                self._batch.tokens.copy_(guesses[-1])
                self._run(ready, self._batch.forward)
            inputs = self._batch.sampler_inputs()._replace(position=position + ahead)
            guesses.append(self._batch.programs.sampling[tier](list(inputs))[0].clone())
        for slot in ready:
            self._texts[slot].seen = len(self._texts[slot].tokens) + count - 1
        return torch.stack(guesses, 1).tolist()

    def _run(self, slots: Collection[int], step: Callable[[], None]) -> None:
        """Run a step that counts for these slots alone: others write their next entry, and do so again later."""
        before = [rings.length.clone() for rings in self._batch.rings]
        step()
        counts = torch.zeros_like(self._batch.tokens, dtype=torch.bool)
        counts[list(slots)] = True
        for rings, length in zip(self._batch.rings, before, strict=True):
            rings.length.copy_(torch.where(counts, rings.length, length))

    def _before_end(self, slot: int, drafts: Sequence[int]) -> list[int]:
        """Return the drafts before one that would end the request."""
        request = self._texts[slot].request
        return list(takewhile(lambda token: not request.ends_at(token, LAST), drafts))
