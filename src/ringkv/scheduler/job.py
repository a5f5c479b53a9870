"""Job: the scheduler's state of a request, from submission to its last event. PendingPrompt: what jobs share.

Requests that share a prompt share its prefill. The prompt is compressed for each of them under its own choice. If it is
longer than its lane, they have one choice, for which the lane is compacted.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile

from ringkv.base.engine import Cached, Limits, PrefillChunk, chunks
from ringkv.base.events import FinishReason, HeadUsage, KVUsage, Usage
from ringkv.base.kv import BLOCK, KVChoice, Layout, Layouts
from ringkv.base.messages import SlotState
from ringkv.base.page_counts import page_usage
from ringkv.base.request import Request

OF_LAYOUT = ("sinks", "selected", "protected", "base", "ring", "again", "capacity")  # in `SlotState`
OLDEST_EVERY = 4  # passes
RECENT = 1 / 8  # weight of the newest step in the share of drafts that are sampled, at least
FIRST = 1 / 3  # its weight in the first step
NGRAM_SIZES = (4, 3)  # tokens that must be equal, the longest first


class PromptLookup:
    """A request's tokens, indexed by their n-grams, to guess its next tokens. Memory and time are linear in the tokens.

    Answers that edit code, extract or summarise repeat their prompt. If the last tokens occurred before, the tokens
    that followed them are likely to follow again. No draft model is needed. The engine keeps only drafts that it
    samples itself. Source: prompt lookup decoding (https://github.com/apoorvumang/prompt-lookup-decoding), as in vLLM's
    n-gram speculation.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its latest earlier occurrence
        self._pending: list[tuple[tuple[int, ...], int]] = []  # n-grams at the end, which no token follows yet
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Add the token sampled last."""
        self._after.update(self._pending)
        self._tokens.append(token)
        end = len(self._tokens)
        self._pending = [(tuple(self._tokens[end - size :]), end) for size in NGRAM_SIZES if size <= end]

    def draft(self, limit: int) -> list[int]:
        """Return up to `limit` tokens that followed the longest n-gram at the end before; none if it is new."""
        for ngram, _ in self._pending:
            if (start := self._after.get(ngram)) is not None:
                return self._tokens[start : start + limit]
        return []


@dataclass(eq=False)
class PendingPrompt:
    """A prompt that waits for a lane, is prefilled in it, and stays there until all its jobs are in slots.

    jobs: those that are not in slots yet, in order of submission. arrival: prompts submitted before it.
    """

    jobs: deque["Job"] = field(default_factory=deque)
    owner: str = ""
    priority: int = 0
    arrival: int = 0
    lane: int | None = None
    entries: range | None = None  # of its lane
    cached: Cached | None = None  # None before it is loaded
    prefilled: int = 0  # tokens, cached tokens included
    alike: dict["PendingPrompt", int] = field(default_factory=dict)  # tokens that it begins with like others

    @property
    def is_held(self) -> bool:
        return any(job.is_held for job in self.jobs)

    def begin(self, cached: Cached) -> None:
        self.cached, self.prefilled = cached, cached.tokens

    @property
    def gap(self) -> int:
        """See `Cached`."""
        return self.cached.gap if self.cached else 0

    @property
    def request(self) -> Request:
        """The first request; all have one prompt."""
        return self.jobs[0].request

    @property
    def length(self) -> int:
        return len(self.request.tokens)

    @property
    def left(self) -> int:
        """Tokens that are not prefilled yet."""
        return self.length - self.prefilled

    @cached_property
    def twin_key(self) -> bytes | None:
        """Equal for prompts that may share a prefill; None for a prompt that shares with nobody.

        Log-probabilities come from a prompt's own prefill, and an answer may extend its own lane. A later turn's prefix
        depends on the choice, and so does a lane's size if the prompt is prefilled twice. A prompt that is longer than
        its lane is compacted for the choice.
        """
        if any(job.request.sampling.prompt_logprobs is not None for job in self.jobs):
            return None
        if any(job.stays or job.kv.turns != "reread" or job.kv.select.prefills_twice for job in self.jobs):
            return None
        compacted_for = repr(self.jobs[0].kv) if self.length > self.jobs[0].limits.workspace.size else ""
        salts = (self.request.salt, compacted_for)
        digests = (blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=32).digest() for salt in salts)
        return blake2b(b"".join((*digests, array("q", self.request.tokens).tobytes())), digest_size=32).digest()

    @property
    def furthest(self) -> int:
        """Where its next chunk ends at the latest: at its end, or where its lane is compacted."""
        return min(self.length, self.jobs[0].limits.workspace.stop(self.prefilled))

    def common(self, other: "PendingPrompt") -> int:
        """Return the leading tokens that two prompts have in common, in whole blocks; computed once."""
        if other not in self.alike:
            self.alike[other] = common_tokens(self.request.tokens, other.request.tokens)
        return self.alike[other]

    def chunk(self, stop: int) -> PrefillChunk:
        """Return the chunk of its next tokens, up to `stop`."""
        assert self.lane is not None
        return PrefillChunk(self.request, self.lane, self.prefilled, stop)

    def next_chunk(self, size: int) -> PrefillChunk:
        """Return its next chunk, which ends at a multiple of `size` or the prompt's end."""
        assert self.lane is not None
        return next(chunks(self.request, self.lane, self.prefilled, size))


@dataclass(eq=False)
class Job:
    """A request that waits, has a slot reserved while its prompt is prefilled, or runs. It runs once it has layouts."""

    request: Request
    kv: KVChoice
    limits: Limits
    prompt: PendingPrompt
    shared: int = 0  # prompt tokens that were prefilled before it joined its prompt
    is_held: bool = False
    slot: int | None = None
    layouts: Layouts = ()  # of its slot, once it runs
    output: list[int] = field(default_factory=list)  # tokens sampled, end-of-sequence included
    fed: int = 0  # output tokens that have an entry; the last sampled token has none yet
    drafted: int = 0  # drafts fed for it
    accepted: int = 0  # drafts that were sampled
    open_drafts: int = 0  # drafts that are fed and not sampled after
    hit_rate: float = 1.0  # share of its last drafts that were sampled
    newest: float = FIRST  # weight of the next step in it
    lookup: PromptLookup | None = None  # of its tokens, if it may have drafts and the engine does not make them

    @property
    def layout(self) -> Layout | None:
        """The layout of its choice."""
        return self.layouts[0] if self.layouts else None

    @cached_property
    def stays(self) -> bool:
        """Whether its answer extends the prompt's lane, which it then has to itself."""
        return self.limits.stays(len(self.request.tokens), self.kv)

    @property
    def bytes(self) -> int:
        """Of cache that it holds while it runs."""
        return self.limits.entry_bytes * self.layouts[0].capacity if self.stays else self.limits.request_bytes

    @property
    def sampled(self) -> int:
        return len(self.output)

    @property
    def seen(self) -> int:
        """Tokens that its slot has seen."""
        return len(self.request.tokens) + self.fed

    @property
    def resumable(self) -> tuple[int, ...]:
        """All tokens that its slot has seen if a later turn may continue from them; else empty."""
        if self.layout is None or self.stays or self.kv.turns == "reread":
            return ()
        return (*self.request.tokens, *self.output[: self.fed])

    @property
    def forced_token(self) -> int | None:
        """The next token if it is forced, not sampled."""
        forced = self.request.forced
        return forced[self.sampled] if self.sampled < len(forced) else None

    def run(self, layouts: Layouts) -> None:
        """Start to run with its prompt in a slot of these layouts."""
        self.layouts = layouts
        if self._may_draft and not self.limits.has_draft_model:
            self.lookup = PromptLookup(self.request.tokens)

    @property
    def _may_draft(self) -> bool:
        return self.limits.drafts > 0 and not self.stays and self.request.sampling.takes_drafts

    def draft(self, limit: int) -> list[int] | int:
        """Return guesses of the tokens after the next token, which is sampled in any case; or how many there may be.

        No draft can end the request or replace a forced token. Each has an entry of its own in every ring, and no layer
        is scored by a review before the last of them is fed.
        """
        if not self._may_draft or self.sampled < len(self.request.forced):
            return 0
        rooms = (layout.until_scored(self.seen) if layout.review else layout.ring - 1 for layout in self.layouts)
        limit = max(0, min(limit, self.left_to_sample - 1, *rooms))
        if self.lookup is None:
            return limit
        tokens = self.lookup.draft(limit) if limit else []
        return list(takewhile(lambda token: not self.request.ends_at(token, self.sampled + limit), tokens))

    def expected(self, count: int) -> float:
        """Return how many of so many drafts are expected to be sampled."""
        return self.hit_rate * count

    def feed_drafts(self, count: int) -> None:
        """Count drafts that the next step feeds."""
        self.drafted += count
        self.open_drafts = count

    def accept(self, count: int) -> None:
        """Count the drafts that were sampled; they keep their entries."""
        self.fed += count
        self.accepted += count
        if self.open_drafts:
            self.hit_rate += self.newest * (count / self.open_drafts - self.hit_rate)
            self.newest = max(RECENT, self.newest / (1 + self.newest))  # 1/3, 1/4, 1/5 and so on
        self.open_drafts = 0

    def take(self, token: int) -> FinishReason | None:
        """Add a sampled token. Returns why the request ends with it, or None; "stop" takes precedence over "length"."""
        self.output.append(token)
        if self.lookup:
            self.lookup.append(token)
        if self.request.ends_at(token, self.sampled):
            return "stop"
        return "length" if self.sampled >= self._sample_limit else None

    @property
    def left_to_sample(self) -> int:
        return self._sample_limit - self.sampled

    @cached_property
    def _sample_limit(self) -> int:
        """Tokens that it may sample: limited by max_tokens, the context, and the slot if its layout does not wrap."""
        assert self.layout is not None
        limit = min(self.request.sampling.max_tokens, self.limits.context - len(self.request.tokens))
        # The last token sampled is never fed, so it needs no entry.
        return limit if self.layout.free_entries is None else min(limit, self.layout.free_entries + 1)

    def usage(self) -> Usage:
        prompt, cached = len(self.request.tokens), max(self.shared, (self.prompt.cached or Cached()).tokens)
        return Usage(prompt, self.sampled, self._kv_usage(), cached, self.drafted, self.accepted)

    def _kv_usage(self) -> KVUsage:
        """Cache statistics. Before the prompt is inserted, capacity is the requested budget and all counts are 0."""
        prompt, layout = len(self.request.tokens), self.layout
        if layout is None:
            capacity = self.limits.capacity if self.kv.budget is None else self.kv.budget
            return KVUsage(self.kv.policy, capacity, kept=0, evicted=0, ring_wraps=0, bytes_held=0)
        return KVUsage(
            policy=self.kv.policy,
            capacity=layout.capacity,
            kept=layout.live(prompt),
            evicted=layout.evicted(self.seen),
            ring_wraps=layout.wrap_count(self.seen),
            bytes_held=self.bytes,
            pages=page_usage(layout, self.limits.page, self.fed, self.limits.resident),
            heads=HeadUsage(layout.fewest, layout.most) if layout.most else None,
        )


def common_tokens(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many leading tokens two prompts have in common, in whole blocks of the prefix store."""
    shorter = min(len(first), len(second)) // BLOCK * BLOCK
    starts = range(0, shorter, BLOCK)
    return next((start for start in starts if first[start : start + BLOCK] != second[start : start + BLOCK]), shorter)


def slot_state(slot: int, job: Job, limits: Limits) -> SlotState:
    """Return the state of a running request's slot."""
    layout = job.layout
    assert layout is not None, "the request does not run"
    return SlotState(
        slot=slot,
        id=job.request.id,
        policy=job.kv.policy,
        prompt=len(job.request.tokens),
        seen=job.seen,
        live=layout.live(job.seen),
        bytes=job.bytes,
        **{name: getattr(layout, name) for name in OF_LAYOUT},
    )


def in_order(prompts: Sequence[PendingPrompt], number: int) -> list[PendingPrompt]:
    """Return prompts in the order in which they get rows of pass `number`: fewest tokens left first.

    So most requests get their first token soon, and a short prompt does not wait for a long prompt. In every fourth
    pass the oldest is first, so that it gets on whatever arrives.
    """
    order = sorted(prompts, key=lambda prompt: (prompt.left, prompt.arrival))
    if number % OLDEST_EVERY == 0:
        oldest = min(prompts, key=lambda prompt: prompt.arrival)
        order.sort(key=lambda prompt: prompt is not oldest)
    return order


def pack(prompts: Sequence[PendingPrompt], rows: int, unit: int) -> list[PrefillChunk]:
    """Return chunks of at most `rows` tokens together: as much of each prompt as fits, in their order.

    Chunks end at places in their lane that are multiples of `unit`, where the lane is compacted, or at their prompt's
    end. Only the first prompt's may be longer than `rows`: it has at least one unit.
    """
    chunks, left = list[PrefillChunk](), rows
    for prompt in prompts:
        stop = _cut(prompt, left, unit)
        if stop > prompt.prefilled:
            chunks.append(prompt.chunk(stop))
            left -= stop - prompt.prefilled
    return chunks or [prompt.chunk(_cut(prompt, unit, unit)) for prompt in prompts[:1]]


def _cut(prompt: PendingPrompt, tokens: int, unit: int) -> int:
    """Return where a prompt's next chunk of at most so many tokens ends."""
    stop, gap, furthest = prompt.prefilled + tokens, prompt.gap, prompt.furthest
    return furthest if stop >= furthest else max(prompt.prefilled, (stop - gap) // unit * unit + gap)
