"""Engine: the verbs by which everything above drives a model. Plain data crosses: lanes and slots are numbers.

    begin(request, lane);   prefill, chunk by chunk;   compress(lane, choice);   insert(lane, slot, request)
    once a token:  sample -> Step, forward;   at its end:  leave(slot, tokens), release(slot)
    to another engine:  export(slot) -> Packet, restore(packet, slot)

A decode step is *sample, then forward*: insert leaves the prompt's last logits in the slot, so a request's first
token comes from the same sampling graph as all others, and its last token needs no forward pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice, Layouts
from ringkv.base.request import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Limits:
    """The fixed shapes an engine was built with."""

    slots: int  # requests that decode together
    capacity: int  # entries per slot
    prompt_tokens: int  # longest prompt: the staging workspace
    context: int  # longest prompt plus output the model was made for
    chunk: int  # prompt tokens per prefill step, at most
    lanes: int  # prompts staged at once
    vocab: int
    entry_bytes: int  # bytes of one entry, all layers and heads
    slot_bytes: int  # bytes that one slot sets aside
    held_bytes: int  # all cache memory: slots, staging, and what is remembered for later prompts
    staging_bytes: int = 0  # of these
    sampler_bytes: int = 0  # beside these: logits and sampling state of all slots
    drafts: int = 0  # tokens that `forward` takes beside a slot's sampled one, at most

    @property
    def store_bytes(self) -> int:
        """Of `held_bytes`, what is remembered for later prompts."""
        return self.held_bytes - self.staging_bytes - self.slots * self.slot_bytes

    @property
    def longest_prompt(self) -> int:
        """Tokens that fit the workspace, and leave the context room for an answer's first."""
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


def chunks(request: Request, lane: int, start: int, most: int) -> Iterator[PrefillChunk]:
    """A prompt from token `start` on; chunks end at multiples of `most`, wherever the first one starts."""
    while start < len(request.tokens):
        stop = min((start // most + 1) * most, len(request.tokens))
        yield PrefillChunk(request, lane, start, stop)
        start = stop


def prefill(engine: "Engine", request: Request, lane: int = 0) -> None:
    """Prefill a whole prompt into a lane."""
    for work in chunks(request, lane, engine.begin(request, lane), engine.limits.chunk):
        engine.prefill(work)


class Packet(NamedTuple):
    """A request that runs, with all that another engine of the same shapes needs to go on with it.

    seen: tokens that its slot has seen. sampled: how often each token was. entries, logits: bytes of its live entries
    in every layer, and of its next logits.
    """

    request: Request
    layouts: Layouts
    seen: int
    sampled: Mapping[int, int]
    entries: bytes
    logits: bytes


class Sampled(NamedTuple):
    """One slot's token, None if its logits were not finite."""

    token: int | None
    logprob: TokenLogprob | None


Run = Sequence[Sampled]
"""The tokens that one slot got in one step, in order: those of its drafts that were sampled, and the one after them."""


class Step(Protocol):
    def read(self) -> Sequence[Run]:
        """One run per slot, free slots too (garbage); waits for this step only."""
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

    def begin(self, request: Request, lane: int) -> int:
        """Load the cached prefix of a prompt into its lane; the number of cached tokens, less than the prompt has."""
        ...

    def prefill(self, work: PrefillChunk) -> tuple[TokenLogprob, ...]:
        """Run one chunk; the first one starts where `begin` said.

        Returns the log-probabilities of the prompt tokens that follow the chunk's, if `prompt_logprobs` wants them.
        """
        ...

    def compress(self, lane: int, choice: KVChoice) -> Layouts:
        """Select what a slot will hold of the prompt in a lane, once for each choice; how the slot will be laid out."""
        ...

    def kept(self, lane: int, choice: KVChoice) -> list["NDArray[np.int64]"]:
        """Of each layer int [H, live]: the prompt token that each entry of a slot would hold."""
        ...

    def insert(self, lane: int, slot: int, request: Request) -> None:
        """Copy what `request.kv` keeps of the prompt in a lane, its last logits and the sampling parameters to a slot.

        The lane keeps its prompt until it begins with another.
        """
        ...

    def export(self, slot: int) -> Packet:
        """Copy a running request out of its slot."""
        ...

    def restore(self, packet: Packet, slot: int) -> None:
        """Go on with an exported request in a free slot. Raises InvalidRequest if its engine had other shapes."""
        ...

    def sample(self, forced: Mapping[int, int] | None = None, allowed: Mapping[int, bytes] | None = None) -> Step:
        """Sample the next tokens of each slot from its logits: one, and one more after each draft that was sampled.

        By slot: `forced`, a token that is taken instead of sampling; `allowed`, for requests with a grammar, which
        tokens may be sampled: a bit each, the lowest of each byte first, in whole groups of 32.
        """
        ...

    def forward(self, drafts: Mapping[int, Sequence[int]] | None = None) -> None:
        """Feed the last token that was sampled for each slot; leaves its next logits.

        drafts: by slot, guesses of the tokens that follow, 1 to `Limits.drafts` of them and fewer than its ring has
        entries. They run in the same pass, and change how many tokens `sample` returns, never which. Only for requests
        with at most the tier TEMPERATURE. An engine may ignore them.
        """
        ...

    def leave(self, slot: int, tokens: tuple[int, ...]) -> None:
        """Remember a slot's live entries for a prompt that goes on from these tokens, all that the slot has seen."""
        ...

    def release(self, slot: int) -> None:
        """Empty a slot: nothing of it is read any more."""
        ...
