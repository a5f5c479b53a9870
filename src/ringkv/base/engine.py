"""Engine: the interface by which the rooms above run a model. It takes plain data: lanes and slots are numbers.

    begin(request, lane);   prefill, chunk by chunk;   compress(lane, choice);   insert(lane, slot, request)
    per token:  sample -> StepTokens, forward;   at the end:  leave(slot, tokens), release(slot)
    to another engine:  export(slot) -> Packet, restore(packet, slot)

A decode step is *sample, then forward*. `insert` leaves the prompt's last logits in the slot, so a request's first
token comes from the same sampling graph as all others. Its last token needs no forward pass. If slots may ride, one
pass prefills chunks and feeds the slots: `prefill(chunks, feed=True)` stands for both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.config import Shapes
from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RankBytes(NamedTuple):
    """Cache memory of one rank, fixed at start. held: its slots, staging and prefix store. slot: one slot on it."""

    held: int
    slot: int


@dataclass(frozen=True)
class Limits(Shapes):
    """The fixed shapes an engine was built with."""

    context: int  # longest prompt plus output that the model supports
    vocab: int
    entry_bytes: int  # bytes of one entry, all layers and heads
    slot_bytes: int  # allocated bytes of one slot, on a rank that has it
    held_bytes: int  # all cache memory of the first rank: its slots, staging and prefix store
    staging_bytes: int = 0  # staging's part of held_bytes
    sampler_bytes: int = 0  # not in held_bytes: logits and sampling state of all slots
    drafts: int = 0  # drafts that `forward` takes for one slot, at most
    staged_entries: int = 0  # of all lanes together; 0: each lane has its workspace
    unit: int = 0  # a prompt may be cut into chunks at multiples of this; 0: of chunk
    packs: bool = False  # whether a pass takes chunks of several prompts
    rides: bool = False  # whether slots may be fed in a pass with chunks
    kv_format: PlaneFormat = "plain"  # of slots; layers at the ends may be plain
    page: int = 0  # entries of a page of slots that are read in pages, else 0
    resident: int | None = None  # pages of each head that stay where steps read them, at most, or None for all
    tier: str = ""  # directory of the files that hold the slots' entries, or IN_HOST_MEMORY; "": with all else
    tier_bytes: int = 0  # of one slot there; not in slot_bytes
    rank_bytes: tuple[RankBytes, ...] = ()  # of each rank; empty if there is one
    heads: tuple[int, ...] = ()  # key-value heads of each layer's cache, on the first rank
    policies: tuple[str, ...] = ()  # those that a request may choose
    has_draft_model: bool = False  # whether the engine makes drafts itself
    answers_in_lanes: bool = False  # whether a prompt of which all is kept may stay in its lane; see `stays`
    slot_ranks: int = 1  # ranks that divide the slots: slot s is on rank s % slot_ranks; 1: each has all slots

    def kept_of(self, prompt: int) -> int:
        """Return the most entries that a slot may hold of a prompt of so many tokens."""
        return self.capacity if prompt <= self.workspace.size else min(self.capacity, self.workspace.kept)

    def stays(self, prompt: int, choice: KVChoice) -> bool:
        """Return whether a prompt of so many tokens is answered in its lane: all are kept, and no slot holds them."""
        is_whole = choice.policy == "full" and choice.budget is None and self.capacity < prompt <= self.workspace.size
        return self.answers_in_lanes and is_whole

    @property
    def slots_bytes(self) -> int:
        """The part of `held_bytes` that is in slots."""
        return self.slots // self.slot_ranks * self.slot_bytes

    @property
    def request_bytes(self) -> int:
        """Bytes of one slot on all ranks."""
        is_on_all = self.rank_bytes and self.slot_ranks == 1
        return sum(rank.slot for rank in self.rank_bytes) if is_on_all else self.slot_bytes

    @property
    def store_bytes(self) -> int:
        """The prefix store's part of `held_bytes`."""
        return self.held_bytes - self.staging_bytes - self.slots_bytes

    @property
    def longest_prompt(self) -> int:
        """Tokens that prefill takes and that leave at least one token of the context for the answer."""
        return min(self.prompt_tokens, self.context - 1)


class PrefillChunk(NamedTuple):
    """One chunk of a prompt to prefill: tokens[start:stop] of the request, in a staging lane."""

    request: Request
    lane: int
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.request.tokens)


class Cached(NamedTuple):
    """The cached prefix of a prompt in its lane. tokens: fewer than the prompt has. entries: of them that are left."""

    tokens: int = 0
    entries: int = 0

    @property
    def gap(self) -> int:
        """Tokens without an entry. A token's position is its place in the lane plus this."""
        return self.tokens - self.entries


def lane_entries(tokens: int, choice: KVChoice, longest: int) -> int:
    """Return the staged entries that a prompt needs: as many as the longest lane if it is prefilled twice."""
    return longest if choice.select.prefills_twice else min(tokens, longest)


