"""Engine: the verbs by which everything above drives a model. No torch here: arguments are plain data or opaque.

    begin(request, lane);   prefill (chunk by chunk) -> Staged;   compress(Staged, choice) -> Prefix
    insert(Prefix, slot);   once a token:  sample -> Step, forward;   at its end:  leave(slot, tokens), release(slot)

A decode step is *sample, then forward*: insert leaves the prompt's last logits in the slot, so a request's first
token comes from the same sampling graph as all others, and its last token needs no forward pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ringkv.base.events import TokenLogprob
from ringkv.base.kv import KVChoice, Layout
from ringkv.base.request import Request


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
    entry_bytes: int  # bytes of one entry, keys and values, all layers and heads
    held_bytes: int  # all cache memory: slots, staging, and what is remembered for later prompts

    @property
    def longest_prompt(self) -> int:
        """Tokens that fit the workspace, and leave the context room for an answer's first."""
        return min(self.prompt_tokens, self.context - 1)


class Work(NamedTuple):
    """One chunk of a prompt to prefill: tokens[start:stop] of the request, in a staging lane."""

    request: Request
    lane: int
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.request.tokens)


def chunks(request: Request, lane: int, start: int, most: int) -> Iterator[Work]:
    """A prompt from token `start` on; chunks end at multiples of `most`, wherever the first one starts."""
    while start < len(request.tokens):
        stop = min((start // most + 1) * most, len(request.tokens))
        yield Work(request, lane, start, stop)
        start = stop


class Prefilled(NamedTuple):
    """What a chunk gave: the staged prompt, if it was the last; `prompt_logprobs` of the tokens that follow its own."""

    staged: Any | None
    logprobs: tuple[TokenLogprob, ...] = ()


class Prefix(Protocol):
    """A compressed prompt, ready for a slot while its lane is not reused. Inserting does not consume it."""

    @property
    def layout(self) -> Layout: ...


class Sampled(NamedTuple):
    """One slot's token, None if its logits were not finite."""

    token: int | None
    logprob: TokenLogprob | None


class Step(Protocol):
    def read(self) -> Sequence[Sampled]:
        """One `Sampled` per slot, free slots too (garbage); waits for this step only."""
        ...


class Engine(Protocol):
    """Everything the device does for one model. `Staged` is whatever `prefill` gave; callers never look inside."""

    @property
    def limits(self) -> Limits: ...

    @property
    def default_kv(self) -> KVChoice: ...

    def admit(self, request: Request) -> None:
        """Raise `InvalidRequest` if the request could never be served. Called before any work."""
        ...

    def begin(self, request: Request, lane: int) -> int:
        """Fill a lane with what is known of a prompt; how many of its first tokens need no prefill, less than all."""
        ...

    def prefill(self, work: Work) -> Prefilled:
        """Run one chunk; the first one starts where `begin` said."""
        ...

    def compress(self, staged: Any, choice: KVChoice) -> Prefix:
        """Select what a slot will hold. May be called again with another choice while the lane is not reused."""
        ...

    def insert(self, prefix: Prefix, slot: int, request: Request) -> None:
        """Copy the prefix, its last logits and the request's sampling parameters into a slot."""
        ...

    def sample(self, forced: Mapping[int, int] | None = None, allowed: Mapping[int, bytes] | None = None) -> Step:
        """Sample each slot's next token from its logits.

        By slot: `forced`, a token that is taken instead of sampling; `allowed`, for requests with a grammar, which
        tokens may be sampled: a bit each, the lowest of each byte first, in whole groups of 32.
        """
        ...

    def forward(self) -> None:
        """Feed the tokens just sampled; leaves each slot's next logits."""
        ...

    def leave(self, slot: int, tokens: tuple[int, ...]) -> None:
        """Remember a slot's live entries for a prompt that goes on from these tokens, all that the slot has seen."""
        ...

    def release(self, slot: int) -> None:
        """Empty a slot: nothing of it is read any more."""
        ...
