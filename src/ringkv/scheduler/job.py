"""Job: what the scheduler remembers of one request, from submission to its last event. Prompt: what it waits for.

Requests with one prompt share it: it is prefilled once, and compressed for each of them as it asked.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

from ringkv.base.engine import Limits, PrefillChunk, chunks
from ringkv.base.events import FinishReason, KVUsage, Usage
from ringkv.base.kv import KVChoice, Layout, Layouts
from ringkv.base.request import Request
from ringkv.base.sampling import SamplerTier
from ringkv.scheduler.drafts import Lookup


@dataclass(eq=False)
class Prompt:
    """Waiting without a lane, prefilling in one, then kept there until all its jobs are in slots.

    `jobs` are those that are not in slots yet, in the order they came.
    """

    jobs: deque["Job"] = field(default_factory=deque)
    lane: int | None = None
    cached: int | None = None  # tokens that were known when it got its lane; None before that
    prefilled: int = 0  # tokens, those included

    @property
    def is_held(self) -> bool:
        return any(job.is_held for job in self.jobs)

    def begin(self, cached: int) -> None:
        self.cached = self.prefilled = cached

    def next_chunk(self, most: int) -> PrefillChunk:
        assert self.lane is not None
        work = next(chunks(self.jobs[0].request, self.lane, self.prefilled, most))
        self.prefilled = work.stop
        return work


@dataclass(eq=False)
class Job:
    """Waiting without a slot, or with one that is reserved while its prompt is prefilled; running with a layout."""

    request: Request
    kv: KVChoice
    limits: Limits
    prompt: Prompt
    is_held: bool = False
    slot: int | None = None
    layouts: Layouts = ()  # of its slot, once it is in one
    output: list[int] = field(default_factory=list)  # tokens sampled, end-of-sequence included
    fed: int = 0  # output tokens that took an entry; the last one sampled has not yet
    drafted: int = 0  # tokens that were guessed for it
    accepted: int = 0  # of these, those that were sampled
    lookup: Lookup | None = None  # of its text, if drafts may be taken from it

    @property
    def layout(self) -> Layout | None:
        """The layout that its choice gave it."""
        return self.layouts[0] if self.layouts else None

    @property
    def sampled(self) -> int:
        return len(self.output)

    @property
    def left(self) -> tuple[int, ...]:
        """All tokens that its slot has seen, where a later turn is to go on from there; else none."""
        if self.layout is None or self.kv.turns == "reread":
            return ()
        return (*self.request.tokens, *self.output[: self.fed])

    @property
    def given(self) -> int | None:
        """The next token, if it is not to be sampled."""
        forced = self.request.forced
        return forced[self.sampled] if self.sampled < len(forced) else None

    def run(self, layouts: Layouts) -> None:
        """Its prompt is in a slot, laid out like this."""
        self.layouts = layouts
        if self.limits.drafts and self.request.sampling.tier <= SamplerTier.TEMPERATURE:
            self.lookup = Lookup(self.request.tokens)

    def draft(self, most: int) -> list[int]:
        """Guesses of the tokens after the next one, which is sampled in any case.

        None of them can end the request, nor stand where a token is given; each has an entry of its own in every ring.
        """
        if self.lookup is None or self.sampled < len(self.request.forced):
            return []
        most = min(most, self.left_to_sample - 1, min(layout.ring for layout in self.layouts) - 1)
        tokens = self.lookup.draft(most) if most > 0 else []
        drafts = list(takewhile(lambda token: not self.request.ends_at(token, self.sampled + most), tokens))
        self.drafted += len(drafts)
        return drafts

    def accept(self, count: int) -> None:
        """So many of the drafts fed last were sampled, and keep their entries."""
        self.fed += count
        self.accepted += count

    def take(self, token: int) -> FinishReason | None:
        """Count a sampled token; why the request ends with it, or None. A stop id wins over a length."""
        self.output.append(token)
        if self.lookup:
            self.lookup.append(token)
        if self.request.ends_at(token, self.sampled):
            return "stop"
        return "length" if self.sampled >= self._most else None

    @property
    def left_to_sample(self) -> int:
        return self._most - self.sampled

    @cached_property
    def _most(self) -> int:
        """Tokens it may sample: what it requested, what the model's context and a layout without a ring leave."""
        assert self.layout is not None
        most = min(self.request.sampling.max_tokens, self.limits.context - len(self.request.tokens))
        # The last token sampled is never fed, so it needs no entry.
        return most if self.layout.free_entries is None else min(most, self.layout.free_entries + 1)

    def usage(self) -> Usage:
        prompt, cached = len(self.request.tokens), self.prompt.cached or 0
        return Usage(prompt, self.sampled, self._kv_usage(), cached, self.drafted, self.accepted)

    def _kv_usage(self) -> KVUsage:
        """Before its prompt was inserted a request has held nothing; its capacity is then what it asked for."""
        prompt, layout = len(self.request.tokens), self.layout
        if layout is None:
            asked = self.limits.capacity if self.kv.budget is None else self.kv.budget
            return KVUsage(self.kv.policy, asked, kept=0, evicted=0, ring_wraps=0, bytes_held=0)
        seen = prompt + self.fed
        return KVUsage(
            policy=self.kv.policy,
            capacity=layout.capacity,
            kept=layout.live(prompt),
            evicted=layout.evicted(seen),
            ring_wraps=layout.wrap_count(seen),
            bytes_held=self.limits.slot_bytes,
        )