def chunks(request: Request, lane: int, start: int, size: int) -> Iterator[PrefillChunk]:
    """Yield a prompt's chunks from token `start` on. They end at multiples of `size`, wherever the first one starts."""
    while start < len(request.tokens):
        stop = min((start // size + 1) * size, len(request.tokens))
        yield PrefillChunk(request, lane, start, stop)
        start = stop


def prefill(engine: "Engine", request: Request, lane: int = 0) -> None:
    """Prefill a whole prompt into a lane."""
    for work in chunks(request, lane, engine.begin(request, lane).tokens, engine.limits.chunk):
        engine.prefill([work])


class Packet(NamedTuple):
    """A running request, with all that another engine of the same shapes needs to continue it.

    seen: tokens that its slot has seen. sampled: how often each token was sampled. entries, logits: bytes of its live
    entries in every layer, and of its next logits.
    """

    request: Request
    layouts: Layouts
    seen: int
    sampled: Mapping[int, int]
    entries: bytes | memoryview
    logits: bytes | memoryview


class Sampled(NamedTuple):
    """One slot's token, or None if its logits were not finite."""

    token: int | None
    logprob: TokenLogprob | None


Run = Sequence[Sampled]
"""One slot's tokens of one step, in order: its accepted drafts, then one more token."""


Drafted = Mapping[int, Sequence[int] | int]
"""By slot, guesses of the tokens that follow, or how many of them the engine's draft model is to make."""


class StepTokens(Protocol):
    def read(self) -> Sequence[Run]:
        """Return one run per slot; a free slot's is garbage. Waits for this step only."""
        ...


class Engine(Protocol):
    """Everything the device does for one model."""

    @property
    def limits(self) -> Limits: ...

    @property
    def default_kv(self) -> KVChoice: ...

    def admit(self, request: Request) -> None:
        """Raise `InvalidRequest` if the request could never be served. Called before any work."""
        ...

    def begin(self, request: Request, lane: int, entries: range | None = None) -> Cached:
        """Load the cached prefix of a prompt into its lane.

        entries: the staged entries that the lane gets, `lane_entries` of them; None: as many as the longest lane has.
        """
        ...

    def prefill(self, work: Sequence[PrefillChunk], feed: bool = False) -> list[tuple[TokenLogprob, ...]]:
        """Run chunks of different prompts in one pass. A prompt's first one starts after its cached tokens.

        feed: the pass also does what `forward` does, without drafts. Only if `Limits.rides`; several chunks only if
        `Limits.packs`. Returns for each chunk the log-probability of the prompt token after each of its tokens, if
        `prompt_logprobs` requests them.
        """
        ...

    def select(self, lane: int, choice: KVChoice, slot: int | None = None) -> Iterator[None]:
        """Do the work of `compress`, and that of `insert` in a free slot, in parts, which take milliseconds each.

        `compress` and `insert` then return at once. Between two parts slots may be fed, but no prompt may be prefilled.
        """
        ...

    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        """Select the tokens that a slot will keep of a lane's prompt, once per choice. Returns the slot's layouts."""
        ...

    def kept(self, lane: int, choice: KVChoice) -> list["NDArray[np.int64]"]:
        """Return for each layer int64 [H, live]: the prompt token that each entry of a slot would hold, or -1.

        Raises InvalidRequest if the lane continues a conversation, and it is not known what that has kept.
        """
        ...

    def insert(self, lane: int, slot: int, request: Request) -> None:
        """Copy to a slot what `request.kv` keeps of a lane's prompt, its last logits and the sampling parameters.

        The lane keeps its prompt until `begin` loads another.
        """
        ...

    def export(self, slot: int) -> Packet:
        """Copy a running request out of its slot."""
        ...

    def restore(self, packet: Packet, slot: int) -> None:
        """Continue an exported request in a free slot. Raises InvalidRequest if its engine had other shapes."""
        ...

    def sample(self, forced: Mapping[int, int] | None = None, allowed: Mapping[int, bytes] | None = None) -> StepTokens:
        """Sample each slot's next tokens from its logits: one, and one more after each draft that was sampled.

        forced: by slot, a token that is taken instead of sampling. allowed: by slot of a request with a grammar, the
        mask of tokens that may be sampled: one bit each, the lowest of each byte first, in whole groups of 32.
        """
        ...

    def forward(self, drafts: Drafted | None = None) -> Mapping[int, int]:
        """Feed each slot the token that was sampled last, and leave its next logits. Returns the drafts fed, by slot.

        drafts: by slot, guesses of the tokens that follow, 1 to `Limits.drafts` of them and fewer than its ring has
        entries; of a slot with reviews at most `Layout.until_scored`. They run in the same pass. They change how many
        tokens `sample` returns, never which. Only for requests whose sampling takes drafts. An engine may ignore them.
        An int asks the engine's draft model for as many; 0 of them are fed while it is prefilled.
        """
        ...

    def recalled(self, slot: int) -> int | None:
        """Return the pages that a slot's steps have recalled, as a mean over layers and heads; see `PageUsage`.

        None if all pages are where steps read them. Waits for the steps.
        """
        ...

    def leave(self, slot: int, tokens: tuple[int, ...]) -> None:
        """Save a slot's live entries for a prompt that continues these tokens, which are all that the slot has seen."""
        ...

    def release(self, slot: int) -> None:
        """Free a slot. Its entries are not read again."""
        ...
