"""ToyEngine: an engine whose tokens can be computed by hand; the next token is the sum of all before it, modulo 97.

So token k of a prompt that sums to s is s * 2**k mod 97, because each token fed doubles the sum. A wrong slot, a token
fed twice or not at all, or a chunk in the wrong place gives another answer.

A request's id makes it fail: "nan..." samples nothing at its third token; "begin...", "prefill...", "compress...",
"insert..." and "restore..." raise in that call; "fatal..." raises in the sampling step that all slots share.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ringkv.base.config import EngineConfig
from ringkv.base.engine import Cached, Drafted, Limits, Packet, PrefillChunk, Run, Sampled
from ringkv.base.errors import BudgetTooSmall, DoesNotFit, EmptyPrompt, PromptTooLong
from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice, Layout, Layouts
from ringkv.base.progress import Progress
from ringkv.base.request import Request

MODULUS = 97
SINKS = 4


def limits(**changes: int) -> Limits:
    shapes = {"slots": 2, "capacity": 64, "prompt_tokens": 512, "context": 4096, "chunk": 8, "lanes": 1}
    shapes |= {"vocab": MODULUS, "entry_bytes": 10, "held_bytes": 0} | changes
    return Limits(**{"slot_bytes": shapes["capacity"] * shapes["entry_bytes"]} | shapes)


def config(**changes: Any) -> EngineConfig:
    fields = {"model_dir": Path("toy"), "kv": KVChoice("streaming"), "slots": 4, "capacity": 64, "prompt_tokens": 512}
    fields |= {"chunk": 8, "lanes": 1, "dtype": "float32", "weights": "bf16", "device": "cpu", "graphs": "off"}
    return EngineConfig(**(fields | {"threads": 1, "cache_dir": Path("toy")} | changes))


def answer(prompt: Sequence[int], count: int, forced: Sequence[int] = ()) -> list[int]:
    """Return the first `count` tokens of the answer in closed form, forced tokens first."""
    seen = sum(prompt) + sum(forced)
    return [*forced, *(seen * pow(2, k, MODULUS) % MODULUS for k in range(count - len(forced)))][:count]


def layout(n: int, choice: KVChoice, capacity: int) -> Layout:
    """Return the layout of a full cache, or of sinks and a ring."""
    entries = choice.budget or capacity
    if choice.policy == "full":
        return Layout(n, n, 0, 0, protected=0, base=0, ring=entries, wraps=False)
    held = min(n, entries)
    return Layout(n, min(n, SINKS), 0, max(0, held - SINKS), SINKS, SINKS, entries - SINKS, wraps=True)


class Staged(NamedTuple):
    request: Request
    tokens: list[int]


class ToyStep(NamedTuple):
    runs: list[Run]

    def read(self) -> list[Run]:
        return self.runs


@dataclass
class Slot:
    request: Request
    tokens: list[int]
    sampled: int = 0


class Chunk(NamedTuple):
    """A log entry: a chunk, and whether it delayed a running request."""

    work: PrefillChunk
    stalls: bool


class Begun(NamedTuple):
    """A log entry: a prompt that got a lane."""

    request_id: str


@dataclass
class ToyEngine:
    """Logs its calls: Begun, Chunk, else the method's name. Asserts what an engine may rely on."""

    limits: Limits = field(default_factory=limits)
    default_kv: KVChoice = KVChoice("streaming")  # noqa: RUF009 - frozen
    seconds: float = 0.0  # of a forward pass

    def __post_init__(self) -> None:
        self.lanes: dict[int, Staged] = {}
        self.slots: dict[int, Slot] = {}
        self.sampled: dict[int, int] = {}
        self.allowed: dict[int, bytes] = {}
        self.drafts: dict[int, list[int]] = {}
        self.drafted = 0  # drafts fed so far
        self.log: list[Begun | Chunk | str] = []

    def admit(self, request: Request) -> None:
        if not request.tokens:
            raise EmptyPrompt("the prompt is empty; give it at least one token")
        if len(request.tokens) > self.limits.prompt_tokens:
            raise PromptTooLong(f"prompt has {len(request.tokens)} tokens, toy takes {self.limits.prompt_tokens}")

    def begin(self, request: Request, lane: int, entries: range | None = None) -> Cached:
        """Return no cached tokens, except 3 for a request named "cached..."."""
        self._break("begin", request)
        self.log.append(Begun(request.id))
        cached = min(3, len(request.tokens) - 1) if request.id.startswith("cached") else 0
        self.lanes[lane] = Staged(request, list(request.tokens[:cached]))
        return Cached(cached, cached)

    def prefill(self, work: Sequence[PrefillChunk], feed: bool = False) -> list[tuple[TokenLogprob, ...]]:
        """Return log-probabilities: a prompt token's is its id, negated."""
        assert self.limits.packs or len(work) == 1
        assert len({chunk.lane for chunk in work}) == len(work) > 0, "a lane has two chunks in one pass"
        for chunk in work:
            self._prefill(chunk)
        if feed:
            assert self.limits.rides
            self.forward()
        return [tuple(_scored(chunk)) for chunk in work]

    def _prefill(self, work: PrefillChunk) -> None:
        self._break("prefill", work.request)
        self.log.append(Chunk(work, stalls=bool(self.slots)))
        staged = self.lanes[work.lane]
        assert staged.request.tokens == work.request.tokens, "a lane was taken before its prompt was done"
        assert len(staged.tokens) == work.start, "a chunk was skipped or repeated"
        assert work.stop % (self.limits.unit or self.limits.chunk) == 0 or work.is_last
        assert 0 < work.stop - work.start <= self.limits.chunk
        staged.tokens.extend(work.request.tokens[work.start : work.stop])

    def select(self, lane: int, choice: KVChoice, slot: int | None = None) -> Iterator[None]:
        return iter(())

    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        if choice.budget is not None and choice.budget <= SINKS:
            raise BudgetTooSmall(f"a budget of {choice.budget} leaves no ring; give it at least {SINKS + 1}")
        staged = self.lanes[lane]
        assert len(staged.tokens) == len(staged.request.tokens), "the prompt is not prefilled"
        return (layout(len(staged.tokens), choice, self.limits.capacity),)

    def kept(self, lane: int, choice: KVChoice) -> list[Any]:
        """Return sinks and newest tokens, for each of `limits.heads`."""
        import numpy as np

        n = len(self.lanes[lane].tokens)
        live = layout(n, choice, self.limits.capacity).live(n)
        tokens = [*range(SINKS), *range(n - live + SINKS, n)]
        return [np.tile(np.array(tokens), (heads, 1)) for heads in self.limits.heads]

    def insert(self, lane: int, slot: int, request: Request) -> None:
        self._break("insert", request)
        self._break("compress", request)
        assert self.lanes[lane].request.tokens == request.tokens, "the lane has taken another prompt since"
        assert slot not in self.slots, "a slot was given away twice"
        assert not self.sampled, "tokens sampled before were not fed"
        assert 0 <= slot < self.limits.slots
        self.slots[slot] = Slot(request, list(self.lanes[lane].tokens))

    def export(self, slot: int) -> Packet:
        """Return a packet whose first entry has the sum of the prompt."""
        held = self.slots[slot]
        placed = layout(len(held.tokens), held.request.kv or self.default_kv, self.limits.capacity)
        entries = sum(held.tokens).to_bytes(self.limits.entry_bytes, "little")
        size = placed.live(len(held.tokens)) * self.limits.entry_bytes
        return Packet(held.request, (placed,), len(held.tokens), {}, entries.ljust(size, b"."), bytes(4 * MODULUS))

    def restore(self, packet: Packet, slot: int) -> None:
        self._break("restore", packet.request)
        assert slot not in self.slots, "a slot was given away twice"
        assert not self.sampled, "tokens sampled before were not fed"
        assert int.from_bytes(packet.entries[: self.limits.entry_bytes], "little") == sum(packet.request.tokens)
        self.slots[slot] = Slot(packet.request, list(packet.request.tokens))

    def sample(self, forced: Mapping[int, int] | None = None, allowed: Mapping[int, bytes] | None = None) -> ToyStep:
        """Sample; a token that a grammar forbids is replaced by the first that it allows."""
        assert not self.sampled, "tokens sampled before were not fed"
        self.log.append("sample")
        assert set(forced or {}) <= set(self.slots), "a token was forced for a free slot"
        assert set(allowed or {}) <= set(self.slots), "a mask was passed for a free slot"
        self.allowed = dict(allowed or {})
        return ToyStep([tuple(self._run(slot, (forced or {}).get(slot))) for slot in range(self.limits.slots)])

    def forward(self, drafts: Drafted | None = None) -> Mapping[int, int]:
        assert self.sampled, "there is nothing to feed"
        time.sleep(self.seconds)
        self.log.append("forward")
        for slot, token in self.sampled.items():
            self.slots[slot].tokens.append(token)
        self.sampled.clear()
        self.drafts = {slot: list(tokens) for slot, tokens in (drafts or {}).items() if not isinstance(tokens, int)}
        assert all(0 < len(tokens) <= self.limits.drafts for tokens in self.drafts.values())
        self.drafted += sum(map(len, self.drafts.values()))
        return {slot: len(tokens) for slot, tokens in self.drafts.items()}

    def recalled(self, slot: int) -> int | None:
        return None

    def leave(self, slot: int, tokens: tuple[int, ...]) -> None:
        assert tokens == tuple(self.slots[slot].tokens), "these are not the tokens that the slot has seen"
        self.log.append("leave")

    def release(self, slot: int) -> None:
        self.slots.pop(slot, None)
        self.drafts.pop(slot, None)
        self.sampled.pop(slot, None)

    def _run(self, index: int, forced: int | None) -> Iterator[Sampled]:
        """Yield a token, and one more after each draft that equals the token before; such a draft is fed."""
        sampled = self._sample(index, forced)
        yield sampled
        for draft in self.drafts.pop(index, []):
            if draft != sampled.token:
                break
            self.slots[index].tokens.append(draft)
            sampled = self._sample(index, None)
            yield sampled

    def _sample(self, index: int, forced: int | None) -> Sampled:
        slot = self.slots.get(index)
        if slot is None:
            return Sampled(13, None)  # garbage
        self._break("fatal", slot.request)
        slot.sampled += 1
        if slot.request.id.startswith("nan") and slot.sampled == 3:
            return Sampled(None, None)
        self.sampled[index] = self._allowed(index, sum(slot.tokens) % MODULUS) if forced is None else forced
        return Sampled(self.sampled[index], None)

    def _allowed(self, index: int, token: int) -> int:
        """Return the token, or the first that the grammar allows instead."""
        mask = self.allowed.get(index)
        if mask is None:
            return token
        allowed = [id for id in range(8 * len(mask)) if mask[id // 8] >> id % 8 & 1]
        return token if token in allowed else allowed[0]

    def _break(self, verb: str, request: Request) -> None:
        if request.id.startswith(verb):
            raise ValueError(f"{verb} is broken\nsecond line")


def _scored(work: PrefillChunk) -> Iterator[TokenLogprob]:
    requested = work.request.sampling.prompt_logprobs
    if requested is not None:
        for token in work.request.tokens[work.start + 1 : work.stop + 1]:
            yield TokenLogprob(-float(token), ((token, -float(token)),)[:requested])


def build(config: EngineConfig, progress: Progress) -> ToyEngine:
    progress(1, 2, "toy graphs")
    progress(2, 2, "toy graphs")
    shapes = ("slots", "capacity", "prompt_tokens", "chunk", "lanes")
    return ToyEngine(limits(**{name: getattr(config, name) for name in shapes}), config.kv)


def build_slow(config: EngineConfig, progress: Progress) -> ToyEngine:
    engine = build(config, progress)
    engine.seconds = 0.005
    return engine


def build_too_big(config: EngineConfig, progress: Progress) -> ToyEngine:
    raise DoesNotFit("4 slots need 9 GB, this machine has 8; ask for 3 slots")


def build_with_a_bug(config: EngineConfig, progress: Progress) -> ToyEngine:
    raise KeyError("model.norm.weight")


def build_forever(config: EngineConfig, progress: Progress) -> ToyEngine:
    progress(0, 1, "compiling")
    time.sleep(600)
    raise AssertionError


def build_with_bad_messages(config: EngineConfig, progress: Progress) -> ToyEngine:
    progress("words", "where", "numbers belong")  # type: ignore[arg-type]
    raise AssertionError
